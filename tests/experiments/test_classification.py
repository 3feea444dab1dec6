"""Classification: a campaign of LeNet, its artifacts, its logged model, and learning."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from PIL import Image

from experiments.cell.profile import PARTS
from experiments.datasets.labelled.data import Labelled
from experiments.workloads.classification.train import time_to
from tests import warm
from tests.conftest import Place
from tests.experiments import native_models
from tests.experiments.small_campaigns import cells, command, report, run
from tracking import tables, technical

CLASSIFY = """
import json, sys, mlflow, pandas
model = mlflow.pyfunc.load_model(sys.argv[1])
pictures = [open(path, "rb").read() for path in sys.argv[2:]]
of_bytes = model.predict(pandas.DataFrame({"image": [*pictures, b"none"]}))
assert list(of_bytes["error"]) == [*[""] * len(pictures), "image: not an image"]
assert list(of_bytes["label"])[-1] == "" and 0 < of_bytes["probability"][0] <= 1
assert model.predict(model.input_example)["error"][0] == ""
print(json.dumps(list(of_bytes["label"])[:-1]))
"""
FEW = {"inference_requests": "8"}


def curve(place: Place, cell: Run, metric: str) -> list[float]:
    history = MlflowClient(place.uri).get_metric_history(cell.info.run_id, metric)
    return [point.value for point in history]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, empty_store: Path) -> Place:
    """Return the place of a campaign of LeNet in two frameworks."""
    folder = tmp_path_factory.mktemp("lenet")
    shutil.copy(empty_store, folder / "mlflow.db")
    place = Place(folder, shared_cache, f"sqlite:///{folder}/mlflow.db")
    settings = {"frameworks": "pytorch,tensorflow", "thresholds": "0.1,0.999"}
    run(place, "lenet", epochs="4", profile="true", **FEW, **settings)
    return place


def cell_of(place: Place, framework: str) -> Run:
    (cell,) = (cell for cell in cells(place) if cell.data.params["framework"] == framework)
    return cell


def test_campaign_learns_and_answers_its_hypotheses(place: Place) -> None:
    assert len(cells(place)) == 2
    losses = [curve(place, cell, "val/loss") for cell in cells(place)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    for cell in cells(place):
        metrics = cell.data.metrics
        assert metrics["model/trainable_parameters"] == 61_706
        assert 0 < metrics["train/first_epoch_seconds"] <= metrics["train/total_seconds"]
        assert metrics["val/total_seconds"] > 0
        assert metrics[time_to(0.1)] <= metrics["train/total_seconds"]
        assert time_to(0.999) not in metrics, "never reached: censored, not zero"
    assert "Time to accuracy" in report(place)
    answers = list(csv.DictReader(next(place.journal.glob("*/report/hypotheses.csv")).open()))
    assert [row["hypothesis"] for row in answers] == [f"H{number}" for number in range(1, 11)]


def folder_of(place: Place, cell: Run) -> Path:
    name = technical.unpack_tags(cell.data.tags)["cell"]
    return next(place.journal.glob(f"*/cells/{name}/*/confusion.csv")).parent


def test_confusion_matrix_has_every_validation_image(place: Place) -> None:
    cell = cells(place)[0]
    head, *rows = csv.reader((folder_of(place, cell) / "confusion.csv").open())
    assert head == ["true \\ answered", *"0123456789"]
    counts = np.array([row[1:] for row in rows], int)
    assert counts.sum() == 269  # 15 % of each digit, rounded
    assert np.trace(counts) / 269 == pytest.approx(cell.data.metrics["val/accuracy"])
    artifacts = MlflowClient(place.uri).list_artifacts(cell.info.run_id)
    assert {"confusion.csv", "values.parquet"} <= {artifact.path for artifact in artifacts}


@pytest.mark.parametrize(
    ("framework", "trace"), [("pytorch", ".pt.trace.json"), ("tensorflow", ".xplane.pb")]
)
def test_profile_has_the_parts_of_a_step(place: Place, framework: str, trace: str) -> None:
    cell = cell_of(place, framework)
    metrics = cell.data.metrics
    seconds = [metrics[f"profile/{part}_seconds"] for part in PARTS]
    assert sum(seconds) == pytest.approx(metrics["profile/step_seconds"])
    assert metrics["profile/op_seconds"] / metrics["profile/step_seconds"] > 0.1
    folder = folder_of(place, cell)
    assert [file for file in (folder / "profile").rglob("*") if file.name.endswith(trace)]
    phases = tables.read(folder / "values.parquet", ("phase",))["phase"]
    assert phases.count("train") == 4 * 15, "no step under the profiler"
    operators = json.loads((folder / "profile.json").read_text())["operators"]
    assert any("conv" in operator["kind"].lower() for operator in operators)


def test_logged_classifier_labels_pictures_of_clients(place: Place) -> None:
    cell = cell_of(place, "pytorch")
    model = MlflowClient(place.uri).get_logged_model(cell.outputs.model_outputs[0].model_id)
    assert re.fullmatch(r"lenet-demo-pytorch-\d{4}-\d\d-\d\d", model.name)
    data = Labelled.open(next((place.cache / "labelled").glob("digits-*")))
    rows = data.validation.tolist()[:200]
    files = [place.folder / f"{row}.png" for row in rows]
    for row, file in zip(rows, files, strict=True):
        Image.fromarray(np.asarray(data.images[row, :, :, 0])).save(file)
    command = [sys.executable, "-c", CLASSIFY, model.model_uri, *map(str, files)]
    done = warm.run(command, place.environment, place.folder)
    assert done.returncode == 0, done.stderr[-2_000:]
    labels = json.loads(done.stdout.splitlines()[-1])
    is_right = [
        label == data.classes[data.labels[row]] for label, row in zip(labels, rows, strict=True)
    ]
    assert np.mean(is_right) == pytest.approx(cell.data.metrics["val/accuracy"], abs=0.1)
    assert np.mean(is_right) > 0.2  # of ten classes


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_native_network_gives_the_logits_of_the_classifier(
    place: Place, tmp_path: Path, framework: str
) -> None:
    output = cell_of(place, framework).outputs.model_outputs[0]
    folder = next(place.folder.glob(f"mlruns/*/models/{output.model_id}/artifacts"))
    description = json.loads((folder / "data" / "model" / "model.json").read_text())
    request = json.loads((folder / "input_example.json").read_text())
    picture = Image.open(io.BytesIO(base64.b64decode(request["data"][0][0])))
    pixels = np.asarray(picture.convert("L"), np.float32).reshape(1, 28, 28, 1) / 255
    inputs = (pixels - description["mean"]) / description["deviation"]
    loaded, logits = native_models.load(folder, (inputs.astype(np.float32),), tmp_path)
    assert loaded["flavor"] == {"pytorch": "pytorch", "tensorflow": "keras"}[framework]
    shares = np.exp(logits[0].astype(float)) / np.exp(logits[0].astype(float)).sum()
    assert loaded["answer"]["label"] == description["classes"][int(shares.argmax())]
    assert loaded["answer"]["probability"] == pytest.approx(shares.max(), rel=1e-5)


@pytest.fixture
def empty_place(tmp_path: Path, shared_cache: Path, empty_store: Path) -> Place:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Place(tmp_path, shared_cache, f"sqlite:///{tmp_path}/mlflow.db")


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(("study", "epochs"), [("lenet", "40"), ("classification", "12")])
def test_digits_are_learned_to_97_percent(empty_place: Place, study: str, epochs: str) -> None:
    run(empty_place, study, frameworks="pytorch,tensorflow", epochs=epochs, threads="2")
    assert {cell.data.tags["framework"] for cell in cells(empty_place)} == {"pytorch", "tensorflow"}
    for cell in cells(empty_place):
        assert max(curve(empty_place, cell, "val/accuracy")) >= 0.97


@pytest.mark.slow
def test_tensorflow_leaves_no_generated_code_in_the_temporary_folder(
    empty_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    frameworks = "tensorflow,tensorflow+xla,keras-tensorflow"
    settings = {"frameworks": frameworks, "cache": str(tmp_path / "cache"), "steps_per_epoch": "8"}
    words = command(empty_place, "lenet", epochs="1", **FEW, **settings)
    environment, folder = empty_place.environment, empty_place.folder
    done = subprocess.run(
        words, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert list(temporary.rglob("*autograph*")) == []

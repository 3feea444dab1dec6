"""Classification: a campaign of LeNet, its artifacts, its logged model, and learning."""

import csv
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from experiments.cell.profile import PARTS
from experiments.datasets.labelled.data import Labelled
from experiments.workloads.classification.train import time_to
from tests.conftest import NewPlace, Place
from tests.experiments import native_models
from tests.experiments.small_campaigns import cells, command, report, run
from tracking import tables, technical

FEW = {"inference_requests": "8"}


def curve(place: Place, cell: Run, metric: str) -> list[float]:
    history = MlflowClient(place.uri).get_metric_history(cell.info.run_id, metric)
    return [point.value for point in history]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory, new_place: NewPlace) -> Place:
    """Return the place of a campaign of LeNet in two frameworks."""
    place = new_place(tmp_path_factory.mktemp("lenet"))
    settings = {"frameworks": "pytorch,tensorflow", "thresholds": "0.1,0.999"}
    run(place, "lenet", epochs="4", profile="true", **FEW, **settings)
    return place


def cell_of(place: Place, framework: str) -> Run:
    (cell,) = (cell for cell in cells(place) if cell.data.params["framework"] == framework)
    return cell


def test_campaign_learns_and_answers_its_hypotheses(campaign: Place) -> None:
    assert len(cells(campaign)) == 2
    losses = [curve(campaign, cell, "val/loss") for cell in cells(campaign)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    for cell in cells(campaign):
        metrics = cell.data.metrics
        assert metrics["model/trainable_parameters"] == 61_706
        assert 0 < metrics["train/first_epoch_seconds"] <= metrics["train/total_seconds"]
        assert metrics["val/total_seconds"] > 0
        assert metrics[time_to(0.1)] <= metrics["train/total_seconds"]
        assert time_to(0.999) not in metrics, "never reached: censored, not zero"
    assert "Time to accuracy" in report(campaign)
    answers = list(csv.DictReader(next(campaign.journal.glob("*/report/hypotheses.csv")).open()))
    assert [row["hypothesis"] for row in answers] == [f"H{number}" for number in range(1, 11)]


def folder_of(place: Place, cell: Run) -> Path:
    name = technical.unpack_tags(cell.data.tags)["cell"]
    return next(place.journal.glob(f"*/cells/{name}/*/confusion.csv")).parent


def test_confusion_matrix_has_every_validation_image(campaign: Place) -> None:
    cell = cells(campaign)[0]
    head, *rows = csv.reader((folder_of(campaign, cell) / "confusion.csv").open())
    assert head == ["true \\ answered", *"0123456789"]
    counts = np.array([row[1:] for row in rows], int)
    assert counts.sum() == 269  # 15 % of each digit, rounded
    assert np.trace(counts) / 269 == pytest.approx(cell.data.metrics["val/accuracy"])
    artifacts = MlflowClient(campaign.uri).list_artifacts(cell.info.run_id)
    assert {"confusion.csv", "values.parquet"} <= {artifact.path for artifact in artifacts}


@pytest.mark.parametrize(
    ("framework", "trace"), [("pytorch", ".pt.trace.json"), ("tensorflow", ".xplane.pb")]
)
def test_profile_has_the_parts_of_a_step(campaign: Place, framework: str, trace: str) -> None:
    cell = cell_of(campaign, framework)
    metrics = cell.data.metrics
    seconds = [metrics[f"profile/{part}_seconds"] for part in PARTS]
    assert sum(seconds) == pytest.approx(metrics["profile/step_seconds"])
    assert metrics["profile/op_seconds"] / metrics["profile/step_seconds"] > 0.1
    folder = folder_of(campaign, cell)
    assert [file for file in (folder / "profile").rglob("*") if file.name.endswith(trace)]
    phases = tables.read(folder / "values.parquet", ("phase",))["phase"]
    assert phases.count("train") == 4 * 15, "no step under the profiler"
    operators = json.loads((folder / "profile.json").read_text())["operators"]
    assert any("conv" in operator["kind"].lower() for operator in operators)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_logged_network_has_the_accuracy_of_its_run(
    campaign: Place, tmp_path: Path, framework: str
) -> None:
    cell = cell_of(campaign, framework)
    model = MlflowClient(campaign.uri).get_logged_model(cell.outputs.model_outputs[0].model_id)
    assert re.fullmatch(rf"lenet-demo-{framework}-\d{{4}}-\d\d-\d\d", model.name)
    folder = next(campaign.folder.glob(f"mlruns/*/models/{model.model_id}/artifacts"))
    description = json.loads((folder / "model.json").read_text())
    data = Labelled.open(next((campaign.cache / "labelled").glob("digits-*")))
    pixels = np.asarray(data.images[data.validation], np.float32) / 255
    inputs = (pixels - description["mean"]) / description["deviation"]
    flavor, logits = native_models.load(folder, (inputs.astype(np.float32),), tmp_path)
    assert flavor == {"pytorch": "pytorch", "tensorflow": "keras"}[framework]
    labels = np.asarray(data.labels)[data.validation]
    assert np.mean(logits.argmax(1) == labels) == cell.data.metrics["val/accuracy"]
    assert description["classes"] == list("0123456789")


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(("study", "epochs"), [("lenet", "40"), ("classification", "12")])
def test_digits_are_learned_to_97_percent(place: Place, study: str, epochs: str) -> None:
    run(place, study, frameworks="pytorch,tensorflow", epochs=epochs, threads="2")
    assert {cell.data.tags["framework"] for cell in cells(place)} == {"pytorch", "tensorflow"}
    for cell in cells(place):
        assert max(curve(place, cell, "val/accuracy")) >= 0.97


@pytest.mark.slow
def test_tensorflow_leaves_no_generated_code_in_the_temporary_folder(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    frameworks = "tensorflow,tensorflow+xla,keras-tensorflow"
    settings = {"frameworks": frameworks, "cache": str(tmp_path / "cache"), "steps_per_epoch": "8"}
    words = command(place, "lenet", epochs="1", **FEW, **settings)
    environment, folder = place.environment, place.folder
    done = subprocess.run(
        words, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert list(temporary.rglob("*autograph*")) == []

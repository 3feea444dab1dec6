"""Classification: small real campaigns, learning that is the same on both sides, times to an accuracy, wrong calls."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import pytest
from PIL import Image

from experiments.cell.profile import PARTS
from experiments.datasets.labelled.data import Labelled
from experiments.workloads.classification.train import time_to
from tests import warm
from tests.conftest import Place, wait_for
from tests.experiments.test_captioning import answer
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
QUICK = {
    "threads": "1",
    "inference_requests": "8",
    "sensor_seconds": "0.1",
    "frameworks": "pytorch,keras-torch",
}
QUICK |= {"others_limit_percent": "100", "figures": "false"}


def run(place: Place, study: str = "lenet", **given: str) -> subprocess.CompletedProcess[str]:
    settings = {"cache": str(place.cache), "journal": str(place.journal), **QUICK, **given}
    return place.call(
        sys.executable,
        "-m",
        "experiments",
        study,
        *(f"--{name}={value}" for name, value in settings.items()),
    )


def cells(place: Place) -> list[mlflow.entities.Run]:
    return list(
        mlflow.MlflowClient(place.uri).search_runs(
            ["1"], "tags.kind = 'cell'", order_by=["attributes.start_time"]
        )
    )


def curve(place: Place, cell: mlflow.entities.Run, metric: str) -> list[float]:
    return [
        point.value
        for point in mlflow.MlflowClient(place.uri).get_metric_history(cell.info.run_id, metric)
    ]


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, empty_store: Path
) -> tuple[Place, str]:
    """Return a campaign of LeNet in two frameworks, and its output."""
    folder = tmp_path_factory.mktemp("lenet")
    shutil.copy(empty_store, folder / "mlflow.db")
    place = Place(folder, shared_cache, f"sqlite:///{folder}/mlflow.db")
    settings = {"frameworks": "pytorch,tensorflow", "thresholds": "0.1,0.999", "blocks": "1"}
    done = run(place, epochs="4", profile="true", **settings)
    assert done.returncode == 3, done.stdout + done.stderr  # one block: no verdict
    return place, done.stdout


def test_campaign_learns_and_answers_its_hypotheses(finished: tuple[Place, str]) -> None:
    place, output = finished
    assert "Of 10 null hypotheses" in output
    runs = cells(place)
    assert len(runs) == 2
    losses = [curve(place, run, "val/loss") for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    for run_ in runs:
        metrics = run_.data.metrics
        assert metrics["model/trainable_parameters"] == 61_706
        assert 0 < metrics["train/first_epoch_seconds"] <= metrics["train/total_seconds"]
        assert metrics["val/total_seconds"] > 0
        assert metrics[time_to(0.1)] <= metrics["train/total_seconds"]
        assert time_to(0.999) not in metrics, "never reached: censored, not zero"
    report = next(place.journal.glob("*/report/report.md")).read_text()
    assert report.index("The hypotheses, one by one") < report.index("## Environment")
    assert "Time to accuracy" in report
    assert "not testable here: " in report
    answers = list(csv.DictReader(next(place.journal.glob("*/report/hypotheses.csv")).open()))
    assert [row["hypothesis"] for row in answers] == [f"H{number}" for number in range(1, 11)]


def folder_of(place: Place, run_: mlflow.entities.Run) -> Path:
    name = technical.unpack_tags(run_.data.tags)["cell"]
    return next(place.journal.glob(f"*/cells/{name}/*/confusion.csv")).parent


def test_confusion_matrix_has_every_validation_image(finished: tuple[Place, str]) -> None:
    place, _ = finished
    run_ = cells(place)[0]
    head, *rows = csv.reader((folder_of(place, run_) / "confusion.csv").open())
    assert head == ["true \\ answered", *"0123456789"]
    counts = np.array([row[1:] for row in rows], int)
    assert counts.sum() == 269  # 15 % of each digit, rounded
    assert np.trace(counts) / 269 == pytest.approx(run_.data.metrics["val/accuracy"])
    artifacts = mlflow.MlflowClient(place.uri).list_artifacts(run_.info.run_id)
    assert {"confusion.csv", "values.parquet"} <= {artifact.path for artifact in artifacts}


@pytest.mark.parametrize(
    ("framework", "trace"), [("pytorch", ".pt.trace.json"), ("tensorflow", ".xplane.pb")]
)
def test_profile_has_the_parts_of_a_step(
    finished: tuple[Place, str], framework: str, trace: str
) -> None:
    place, _ = finished
    (run_,) = (one for one in cells(place) if one.data.params["framework"] == framework)
    metrics = run_.data.metrics
    seconds = [metrics[f"profile/{part}_seconds"] for part in PARTS]
    assert sum(seconds) == pytest.approx(metrics["profile/step_seconds"])
    assert metrics["profile/op_seconds"] / metrics["profile/step_seconds"] > 0.1
    folder = folder_of(place, run_)
    assert [file for file in (folder / "profile").rglob("*") if file.name.endswith(trace)]
    phases = tables.read(folder / "values.parquet", ("phase",))["phase"]
    assert phases.count("train") == 4 * 15, "no step under the profiler"
    operators = json.loads((folder / "profile.json").read_text())["operators"]
    assert any("conv" in operator["kind"].lower() for operator in operators)


def test_logged_classifier_labels_pictures_of_clients(finished: tuple[Place, str]) -> None:
    place, _ = finished
    client = mlflow.MlflowClient(place.uri)
    (run_,) = (one for one in cells(place) if one.data.params["framework"] == "pytorch")
    (model,) = (client.get_logged_model(one.model_id) for one in run_.outputs.model_outputs)
    assert model.name == "lenet-pytorch-block1"
    data = Labelled.open(next((place.cache / "labelled").glob("digits-*")))
    rows = data.validation.tolist()[:200]
    files = [place.folder / f"{row}.png" for row in rows]
    for row, file in zip(rows, files, strict=True):
        Image.fromarray(np.asarray(data.images[row, :, :, 0])).save(file)
    command = [sys.executable, "-c", CLASSIFY, model.model_uri, *map(str, files)]
    done = warm.run(command, place.environment, place.folder)
    assert done.returncode == 0, done.stderr[-2_000:]
    labels = json.loads(done.stdout.splitlines()[-1])
    correct = [
        label == data.classes[data.labels[row]] for label, row in zip(labels, rows, strict=True)
    ]
    assert np.mean(correct) == pytest.approx(run_.data.metrics["val/accuracy"], abs=0.1)
    assert np.mean(correct) > 0.2  # of ten classes


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(("study", "epochs"), [("lenet", "40"), ("classification", "12")])
def test_the_digits_are_learned_to_97_percent(place: Place, study: str, epochs: str) -> None:
    given = {"epochs": epochs, "blocks": "1", "frameworks": "pytorch,tensorflow", "threads": "2"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "experiments",
            study,
            f"--cache={place.cache}",
            f"--journal={place.journal}",
        ]
        + [f"--{name}={value}" for name, value in given.items()],
        env=place.environment,
        cwd=place.folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert {cell.data.tags["framework"] for cell in cells(place)} == {"pytorch", "tensorflow"}
    for cell in cells(place):
        assert max(curve(place, cell, "val/accuracy")) >= 0.97


@pytest.mark.slow
def test_tensorflow_leaves_no_generated_code_in_the_temporary_folder(
    place: Place, tmp_path: Path
) -> None:
    """Neither the gate, nor a cell, nor a server that is killed: autograph wrote a file for each function."""
    environment = {**place.environment, "TMPDIR": str(tmp_path / "temporary")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    (tmp_path / "temporary").mkdir()
    settings = {
        "cache": str(tmp_path / "cache"),
        "journal": str(place.journal),
        **QUICK,
        "blocks": "1",
        "epochs": "1",
    }
    settings |= {"frameworks": "tensorflow,tensorflow+xla,keras-tensorflow", "steps_per_epoch": "8"}
    command = [
        sys.executable,
        "-m",
        "experiments",
        "lenet",
        *(f"--{name}={value}" for name, value in settings.items()),
    ]
    done = subprocess.run(
        command, env=environment, cwd=place.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert generated(tmp_path) == []
    models = mlflow.MlflowClient(place.uri).search_logged_models(["1"])
    (model,) = (one for one in models if one.name == "lenet-tensorflow-block1")
    status, text = served_and_killed(model, environment, tmp_path)
    assert status == 200, text
    assert [one["error"] for one in json.loads(text)["predictions"]] == ["", "image: no base64"]
    assert generated(tmp_path) == []


def generated(folder: Path) -> list[str]:
    return [path.name for path in (folder / "temporary").rglob("*autograph*")]


def served_and_killed(
    model: mlflow.entities.LoggedModel, environment: dict[str, str], folder: Path
) -> tuple[int, str]:
    """The answer to one request of a server that nobody asks to end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "models",
        "serve",
        "-m",
        model.model_uri,
        "--env-manager",
        "local",
        "-p",
        str(port),
    ]
    content = io.BytesIO()
    Image.new("L", (28, 28)).save(content, "PNG")
    rows = [{"image": base64.b64encode(content.getvalue()).decode()}, {"image": "abc"}]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_for(lambda: server.poll() is None and answer(port, "ping")[0] == 200, 240)
        return answer(port, "invocations", {"dataframe_records": rows})
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()

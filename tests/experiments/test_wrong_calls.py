"""Wrong calls and damaged inputs: one line that names the value, exit code 2, no cell."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from experiments import studies
from experiments.cli.codes import WRONG_CALL
from experiments.config.console import Display
from experiments.config.settings import parse
from experiments.run import preparation
from models.errors import ModelError
from tests.conftest import Place
from tests.experiments.conftest import CallHere
from tests.experiments.datasets.folders import kaggle
from tests.experiments.small_campaigns import measure
from tracking.errors import UsageError

NO_GPU = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
QUICK = {"threads": "1", "device": "cpu", "figures": "false"}
TINY = {"size": "tiny", "batch_size": "4", "steps": "9", "models": "deepspeech2"}
OF_STUDY = {
    "captioning": {
        "images": "40",
        "image_size": "32",
        "batch_size": "8",
        "epochs": "2",
        "steps_per_epoch": "4",
        "warmup_steps": "1",
        "data": "scenes",
    },
    "training_speed": TINY,
    "grid": {"models": "mobilenet_v2", "batch_sizes": "1,3", "image_sizes": "64"},
}
# Study -> settings of a call, and the part that the line names.
WRONG = {
    "captioning": [
        ({"data": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"frameworks": "pytorch,tensorfloww"}, "did you mean tensorflow"),
        ({"preset": "coco-paper", "data": ""}, "data=FOLDER"),
        ({"preset": "huge"}, "have demo"),
        ({"batchsize": "3"}, "did you mean batch_size?"),
        ({"batch_size": "100000"}, "batch_size=100000"),
        ({"steps_per_epoch": "100000"}, "steps_per_epoch=100000"),
        ({"warmup_steps": "8"}, "warmup_steps=8"),
        ({"timing": "free", "window_steps": "9"}, "window_steps=9"),
        ({"cache": "/proc/cache"}, "/proc/cache"),
        ({"journal": "/proc/journal"}, "/proc/journal"),
        ({"weights": "/no/such/file.pth"}, "/no/such/file.pth"),
        ({"weights": "/etc/hostname"}, ".safetensors"),
        ({"fail_if": "slow"}, "fail_if=slow"),
        ({"fail_if": "slower:throughputs"}, "fail_if=slower:throughputs"),
    ],
    "classification": [
        ({"model": "resnet19"}, "did you mean resnet18"),
        ({"model": "caption_decoder"}, "model=caption_decoder"),
        ({"model": "inception_v3"}, "75"),
        ({"data": "/nowhere"}, "data=/nowhere"),
        ({"preset": "original"}, "data=FOLDER"),
        ({"augmentation": "crop+mirror"}, "digits"),
        ({"momentum": "0.9"}, "sgd"),
        ({"batch_size": "2000"}, "batch_size=2000"),
        ({"thresholds": "97"}, "thresholds=97.0"),
        ({"aa": "true", "input": "memory,stream"}, "controls"),
    ],
    "grid": [
        ({"models": "lenet"}, "28"),
        ({"models": "caption_decoder"}, "models=caption_decoder"),
        ({"models": "resnet18", "image_sizes": "32", "batch_sizes": "1"}, "fewer than 2 images"),
        ({"least_steps": "4"}, "least_steps=4"),
        ({"phases": "training"}, "phases=training"),
        ({"memory_limit": "much"}, "memory_limit=much"),
    ],
    "training_speed": [
        ({"models": "deepspeech3"}, "deepspeech3"),
        ({"frameworks": "pytorch,keras-torch"}, "ctc=scan"),
        ({"models": "mobilenet_v2", "batch_size": "1"}, "batch_size=1"),
        ({"data": "/nowhere"}, "data"),
        ({"graph_off": "folding"}, "graph_off=folding"),
        ({"graph_off": "pruning"}, "frameworks=tensorflow"),
        ({"models": "resnet18", "lstm": "cells"}, "models=resnet18"),
        ({"models": "bert", "lstm": "cells"}, "models=bert"),
        ({"lstm": "cudnn"}, "lstm=cudnn"),
        ({"lstm": "block-v2"}, "not in pytorch"),
        ({"lstm": "block", "precision": "bfloat16"}, "precision=float32"),
    ],
}


@pytest.mark.parametrize(
    ("study", "options", "part"),
    [(study, options, part) for study, calls in WRONG.items() for options, part in calls],
)
def test_line_names_the_value(
    study: str,
    options: dict[str, str],
    part: str,
    tmp_path: Path,
    shared_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    module = studies.load(study)
    folders = {"cache": str(shared_cache), "journal": str(tmp_path / "journal")}
    texts = {**QUICK, **OF_STUDY.get(study, {}), **folders, **options}
    with pytest.raises((UsageError, ModelError)) as error:
        preparation.prepare_data(study, parse(module.settings, module.presets, texts), Display())
    assert part in str(error.value)
    assert str(error.value).isprintable()
    assert not list((tmp_path / "journal").glob("*/*"))


@pytest.fixture
def refuse(place: Place, call_here: CallHere) -> Callable[..., None]:
    def assert_refused(*parts: str, uri: str = place.uri, **options: str) -> None:
        done = call_here(*place.command("captioning", **options)[3:], uri=uri)
        assert done.returncode == WRONG_CALL, done.stdout
        (line,) = done.stderr.splitlines()
        assert [part for part in parts if part not in line] == []
        assert not list(place.journal.glob("*/records.jsonl"))

    return assert_refused


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        pytest.param({"device": "cuda", "frameworks": "toy"}, ["cuda"], marks=NO_GPU),
        ({"resume": "last"}, ["last"]),
        ({"uri": "http://127.0.0.1:9"}, ["http://127.0.0.1:9"]),
        ({"uri": "mlruns"}, ["mlruns", "sqlite:///mlflow.db"]),
        ({"uri": "mysql://user@localhost/name"}, ["mysql://user@", "sqlite:///mlflow.db"]),
    ],
)
def test_what_is_missing_is_named_within_a_minute(
    refuse: Callable[..., None], options: dict[str, str], parts: list[str]
) -> None:
    began = time.monotonic()
    refuse(*parts, **options)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(("name", "size"), [("captions.txt", 14), ("Images/3.jpg", 200)])
def test_truncated_data(refuse: Callable[..., None], tmp_path: Path, name: str, size: int) -> None:
    folder = kaggle(tmp_path / "data", images=30)
    os.truncate(folder / name, size)
    refuse(Path(name).name, data=str(folder))


def test_weights_that_cannot_be_loaded(
    refuse: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"layer1.0.conv1.weight": np.zeros((4, 4, 3, 3), np.float32)}, path)
    refuse("densenet201", weights=str(path), frameworks="toy")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nothing listens there
    refuse("c1103571.pth", "weights=random", weights="imagenet", frameworks="toy")


@pytest.mark.usefixtures("local_cells")
def test_broken_pictures_in_a_large_set_are_left_out_and_listed(place: Place) -> None:
    data = kaggle(place.folder / "data", images=120)
    (data / "Images" / "7.jpg").write_text("not a picture")
    measure(place, data=str(data), frameworks="toy", blocks="1", images="40")
    paths = place.folder.glob("mlruns/*/*/artifacts/broken_images.json")
    assert any("7.jpg" in path.read_text() for path in paths)

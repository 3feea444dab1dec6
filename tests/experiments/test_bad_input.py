"""Every wrong call: one line that says what, where and what would be right; exit code 2; no traceback; nothing measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from tests.conftest import Place


def kaggle(folder: Path, images: int = 30) -> Path:
    (folder / "Images").mkdir(parents=True)
    rows = ["image,caption"]
    for number in range(images):
        Image.new("RGB", (40, 40), (number * 8, 90, 90)).save(folder / "Images" / f"{number}.jpg")
        rows += [f"{number}.jpg,brown dog number {number} runs"] * 2
    (folder / "captions.txt").write_text("\n".join(rows))
    return folder


def empty_captions(folder: Path) -> str:
    (kaggle(folder) / "captions.txt").write_text("image,caption\n")
    return str(folder)


def truncated_image(folder: Path) -> str:
    picture = kaggle(folder) / "Images" / "3.jpg"
    picture.write_bytes(picture.read_bytes()[:200])
    return str(folder)


def missing_image(folder: Path) -> str:
    (kaggle(folder) / "Images" / "3.jpg").unlink()
    return str(folder)


def text_as_image(folder: Path) -> str:
    (kaggle(folder) / "Images" / "3.jpg").write_text("not a picture")
    return str(folder)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (empty_captions, "captions.txt"),
        (truncated_image, "3.jpg"),
        (missing_image, "3.jpg: missing"),
        (text_as_image, "3.jpg: not an image"),
    ],
)
def test_bad_data(place: Place, make: Callable[[Path], str], message: str) -> None:
    refused(place, message, data=make(place.folder / "data"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": "/nowhere/at/all"}, "no folder /nowhere/at/all"),
        ({"data": "."}, "captions.txt"),
        ({"frameworks": "pytorch,tensorfloww"}, "no framework 'tensorfloww'; did you mean tensorflow"),
        ({"preset": "coco-paper"}, "preset=coco-paper needs its data: data=FOLDER"),
        ({"preset": "huge"}, "no preset 'huge'; have demo"),
        ({"batchsize": "3"}, "no setting 'batchsize'; did you mean batch_size?"),
        ({"batch_size": "100000"}, "batch_size=100000 is more than the"),
        ({"steps_per_epoch": "100000"}, "steps_per_epoch=100000 is more than"),
        ({"warmup_steps": "8"}, "warmup_steps=8 leaves none of the 8 steps to be measured"),
        ({"warmup_steps": "8"}, "at most 7, or more epochs or a smaller batch_size"),
        ({"timing": "freely"}, "timing=freely is not known; choose auto, step, free, both"),
        ({"timing": "free", "window_steps": "0"}, "window_steps=0 is too small; at least 1"),
        ({"timing": "free", "window_steps": "9"}, "window_steps=9: a window is longer than the"),
        ({"device": "cuda"}, "device=cuda: no NVIDIA GPU"),
        ({"device": "tpu"}, "device=tpu is not known; choose auto, cpu, cuda"),
        ({"cache": "/proc/cache"}, "cannot write in /proc/cache"),
        ({"journal": "/proc/journal"}, "cannot write in /proc/journal"),
        ({"weights": "/no/such/file.pth"}, "/no/such/file.pth"),
        ({"weights": "/etc/hostname"}, "ending in .safetensors"),
        ({"autolog": "mlflow"}, "autolog=mlflow records a framework's own fit"),
        ({"resume": "last"}, "no campaign of captioning has its journal"),
    ],
)
def test_bad_settings(place: Place, given: dict[str, str], message: str) -> None:
    refused(place, message, **given)


def test_weights_of_another_architecture(place: Place) -> None:
    path = place.folder / "other.safetensors"
    save_file({"layer1.0.conv1.weight": np.zeros((4, 4, 3, 3), np.float32)}, path)
    refused(place, "not a densenet201", weights=str(path), frameworks="toy")


def test_a_server_that_is_down(place: Place) -> None:
    gone = Place(place.folder, place.cache, "http://127.0.0.1:9")
    began = time.monotonic()
    refused(gone, "http://127.0.0.1:9 cannot be used: [Errno 111] Connection refused; set MLFLOW_TRACKING_URI")
    assert time.monotonic() - began < 60


def test_imagenet_weights_that_cannot_be_had(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(place.folder))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nothing listens on discard: refused at once, everywhere
    refused(place, "use weights=random or the path of a local file", weights="imagenet", frameworks="toy")


def test_broken_pictures_in_a_large_set_are_left_out_and_listed(place: Place) -> None:
    data = kaggle(place.folder / "data", images=120)
    (data / "Images" / "7.jpg").write_text("not a picture")
    done = place.run(data=str(data), frameworks="toy", blocks="1", images="40")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "1 pictures cannot be read and are left out" in done.stdout
    listed = [path.read_text() for path in place.folder.glob("mlruns/*/*/artifacts/broken_images.json")]
    assert any("7.jpg" in text for text in listed)


def refused(place: Place, message: str, **given: str) -> None:
    done = place.run(**given)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not list(place.journal.glob("*/records.jsonl")) if place.journal.exists() else True

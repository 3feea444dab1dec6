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


def test_weights_of_another_architecture(place: Place) -> None:
    path = place.folder / "other.safetensors"
    save_file({"layer1.0.conv1.weight": np.zeros((4, 4, 3, 3), np.float32)}, path)
    refused(place, "not a densenet201", weights=str(path), frameworks="toy")


def test_a_server_that_is_down(place: Place) -> None:
    gone = Place(place.folder, place.cache, "http://127.0.0.1:9")
    began = time.monotonic()
    refused(
        gone,
        "http://127.0.0.1:9 cannot be used: [Errno 111] Connection refused; set MLFLOW_TRACKING_URI",
    )
    assert time.monotonic() - began < 60


def test_imagenet_weights_that_cannot_be_had(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(place.folder))
    monkeypatch.setenv(
        "https_proxy", "http://127.0.0.1:9"
    )  # nothing listens on discard: refused at once, everywhere
    refused(
        place,
        "use weights=random or the path of a local file",
        weights="imagenet",
        frameworks="toy",
    )


def test_broken_pictures_in_a_large_set_are_left_out_and_listed(place: Place) -> None:
    data = kaggle(place.folder / "data", images=120)
    (data / "Images" / "7.jpg").write_text("not a picture")
    done = place.run(data=str(data), frameworks="toy", blocks="1", images="40")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "1 pictures cannot be read and are left out" in done.stdout
    listed = [
        path.read_text() for path in place.folder.glob("mlruns/*/*/artifacts/broken_images.json")
    ]
    assert any("7.jpg" in text for text in listed)


def refused(place: Place, message: str, **given: str) -> None:
    done = place.run(**given)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not list(place.journal.glob("*/records.jsonl")) if place.journal.exists() else True

"""Damaged data, weights and servers: exit code 2, one line, nothing measured."""

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


def assert_refused(place: Place, part: str, **options: str) -> None:
    done = place.run(**options)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stdout + done.stderr
    assert part in done.stderr
    assert not list(place.journal.glob("*/records.jsonl"))


def empty_captions(folder: Path) -> None:
    (folder / "captions.txt").write_text("image,caption\n")


def truncate_image(folder: Path) -> None:
    path = folder / "Images" / "3.jpg"
    path.write_bytes(path.read_bytes()[:200])


@pytest.mark.parametrize(
    ("damage", "part"), [(empty_captions, "captions.txt"), (truncate_image, "3.jpg")]
)
def test_damaged_data(place: Place, damage: Callable[[Path], None], part: str) -> None:
    folder = kaggle(place.folder / "data")
    damage(folder)
    assert_refused(place, part, data=str(folder))


def test_weights_of_another_architecture(place: Place) -> None:
    path = place.folder / "other.safetensors"
    save_file({"layer1.0.conv1.weight": np.zeros((4, 4, 3, 3), np.float32)}, path)
    assert_refused(place, "densenet201", weights=str(path), frameworks="toy")


def test_unreachable_server(place: Place) -> None:
    unreachable = Place(place.folder, place.cache, "http://127.0.0.1:9")
    began = time.monotonic()
    assert_refused(unreachable, "http://127.0.0.1:9")
    assert time.monotonic() - began < 60


def test_imagenet_weights_without_a_network(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(place.folder))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nothing listens there
    assert_refused(place, "weights=random", weights="imagenet", frameworks="toy")


def test_broken_pictures_in_a_large_set_are_left_out_and_listed(place: Place) -> None:
    data = kaggle(place.folder / "data", images=120)
    (data / "Images" / "7.jpg").write_text("not a picture")
    done = place.run(data=str(data), frameworks="toy", blocks="1", images="40")
    assert done.returncode == 3, done.stdout + done.stderr
    (path,) = place.folder.glob("mlruns/*/*/artifacts/broken_images.json")
    assert "7.jpg" in path.read_text()

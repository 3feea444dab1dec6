"""Labelled images from small files in the real formats, and what is said of those that are not."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from experiments.datasets.labelled import batches
from experiments.datasets.labelled.data import Labelled, prepare
from tests.models.children import run_python
from tracking.errors import WrongCall

RNG = np.random.default_rng(0)


def prepared(source: Path | str, cache: Path, side: int = 28, channels: int = 1) -> Labelled:
    return prepare(str(source), side=side, channels=channels, cache=cache, progress=lambda *_: None)


def write_idx(path: Path, array: np.ndarray, kind: int = 0x08) -> None:
    data = struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_mnist(folder: Path, ending: str = ".gz", train: int = 30, test: int = 10) -> tuple[np.ndarray, np.ndarray]:
    images, labels = RNG.integers(0, 256, (train + test, 28, 28), np.uint8), RNG.integers(0, 10, train + test).astype(np.uint8)
    labels[:10] = range(10)
    for name, part in (("train", slice(0, train)), ("t10k", slice(train, None))):
        write_idx(folder / f"{name}-images-idx3-ubyte{ending}", images[part])
        write_idx(folder / f"{name}-labels-idx1-ubyte{ending}", labels[part])
    return images, labels


def write_cifar(folder: Path, batch: int = 8) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    data = RNG.integers(0, 256, (6 * batch, 3072), np.uint8)
    labels = np.arange(6 * batch) % 10
    for number, name in enumerate([*(f"data_batch_{at}" for at in range(1, 6)), "test_batch"]):
        part = slice(number * batch, (number + 1) * batch)
        content = {b"batch_label": b"some", b"labels": labels[part].tolist(), b"data": data[part], b"filenames": []}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    names = {b"label_names": [b"airplane", b"automobile", *[f"c{at}".encode() for at in range(2, 10)]]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names, protocol=2))
    return data, labels


def write_pictures(folder: Path, count: int = 7, size: tuple[int, int] = (40, 30)) -> None:
    for colour, name in enumerate(("cat", "dog", "emu")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for at in range(count):
            Image.new("RGB", size, (80 * colour, 10 * at, 128)).save(folder / name / f"{at}.png")


def test_the_embedded_digits(tmp_path: Path) -> None:
    data = prepared("digits", tmp_path)
    assert (data.name, data.images.shape, data.classes) == ("digits", (1797, 28, 28, 1), tuple("0123456789"))
    assert len(data.training) + len(data.validation) == 1797
    assert 0.14 < len(data.validation) / 1797 < 0.16
    held = np.bincount(data.labels[data.validation], minlength=10) / np.bincount(data.labels)
    assert held.min() > 0.13  # of every class alike
    again = prepared("digits", tmp_path)
    assert (again.digest, again.folder) == (data.digest, data.folder)
    assert prepared("digits", tmp_path, 32, 3).digest != data.digest


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_mnist_as_published(tmp_path: Path, ending: str) -> None:
    images, labels = write_mnist(tmp_path, ending)
    data = prepared(tmp_path, tmp_path / "cache")
    assert data.name == "mnist"
    np.testing.assert_array_equal(data.images[..., 0], images)
    np.testing.assert_array_equal(data.labels, labels)
    assert (data.training.tolist(), data.validation.tolist()) == (list(range(30)), list(range(30, 40)))
    pixels = images[:30] / 255
    assert data.mean == pytest.approx([pixels.mean()], abs=1e-6)
    assert data.deviation == pytest.approx([pixels.std()], abs=1e-6)


def test_mnist_as_keras_keeps_it(tmp_path: Path) -> None:
    arrays = {"x_train": (20, 28, 28), "y_train": (20,), "x_test": (5, 28, 28), "y_test": (5,)}
    drawn = {name: RNG.integers(0, 10, shape).astype(np.uint8) for name, shape in arrays.items()}
    np.savez(tmp_path / "mnist.npz", **drawn)
    for source in (tmp_path, tmp_path / "mnist.npz"):
        data = prepared(source, tmp_path / "cache")
        np.testing.assert_array_equal(data.images[:20, ..., 0], drawn["x_train"])
        assert len(data.validation) == 5


@pytest.mark.parametrize("inside", [True, False])
def test_cifar_as_published(tmp_path: Path, inside: bool) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    rows, labels = write_cifar(folder)
    data = prepared(tmp_path if inside else folder, tmp_path / "cache", 32, 3)
    assert data.images.shape == (48, 32, 32, 3)
    assert data.images[7, 2, 5].tolist() == rows[7].reshape(3, 32, 32)[:, 2, 5].tolist()  # planes become channels
    np.testing.assert_array_equal(data.labels, labels)
    assert data.classes[:2] == ("airplane", "automobile")
    assert data.validation.tolist() == list(range(40, 48))


def test_folders_named_after_classes(tmp_path: Path) -> None:
    write_pictures(tmp_path / "some")
    data = prepared(tmp_path / "some", tmp_path / "cache", 16, 3)
    assert (data.name, data.classes, data.images.shape) == ("some", ("cat", "dog", "emu"), (21, 16, 16, 3))
    assert data.images[8].reshape(-1, 3).tolist() == [[80, 10, 128]] * 256
    assert len(data.validation) == 3
    write_pictures(tmp_path / "own" / "train")
    write_pictures(tmp_path / "own" / "val", 2)
    own = prepared(tmp_path / "own", tmp_path / "cache", 16, 3)
    assert (len(own.training), len(own.validation)) == (21, 6)
    assert own.labels[own.validation].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_broken_picture_is_left_out_and_named(tmp_path: Path) -> None:
    write_pictures(tmp_path / "some")
    (tmp_path / "some" / "dog" / "3.png").write_bytes(b"no picture")
    data = prepared(tmp_path / "some", tmp_path / "cache", 16, 3)
    used = sorted([*data.training, *data.validation])
    assert used == [row for row in range(21) if row != 7 + 3]  # the broken one is in neither part
    assert data.left_out == (f"{tmp_path}/some/dog/3.png: not an image",)
    for name in "0245":
        (tmp_path / "some" / "cat" / f"{name}.png").write_bytes(b"no picture")
    with pytest.raises(WrongCall, match=r"5 of 21 pictures cannot be read, the first .*cat/0.png: not an image"):
        prepared(tmp_path / "some", tmp_path / "cache", 16, 3)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run by a data file",))


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cifar(tmp_path)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps({b"data": Evil()}))
    with pytest.raises(WrongCall, match=r"data_batch_2: is no batch of CIFAR-10: it asks for builtins.print"):
        prepared(tmp_path, tmp_path / "cache", 32, 3)
    assert "run by a data file" not in capsys.readouterr().out


def _cut(folder: Path) -> None:
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-5])


def _gzip_cut(folder: Path) -> None:
    data = (folder / "train-images-idx3-ubyte").read_bytes()
    (folder / "train-images-idx3-ubyte").unlink()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(data)[:-20])


def _other_kind(folder: Path) -> None:
    write_idx(folder / "train-images-idx3-ubyte", np.zeros((2, 28, 28), np.float64), 0x0E)


def _fewer_labels(folder: Path) -> None:
    write_idx(folder / "train-labels-idx1-ubyte", np.zeros(3, np.uint8))


def _one_missing(folder: Path) -> None:
    (folder / "t10k-labels-idx1-ubyte").unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_cut, "train-images-idx3-ubyte: is cut off or too long: 23,515 bytes for 30 × 28 × 28 values"),
        (_gzip_cut, "train-images-idx3-ubyte.gz: cannot be read: "),
        (_other_kind, "train-images-idx3-ubyte: is no idx file of bytes: it begins with 00 00 0e 03"),
        (_fewer_labels, r"images and labels do not belong together: images \(30, 28, 28\), labels \(3,\)"),
        (_one_missing, r"t10k-labels-idx1-ubyte\[.gz\] is missing"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, damage: Any, said: str) -> None:
    write_mnist(tmp_path, "")
    damage(tmp_path)
    with pytest.raises(WrongCall, match=said):
        prepared(tmp_path, tmp_path / "cache")


def test_what_is_no_data_set_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match=r"no known data set there; looked for MNIST .*; CIFAR-10 .*; folders of pictures"):
        prepared(tmp_path, tmp_path / "cache")
    with pytest.raises(WrongCall, match="there is no such file or folder; or take data=digits"):
        prepared(tmp_path / "nothing", tmp_path / "cache")
    write_pictures(tmp_path / "own" / "train")
    write_pictures(tmp_path / "own" / "val")
    (tmp_path / "own" / "val" / "fox").mkdir()
    with pytest.raises(WrongCall, match="val has the class 'fox', which train has not"):
        prepared(tmp_path / "own", tmp_path / "cache", 16, 3)


# ---- batches


def test_batches_are_normalised_and_the_last_is_filled_up(tmp_path: Path) -> None:
    data = prepared("digits", tmp_path)
    found = list(batches.read(data, batches.files(data, data.training[:70], 32)))
    assert [int(batch.weights.sum()) for batch in found] == [32, 32, 6]
    assert {batch.inputs[0].shape for batch in found} == {(32, 28, 28, 1)}
    assert found[0].inputs[0].dtype == np.float32
    everything = np.concatenate([one.inputs[0] for one in batches.read(data, batches.files(data, data.training, 1_600))])
    assert everything[: len(data.training)].mean() == pytest.approx(0, abs=1e-4)
    assert everything[: len(data.training)].std() == pytest.approx(1, abs=1e-4)


def test_crops_and_mirrors_are_what_they_say(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    data = prepared(tmp_path, tmp_path / "cache", 32, 3)
    wanted = batches.files(data, data.training, 40, "crop+mirror", np.random.default_rng(1))
    assert wanted.mirrored.any()
    assert not wanted.mirrored.all()
    assert (wanted.shifts.min(), wanted.shifts.max()) == (0, 8)
    (batch,) = batches.read(data, wanted)
    back = np.round((batch.inputs[0] * data.deviation + data.mean) * 255).astype(np.uint8)
    for row, image in enumerate(back):
        padded = np.pad(data.images[data.training[row]], ((4, 4), (4, 4), (0, 0)))
        top, left = wanted.shifts[row]
        window = padded[top : top + 32, left : left + 32]
        np.testing.assert_array_equal(image, window[:, ::-1] if wanted.mirrored[row] else window)


NATIVE = """
import sys
from pathlib import Path
import numpy as np
from experiments.datasets.labelled import batches
from experiments.datasets.labelled.data import Labelled
from models.frameworks import open_framework
framework = open_framework(sys.argv[1], device="cpu", threads=1, precision="float32", seed=0)
data = Labelled.open(Path(sys.argv[2]))
wanted = batches.files(data, data.training[::-1], 16, "crop+mirror", np.random.default_rng(1))
expected = list(batches.read(data, wanted))[:2]
for workers in (0, 2):
    found = list(framework.read(wanted, workers))
    assert len(found) == 2, len(found)  # whole batches of 40 images
    for a, b in zip(expected, found):
        np.testing.assert_allclose(a.inputs[0], np.asarray(b.inputs[0]), rtol=0, atol=1e-6)
        np.testing.assert_array_equal(a.targets, np.asarray(b.targets))
        assert a.targets.dtype == np.asarray(b.targets).dtype
"""


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_the_frameworks_own_pipelines_read_the_same(tmp_path: Path, framework: str) -> None:
    write_cifar(tmp_path)
    data = prepared(tmp_path, tmp_path / "cache", 32, 3)
    run_python("-c", NATIVE, framework, str(data.folder))

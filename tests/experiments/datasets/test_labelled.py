"""Labelled images from small files in the real formats, and refused files."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits as sklearn_digits

from experiments.datasets.labelled import batches, cifar10
from experiments.datasets.labelled.data import Labelled, prepare
from experiments.datasets.labelled.digits import load_digits
from tests.experiments.datasets.folders import refused
from tracking.errors import ErrorCode

RNG = np.random.default_rng(0)


def prepared(source: Path | str, cache: Path, side: int = 28, channels: int = 1) -> Labelled:
    return prepare(str(source), side=side, channels=channels, cache=cache, progress=lambda *_: None)


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    data = header + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_mnist(
    folder: Path, ending: str = ".gz", train: int = 30, test: int = 10
) -> tuple[np.ndarray, np.ndarray]:
    images = RNG.integers(0, 256, (train + test, 28, 28), np.uint8)
    labels = RNG.integers(0, 10, train + test).astype(np.uint8)
    labels[:10] = range(10)
    for name, part in (("train", slice(0, train)), ("t10k", slice(train, None))):
        write_idx(folder / f"{name}-images-idx3-ubyte{ending}", images[part])
        write_idx(folder / f"{name}-labels-idx1-ubyte{ending}", labels[part])
    return images, labels


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined]
    """Pickler of the strings of Python 2, in which CIFAR's authors wrote their files."""

    dispatch: ClassVar[Any] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, value: bytes | str) -> None:
        data = value if isinstance(value, bytes) else value.encode()
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string


def python2_pickle(value: Any) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, 2).dump(value)
    return file.getvalue()


def write_cifar(
    folder: Path, batch: int = 8, dumps: Callable[[Any], bytes] = pickle.dumps
) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    data = RNG.integers(0, 256, (6 * batch, 3072), np.uint8)
    labels = np.arange(6 * batch) % 10
    for number, name in enumerate([*(f"data_batch_{at}" for at in range(1, 6)), "test_batch"]):
        part = slice(number * batch, (number + 1) * batch)
        content = {b"labels": labels[part].tolist(), b"data": data[part], b"filenames": []}
        (folder / name).write_bytes(dumps(content))
    names = [b"airplane", b"automobile", *[f"c{at}".encode() for at in range(2, 10)]]
    (folder / "batches.meta").write_bytes(dumps({b"label_names": names}))
    return data, labels


def write_pictures(folder: Path, count: int = 7, size: tuple[int, int] = (40, 30)) -> None:
    for colour, name in enumerate(("cat", "dog", "emu")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for at in range(count):
            Image.new("RGB", size, (80 * colour, 10 * at, 128)).save(folder / name / f"{at}.png")


# ---- published forms


def test_digits_are_those_of_scikit_learn(tmp_path: Path) -> None:
    images, targets = load_digits()
    expected = sklearn_digits()
    np.testing.assert_array_equal(images, np.round(expected.images * 255 / 16))
    np.testing.assert_array_equal(targets, expected.target)
    data = prepared("digits", tmp_path)
    assert (data.name, data.images.shape) == ("digits", (1797, 28, 28, 1))
    assert list(data.classes) == list("0123456789")
    assert len(data.training) + len(data.validation) == 1797
    shares = np.bincount(data.labels[data.validation], minlength=10) / np.bincount(data.labels)
    assert 0.13 < shares.min() <= shares.max() < 0.17
    assert prepared("digits", tmp_path).folder == data.folder
    assert prepared("digits", tmp_path, 32, 3).digest != data.digest


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_mnist_is_read_as_published(tmp_path: Path, ending: str) -> None:
    images, labels = write_mnist(tmp_path, ending)
    data = prepared(tmp_path, tmp_path / "cache")
    assert data.name == "mnist"
    np.testing.assert_array_equal(data.images[..., 0], images)
    np.testing.assert_array_equal(data.labels, labels)
    assert [*data.training, *data.validation] == list(range(40))
    pixels = images[:30] / 255
    assert data.mean == pytest.approx([pixels.mean()], abs=1e-6)
    assert data.deviation == pytest.approx([pixels.std()], abs=1e-6)


def test_mnist_is_read_as_keras_stores_it(tmp_path: Path) -> None:
    images = write_npz(tmp_path / "mnist")
    for source in (tmp_path / "mnist", tmp_path / "mnist" / "mnist.npz"):
        data = prepared(source, tmp_path / "cache", 6)
        np.testing.assert_array_equal(data.images[:4, ..., 0], images)
        assert len(data.validation) == 4


@pytest.mark.parametrize(("inside", "dumps"), [(True, python2_pickle), (False, pickle.dumps)])
def test_cifar_is_read_as_published(
    tmp_path: Path, inside: bool, dumps: Callable[[Any], bytes]
) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    rows, labels = write_cifar(folder, dumps=dumps)
    data = prepared(tmp_path if inside else folder, tmp_path / "cache", 32, 3)
    planes = rows.reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(data.images, planes.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(data.labels, labels)
    assert list(data.classes[:2]) == ["airplane", "automobile"]
    assert data.validation.tolist() == list(range(40, 48))


def test_folders_are_named_after_classes(tmp_path: Path) -> None:
    write_pictures(tmp_path / "some")
    data = prepared(tmp_path / "some", tmp_path / "cache", 16, 3)
    assert (data.name, data.images.shape) == ("some", (21, 16, 16, 3))
    assert list(data.classes) == ["cat", "dog", "emu"]
    assert data.images[8].reshape(-1, 3).tolist() == [[80, 10, 128]] * 256
    assert len(data.validation) == 3
    write_pictures(tmp_path / "split" / "train")
    write_pictures(tmp_path / "split" / "val", 2)
    data = prepared(tmp_path / "split", tmp_path / "cache", 16, 3)
    assert (len(data.training), len(data.validation)) == (21, 6)
    assert data.labels[data.validation].tolist() == [0, 0, 1, 1, 2, 2]


def test_broken_pictures_are_left_out_up_to_a_share(tmp_path: Path) -> None:
    write_pictures(tmp_path / "some")
    (tmp_path / "some" / "dog" / "3.png").write_bytes(b"no picture")
    data = prepared(tmp_path / "some", tmp_path / "cache", 16, 3)
    assert sorted([*data.training, *data.validation]) == [row for row in range(21) if row != 10]
    (line,) = data.left_out
    assert line.startswith(f"{tmp_path}/some/dog/3.png: ")
    for name in "0245":
        (tmp_path / "some" / "cat" / f"{name}.png").write_bytes(b"no picture")
    values = ("5 of 21", "cat/0.png")
    check_refused(tmp_path / "some", ErrorCode.UNREADABLE, *values, side=16, channels=3)


# ---- refused files: bounds before memory, nothing silently wrong


def check_refused(
    source: Path, code: ErrorCode, *values: str, side: int = 28, channels: int = 1
) -> None:
    """Check that a data set is refused, in less than 64 MiB."""
    tracemalloc.start()
    try:
        with refused(code, *values):
            prepared(source, source.parent / "cache", side, channels)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_unknown_data_sets_are_refused_with_the_known_formats(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    formats = ("CIFAR-10", "MNIST", "folders of pictures")
    check_refused(tmp_path / "empty", ErrorCode.NOT_FOUND, *formats)
    check_refused(tmp_path / "nothing", ErrorCode.NOT_FOUND, "data=digits")
    write_pictures(tmp_path / "split" / "train")
    write_pictures(tmp_path / "split" / "val")
    (tmp_path / "split" / "val" / "fox").mkdir()
    check_refused(tmp_path / "split", ErrorCode.CONFLICT, "val", "'fox'")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run by a data file",))


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({b"data": Evil()}),
        b"\x80\2r\xff\xff\xff\x7f.",
        b"\x80\2cnumpy\nndarray\n(J\0\0\0\x40J\0\x10\0\0t\x85R.",
        # a key of 2⁶⁰ tuples: Python hashes a tuple again at every visit
        b"\x80\2})" + b"".join(b"q%c0h%ch%c\x86" % (at, at, at) for at in range(60)) + b"K\1s.",
        b"\x80\2})" + b"\x85" * 500_000 + b"K\0s.",
    ],
    ids=["program", "memo of 2³¹ entries", "4 TiB", "endless hash", "deep hash"],
)
def test_hostile_pickles_run_nothing_in_bounded_memory_and_time(
    tmp_path: Path,
    content: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cifar10, "CPU_SECONDS", 1)
    write_cifar(tmp_path / "cifar")
    (tmp_path / "cifar" / "data_batch_2").write_bytes(content)
    check_refused(tmp_path / "cifar", ErrorCode.UNREADABLE, "cifar", side=32, channels=3)
    assert "run by a data file" not in capfd.readouterr().out


ROWS = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    ("content", "code", "values"),
    [
        ({b"labels": [0, 10**9]}, ErrorCode.INVALID_VALUE, ["1000000000", "picture 2", "999"]),
        ({b"labels": [0, "cat"]}, ErrorCode.UNREADABLE, ["labels"]),
        ({b"labels": [0, 2**80]}, ErrorCode.INVALID_VALUE, ["1208925819614629174706176"]),
        ({b"data": ROWS + np.int64(300)}, ErrorCode.INVALID_VALUE, ["300 to 300", "0 … 255"]),
        ({b"data": ROWS[:, :3000]}, ErrorCode.UNREADABLE, ["3,072"]),
        ({b"data": ROWS[:0], b"labels": []}, ErrorCode.TOO_FEW, ["0 × 3072"]),
        ({b"label_names": [b"a\0b"]}, ErrorCode.INVALID_VALUE, []),
        ({b"label_names": [b""]}, ErrorCode.INVALID_VALUE, []),
        ({b"label_names": [b"a", b"a"]}, ErrorCode.INVALID_VALUE, []),
        ({b"label_names": [b"\xe9"]}, ErrorCode.INVALID_VALUE, []),
        ({b"label_names": None}, ErrorCode.UNREADABLE, []),
    ],
)
def test_impossible_batches_of_cifar_are_refused(
    tmp_path: Path, content: dict[bytes, Any], code: ErrorCode, values: list[str]
) -> None:
    has_names = b"label_names" in content
    path = tmp_path / (cifar10.NAMES if has_names else "data_batch_2")
    path.write_bytes(pickle.dumps({b"data": ROWS, b"labels": [0, 1], **content}))
    with refused(code, path.name, *values):
        (cifar10.read_names if has_names else cifar10.read_batch)(path)


def test_fewer_class_names_than_labels_are_refused(tmp_path: Path) -> None:
    write_cifar(tmp_path / "cifar")
    names = {b"label_names": [b"cat", b"dog"]}
    (tmp_path / "cifar" / cifar10.NAMES).write_bytes(pickle.dumps(names))
    values = (cifar10.NAMES, "2 classes", "label 9")
    check_refused(tmp_path / "cifar", ErrorCode.CONFLICT, *values, side=32, channels=3)


def test_small_gz_does_not_unpack_to_gigabytes(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    with gzip.open(tmp_path / "train-images-idx3-ubyte.gz", "wb", 1) as file:
        file.write(struct.pack(">BBBB3I", 0, 0, 8, 3, 200_000, 28, 28))
        for _ in range(200):
            file.write(bytes(784_000))
    values = ("train-images-idx3-ubyte.gz", "156,800,016", "100")
    check_refused(tmp_path, ErrorCode.TOO_LARGE, *values)


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("sizes", "code"),
    [
        ((30, 28, 28), ErrorCode.UNREADABLE),  # cut off
        ((2**31, 2**31, 4), ErrorCode.UNREADABLE),  # 2⁶⁴ values, which is 0 in 64 bits
        ((2**32 - 1, 28, 28), ErrorCode.UNREADABLE),
        ((30, 0, 28), ErrorCode.TOO_FEW),
    ],
)
def test_sizes_of_idx_files_are_not_believed(
    tmp_path: Path, ending: str, sizes: tuple[int, ...], code: ErrorCode
) -> None:
    write_mnist(tmp_path, ending)
    data = struct.pack(">BBBB3I", 0, 0, 8, 3, *sizes)
    path = tmp_path / f"train-images-idx3-ubyte{ending}"
    path.write_bytes(gzip.compress(data) if ending else data)
    if ending and max(sizes) > 30:
        code = ErrorCode.TOO_LARGE
    check_refused(tmp_path, code, "train" if 0 not in sizes else "30 × 0 × 28")


def write_npz(folder: Path, members: dict[str, bytes] | None = None, **changed: Any) -> np.ndarray:
    """Write MNIST as Keras does; with other arrays, or other bytes of them."""
    folder.mkdir()
    images, labels = RNG.integers(0, 256, (4, 6, 6), np.uint8), np.array([0, 1, 2, 3])
    arrays = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    path = folder / "mnist.npz"
    np.savez_compressed(path, **{**arrays, **changed})
    if members:
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()} | members
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    return images


@pytest.mark.parametrize(
    ("changed", "code", "values"),
    [
        ({"x_train": np.full((4, 5, 6), 7.5)}, ErrorCode.INVALID_VALUE, ["7.5 to 7.5"]),
        ({"x_train": np.full((4, 5, 6), -1)}, ErrorCode.INVALID_VALUE, ["-1 to -1"]),
        ({"x_train": np.full((4, 5, 6), "a")}, ErrorCode.INVALID_VALUE, ["<U1"]),
        ({"x_train": np.full((4, 5, 6), None)}, ErrorCode.UNREADABLE, []),
        ({"x_train": np.zeros((4, 0, 6))}, ErrorCode.TOO_FEW, ["4 × 0 × 6"]),
        ({"y_train": np.array([0, 1, 2, -1])}, ErrorCode.INVALID_VALUE, ["-1", "picture 4"]),
        ({"y_train": np.array([0, 1, np.nan, 3])}, ErrorCode.INVALID_VALUE, ["nan", "picture 3"]),
        ({"y_train": np.arange(5)}, ErrorCode.CONFLICT, ["(4, 6, 6)", "(5,)"]),
    ],
)
def test_impossible_archives_are_refused(
    tmp_path: Path, changed: dict[str, Any], code: ErrorCode, values: list[str]
) -> None:
    write_npz(tmp_path / "mnist", **changed)
    check_refused(tmp_path / "mnist", code, "mnist.npz", *values)


def npy(shape: tuple[int, ...], content: bytes = b"") -> bytes:
    header, fields = io.BytesIO(), {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue() + content


@pytest.mark.parametrize(
    ("member", "code"),
    [
        (npy((10**6, 10**6, 4)), ErrorCode.UNREADABLE),
        (npy((2**32, 2**32, 1)), ErrorCode.UNREADABLE),
        (npy((200_000, 28, 28), bytes(156_800_000)), ErrorCode.TOO_LARGE),
        (b"\x93NUMPY\1\0\xff\xff" + b"(" * 65_535, ErrorCode.UNREADABLE),
        (b"no array", ErrorCode.UNREADABLE),
    ],
    ids=["sizes", "overflow", "bomb", "nested", "text"],
)
def test_headers_inside_an_archive_are_not_believed(
    tmp_path: Path, member: bytes, code: ErrorCode
) -> None:
    write_npz(tmp_path / "mnist", {"x_train.npy": member})
    check_refused(tmp_path / "mnist", code, "mnist.npz")


def write_huge_bitmap(path: str) -> None:
    sizes = (0, 0, 0, 54, 40, 30_000, 30_000, 1, 24, 0, 0, 0, 0, 0, 0)
    Path(path).write_bytes(struct.pack("<2sIHHIIiiHHIIiiII", b"BM", *sizes))


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: os.symlink("/dev/zero", path),
        lambda path: os.symlink("nowhere", path),
        write_huge_bitmap,
        lambda path: Path(path).write_text("none"),
    ],
    ids=["pipe", "device", "link", "huge", "text"],
)
def test_unreadable_pictures_are_left_out_and_named(
    tmp_path: Path, make: Callable[[str], object]
) -> None:
    """Give the file a name with a byte that is not UTF-8, and an escape sequence."""
    write_pictures(tmp_path / "some")
    make(os.fsdecode(os.fsencode(tmp_path) + b"/some/cat/\xe9\x1b[2J.png"))
    (line,) = prepared(tmp_path / "some", tmp_path / "cache", 8, 3).left_out
    assert line.startswith(f"{tmp_path}/some/cat/\\udce9\\x1b[2J.png: ")


def test_class_folder_that_leads_out_is_left_out(tmp_path: Path) -> None:
    """Link to private pictures; a link inside the folder is a class of its own."""
    write_pictures(tmp_path / "some")
    write_pictures(tmp_path / "private")
    before = prepared(tmp_path / "some", tmp_path / "cache", 8, 3)
    (tmp_path / "some" / "ape").symlink_to(tmp_path / "private" / "cat")
    (tmp_path / "some" / "yak").symlink_to("../private/emu")
    (tmp_path / "some" / "zebu").symlink_to("emu")
    (tmp_path / "short").symlink_to("some")
    for name in ("some", "short"):
        data = prepared(tmp_path / name, tmp_path / "cache", 8, 3)
        assert data.classes == [*before.classes, "zebu"]
        folders = [line.partition(": ")[0] for line in data.folders_left_out]
        assert folders == [f"{tmp_path}/{name}/ape", f"{tmp_path}/{name}/yak"]
    (tmp_path / "some" / "zebu").unlink()
    again = prepared(tmp_path / "some", tmp_path / "cache", 8, 3)  # not the first, from the cache
    assert (again.classes, len(again.folders_left_out)) == (before.classes, 2)


# ---- batches


def test_batches_are_normalised_and_the_last_is_filled_up(tmp_path: Path) -> None:
    data = prepared("digits", tmp_path)
    read = list(batches.read(data, batches.files(data, data.training[:70], 32)))
    assert [int(batch.weights.sum()) for batch in read] == [32, 32, 6]
    assert {batch.inputs[0].shape for batch in read} == {(32, 28, 28, 1)}
    assert read[0].inputs[0].dtype == np.float32
    (epoch,) = batches.read(data, batches.files(data, data.training, len(data.training)))
    assert epoch.inputs[0].mean() == pytest.approx(0, abs=1e-4)
    assert epoch.inputs[0].std() == pytest.approx(1, abs=1e-4)

"""Labelled images from small files in the real formats, and refused files."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import sys
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
from experiments.datasets.labelled.digits import load_digits as handwritten
from tests import warm
from tests.models.children import ROOT
from tracking.errors import UsageError

RNG = np.random.default_rng(0)


def prepared(source: Path | str, cache: Path, side: int = 28, channels: int = 1) -> Labelled:
    return prepare(str(source), side=side, channels=channels, cache=cache, progress=lambda *_: None)


def write_idx(path: Path, array: np.ndarray, kind: int = 0x08) -> None:
    data = (
        struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape) + array.tobytes()
    )
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_mnist(
    folder: Path, ending: str = ".gz", train: int = 30, test: int = 10
) -> tuple[np.ndarray, np.ndarray]:
    images, labels = (
        RNG.integers(0, 256, (train + test, 28, 28), np.uint8),
        RNG.integers(0, 10, train + test).astype(np.uint8),
    )
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
        content = {
            b"batch_label": b"some",
            b"labels": labels[part].tolist(),
            b"data": data[part],
            b"filenames": [],
        }
        (folder / name).write_bytes(dumps(content))
    names = {
        b"label_names": [b"airplane", b"automobile", *[f"c{at}".encode() for at in range(2, 10)]]
    }
    (folder / "batches.meta").write_bytes(dumps(names))
    return data, labels


def write_pictures(folder: Path, count: int = 7, size: tuple[int, int] = (40, 30)) -> None:
    for colour, name in enumerate(("cat", "dog", "emu")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for at in range(count):
            Image.new("RGB", size, (80 * colour, 10 * at, 128)).save(folder / name / f"{at}.png")


def test_the_handwritten_digits_are_those_of_scikit_learn() -> None:
    images, targets = handwritten()
    theirs = sklearn_digits()
    np.testing.assert_array_equal(images, np.round(theirs.images * 255 / 16))
    np.testing.assert_array_equal(targets, theirs.target)


def test_the_embedded_digits(tmp_path: Path) -> None:
    data = prepared("digits", tmp_path)
    assert (data.name, data.images.shape, data.classes) == (
        "digits",
        (1797, 28, 28, 1),
        tuple("0123456789"),
    )
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
    assert (data.training.tolist(), data.validation.tolist()) == (
        list(range(30)),
        list(range(30, 40)),
    )
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


@pytest.mark.parametrize(("inside", "dumps"), [(True, python2_pickle), (False, pickle.dumps)])
def test_cifar_as_published(tmp_path: Path, inside: bool, dumps: Callable[[Any], bytes]) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    rows, labels = write_cifar(folder, dumps=dumps)
    data = prepared(tmp_path if inside else folder, tmp_path / "cache", 32, 3)
    assert data.images.shape == (48, 32, 32, 3)
    assert (
        data.images[7, 2, 5].tolist() == rows[7].reshape(3, 32, 32)[:, 2, 5].tolist()
    )  # planes become channels
    np.testing.assert_array_equal(data.labels, labels)
    assert data.classes[:2] == ("airplane", "automobile")
    assert data.validation.tolist() == list(range(40, 48))


def test_folders_named_after_classes(tmp_path: Path) -> None:
    write_pictures(tmp_path / "some")
    data = prepared(tmp_path / "some", tmp_path / "cache", 16, 3)
    assert (data.name, data.classes, data.images.shape) == (
        "some",
        ("cat", "dog", "emu"),
        (21, 16, 16, 3),
    )
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
    with pytest.raises(
        UsageError, match=r"5 of 21 pictures cannot be read, the first .*cat/0.png: not an image"
    ):
        prepared(tmp_path / "some", tmp_path / "cache", 16, 3)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run by a data file",))


def test_a_pickle_that_would_run_code_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cifar(tmp_path)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps({b"data": Evil()}))
    with pytest.raises(
        UsageError, match=r"data_batch_2: is no batch of CIFAR-10: it asks for builtins.print"
    ):
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


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            _cut,
            "train-images-idx3-ubyte: is cut off or too long: 23,515 bytes for 30 × 28 × 28 values",
        ),
        (_gzip_cut, "train-images-idx3-ubyte.gz: cannot be read: "),
        (
            _other_kind,
            "train-images-idx3-ubyte: is no idx file of bytes: it begins with 00 00 0e 03",
        ),
        (
            _fewer_labels,
            r"images and labels do not belong together: images \(30, 28, 28\), labels \(3,\)",
        ),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, damage: Any, said: str) -> None:
    write_mnist(tmp_path, "")
    damage(tmp_path)
    with pytest.raises(UsageError, match=said):
        prepared(tmp_path, tmp_path / "cache")


def test_unknown_data_set_is_refused_with_the_known_formats(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"no known data set there; looked for CIFAR-10 .*; MNIST .*; folders of pictures",
    ):
        prepared(tmp_path, tmp_path / "cache")
    with pytest.raises(UsageError, match="there is no such file or folder; or take data=digits"):
        prepared(tmp_path / "nothing", tmp_path / "cache")
    write_pictures(tmp_path / "own" / "train")
    write_pictures(tmp_path / "own" / "val")
    (tmp_path / "own" / "val" / "fox").mkdir()
    with pytest.raises(UsageError, match="val has the class 'fox', which train has not"):
        prepared(tmp_path / "own", tmp_path / "cache", 16, 3)


# ---- hostile files: bounds before memory, nothing silently wrong


def refused(source: Path, said: str, side: int = 28, channels: int = 1) -> None:
    """One printable line with exit code 2, in less than 64 MiB."""
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=said) as raised:
            prepared(source, source.parent / "cache", side, channels)
        assert str(raised.value).isprintable()
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def write_batch(folder: Path, **changed: Any) -> Path:
    """A CIFAR-10 folder whose second batch differs; without class names."""
    write_cifar(folder / "cifar")
    (folder / "cifar" / "batches.meta").unlink()
    content = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1], **changed}
    (folder / "cifar" / "data_batch_2").write_bytes(
        pickle.dumps({key.encode(): value for key, value in content.items()}, 2)
    )
    return folder / "cifar"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"labels": [0, 10**9]},
            r"data_batch_2: label 1000000000 of picture 2; a label is a whole number from 0 to 999",
        ),
        ({"labels": [0, "cat"]}, "has no list of labels: one whole number for each picture"),
        ({"labels": [0, 2**80]}, "label 1208925819614629174706176 of picture 2"),
        (
            {"data": np.full((2, 3072), 300)},
            "data holds integers from 300 to 300: write pixels as integers 0 … 255",
        ),
        (
            {"data": np.zeros((2, 3000), np.uint8)},
            "'data' is no array of 3,072 values for each picture",
        ),
        (
            {"data": np.zeros((0, 3072), np.uint8), "labels": []},
            "holds nothing: its sizes are 0 × 3072",
        ),
    ],
)
def test_impossible_cifar_batches_are_refused(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    refused(write_batch(tmp_path, **changed), said, 32, 3)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            [b"cat", b"dog"],
            "batches.meta: names 2 classes, but there is a picture with the label 9",
        ),
        ([b"a\0b"] * 10, r"a class is called 'a\\x00b'; a name is 1 to 255 characters of UTF-8"),
        ([b""] * 10, "a class is called ''"),
        (None, "has no list 'label_names'"),
    ],
)
def test_impossible_cifar_class_names_are_refused(tmp_path: Path, names: Any, said: str) -> None:
    write_cifar(tmp_path / "cifar")
    (tmp_path / "cifar" / "batches.meta").write_bytes(
        pickle.dumps({b"label_names": names}, protocol=2)
    )
    refused(tmp_path / "cifar", said, 32, 3)


def _doubled_tuples(depth: int = 60) -> bytes:
    """Return a key of 2⁶⁰ tuples in 300 bytes: Python hashes a tuple again at every visit."""
    pairs = b"".join(b"q%c0h%ch%c\x86" % (at, at, at) for at in range(depth))
    return b"\x80\2})" + pairs + b"K\1s."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\2r\xff\xff\xff\x7f.", "data_batch_2: "),  # a memo of 2³¹ entries
        (b"\x80\2cnumpy\nndarray\n(J\0\0\0\x40J\0\x10\0\0t\x85R.", "data_batch_2: "),  # 4 TiB
        (_doubled_tuples(), "they take more than 1 s"),
        (
            b"\x80\2})" + b"\x85" * 500_000 + b"K\0s.",
            "cifar",
        ),  # a hash that takes the whole C stack
        (b"\x80\2c_codecs\nencode\nX\1\0\0\0aX\7\0\0\0unknown\x86R.", "another encoding"),
        (b"", "data_batch_2: cannot be read"),
    ],
)
def test_hostile_pickles_take_bounded_memory_and_time(
    tmp_path: Path, content: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar10, "CPU_SECONDS", 1)
    (write_batch(tmp_path) / "data_batch_2").write_bytes(content)
    refused(tmp_path / "cifar", message, 32, 3)


def test_a_small_gz_does_not_unpack_to_gigabytes(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    write_mnist(folder)
    with gzip.open(folder / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(struct.pack(">BBBB3I", 0, 0, 8, 3, 200_000, 28, 28))
        for _ in range(200):
            file.write(bytes(784_000))
    refused(
        folder,
        r"train-images-idx3-ubyte.gz: its header promises 156,800,016 bytes in a file of .* at most 100 times",
    )


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("sizes", "values", "said"),
    [
        ((2**31, 2**31, 4), 0, "train-images"),  # 2⁶⁴ values, which is 0 in 64 bits
        ((2**32 - 1, 28, 28), 23_520, "train-images"),
        ((30, 0, 28), 0, "holds nothing: its sizes are 30 × 0 × 28"),
    ],
)
def test_sizes_of_idx_files_are_not_believed(
    tmp_path: Path, ending: str, sizes: tuple[int, ...], values: int, said: str
) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    write_mnist(folder, ending)
    data = struct.pack(">BBBB3I", 0, 0, 8, 3, *sizes) + bytes(values)
    (folder / f"train-images-idx3-ubyte{ending}").write_bytes(
        gzip.compress(data) if ending else data
    )
    refused(folder, said)


def write_npz(folder: Path, **changed: Any) -> Path:
    folder.mkdir()
    images, labels = RNG.integers(0, 256, (4, 5, 6), np.uint8), np.array([0, 1, 2, 3])
    np.savez_compressed(
        folder / "mnist.npz",
        **{"x_train": images, "y_train": labels, "x_test": images, "y_test": labels, **changed},
    )
    return folder


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"x_train": np.full((4, 5, 6), 7.5)},
            "mnist.npz: x_train holds floats from 7.5 to 7.5: write pixels as integers 0 … 255 or",
        ),
        ({"x_train": np.full((4, 5, 6), -1)}, "x_train holds integers from -1 to -1"),
        ({"x_train": np.full((4, 5, 6), "a")}, "x_train holds <U1 instead of pixels"),
        ({"x_train": np.full((4, 5, 6), None)}, "is no MNIST archive "),
        ({"x_train": np.zeros((4, 0, 6))}, "holds nothing: its sizes are 4 × 0 × 6"),
        (
            {"y_train": np.array([0, 1, 2, -1])},
            "label -1 of picture 4; a label is a whole number from 0 to 999",
        ),
        ({"y_train": np.array([0, 1, np.nan, 3])}, "label nan of picture 3"),
        (
            {"y_train": np.arange(5)},
            r"images and labels do not belong together: images \(4, 5, 6\), labels \(5,\)",
        ),
    ],
)
def test_impossible_archives_are_refused(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    refused(write_npz(tmp_path / "mnist", **changed), said)


def _npy(shape: tuple[int, ...], content: bytes = b"") -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    return header.getvalue() + content


@pytest.mark.parametrize(
    ("npy", "said"),
    [
        (_npy((10**6, 10**6, 4)), "mnist.npz: "),
        (_npy((2**32, 2**32, 1)), "mnist.npz: "),
        (_npy((200_000, 28, 28), bytes(156_800_000)), "its header promises 156,800,128 bytes"),
        (b"\x93NUMPY\1\0\xff\xff" + b"(" * 65_535, "mnist.npz: "),
        (b"no array", "is no MNIST archive with x_train, y_train, x_test, y_test: "),
    ],
    ids=["sizes", "overflow", "bomb", "nested", "text"],
)
def test_headers_inside_an_archive_are_not_believed(tmp_path: Path, npy: bytes, said: str) -> None:
    path = write_npz(tmp_path / "mnist") / "mnist.npz"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**members, "x_train.npy": npy}.items():
            archive.writestr(name, content)
    refused(tmp_path / "mnist", said)


def _huge_bitmap(path: str) -> None:
    header = struct.pack(
        "<2sIHHIIiiHHIIiiII", b"BM", 0, 0, 0, 54, 40, 30_000, 30_000, 1, 24, 0, 0, 0, 0, 0, 0
    )
    Path(path).write_bytes(header)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "not a file"),
        (lambda path: os.symlink("/dev/zero", path), "not a file"),
        (lambda path: os.symlink("nowhere", path), "missing"),
        (_huge_bitmap, "cannot be decoded: "),
        (lambda path: Path(path).write_text("none"), "not an image"),
    ],
    ids=["pipe", "device", "link", "huge", "text"],
)
def test_unreadable_pictures_are_left_out_and_named(
    tmp_path: Path, make: Callable[[str], object], said: str
) -> None:
    """Its name has a byte that is not UTF-8, and an escape sequence."""
    write_pictures(tmp_path / "some")
    make(os.fsdecode(os.fsencode(tmp_path) + b"/some/cat/\xe9\x1b[2J.png"))
    (left_out,) = prepared(tmp_path / "some", tmp_path / "cache", 8, 3).left_out
    assert left_out.startswith(f"{tmp_path}/some/cat/\\udce9\\x1b[2J.png: {said}")


def test_a_class_folder_that_leads_out_is_left_out_and_named(tmp_path: Path) -> None:
    """Somebody else's folder would bring private pictures into the cache and onto the server; a link inside is none of it."""
    write_pictures(tmp_path / "some")
    write_pictures(tmp_path / "private")
    before = prepared(tmp_path / "some", tmp_path / "cache", 8, 3)
    (tmp_path / "some" / "ape").symlink_to(tmp_path / "private" / "cat")
    (tmp_path / "some" / "yak").symlink_to("../private/emu")
    (tmp_path / "some" / "zebu").symlink_to("emu")
    (tmp_path / "short").symlink_to("some")
    for name in ("some", "short"):
        found = prepared(tmp_path / name, tmp_path / "cache", 8, 3)
        assert found.classes == (*before.classes, "zebu")
        reason = "the folder of a class leads out of the data folder"
        assert found.folders_left_out == (
            f"{tmp_path}/{name}/ape: {reason}",
            f"{tmp_path}/{name}/yak: {reason}",
        )
    (tmp_path / "some" / "zebu").unlink()
    again = prepared(tmp_path / "some", tmp_path / "cache", 8, 3)
    assert (again.classes, len(again.folders_left_out)) == (before.classes, 2), (
        "what was cached before has no such folders"
    )


def test_command_line_prints_one_line(tmp_path: Path) -> None:
    folder = write_npz(tmp_path / "mnist", y_train=np.array([0, 1, 2, -1]))
    command = [
        sys.executable,
        "-m",
        "experiments",
        "lenet",
        f"--data={folder}",
        f"--cache={tmp_path}",
        f"--journal={tmp_path}",
    ]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    done = warm.run(command, environment, ROOT)
    said = f"evenhand: {folder}/mnist.npz: label -1 of picture 4; a label is a whole number from 0 to 999\n"
    assert (done.returncode, done.stderr) == (2, said)


# ---- batches


def test_batches_are_normalised_and_the_last_is_filled_up(tmp_path: Path) -> None:
    data = prepared("digits", tmp_path)
    found = list(batches.read(data, batches.files(data, data.training[:70], 32)))
    assert [int(batch.weights.sum()) for batch in found] == [32, 32, 6]
    assert {batch.inputs[0].shape for batch in found} == {(32, 28, 28, 1)}
    assert found[0].inputs[0].dtype == np.float32
    everything = np.concatenate(
        [one.inputs[0] for one in batches.read(data, batches.files(data, data.training, 1_600))]
    )
    assert everything[: len(data.training)].mean() == pytest.approx(0, abs=1e-4)
    assert everything[: len(data.training)].std() == pytest.approx(1, abs=1e-4)

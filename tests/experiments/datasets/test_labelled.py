"""Labelled images from small files in the real formats, and what is said of those that are not."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import pickle
import shutil
import struct
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from experiments.datasets.handwritten import handwritten
from experiments.datasets.labelled import batches, mnist
from experiments.datasets.labelled.data import Labelled, prepare
from tests import warm
from tests.models.children import ROOT, run_in
from tracking.errors import WrongCall

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


def python3_pickle(value: Any) -> bytes:
    return pickle.dumps(value, protocol=2)


def python2_pickle(value: Any) -> bytes:
    """As CIFAR's authors wrote them: strings of bytes, a memo entry for each value; the class names in the oldest protocol."""
    if b"label_names" in value:
        return (
            "(dp0\nS'label_names'\np1\n(lp2\n"
            + "".join(f"S{name.decode()!r}\na" for name in value[b"label_names"])
            + "s."
        ).encode()
    data, memo = value[b"data"], iter(range(256))

    def put() -> bytes:
        return b"q" + bytes([next(memo)])

    def text(given: bytes) -> bytes:
        return b"U" + bytes([len(given)]) + given + put()

    labels = (
        b"]" + put() + b"(" + b"".join(b"K" + bytes([label]) for label in value[b"labels"]) + b"e"
    )
    begun = (
        b"cnumpy.core.multiarray\n_reconstruct\n"
        + put()
        + b"cnumpy\nndarray\n"
        + put()
        + b"K\0\x85"
        + put()
        + text(b"b")
        + b"\x87"
        + put()
        + b"R"
        + put()
    )
    shape = b"".join(b"J" + struct.pack("<i", size) for size in data.shape) + b"\x86" + put()
    kind = b"cnumpy\ndtype\n" + put() + text(b"u1") + b"K\0K\1\x87" + put() + b"R" + put()
    kind += b"(K\3" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0t" + put() + b"b"
    array = (
        begun
        + b"(K\1"
        + shape
        + kind
        + b"\x89"
        + b"T"
        + struct.pack("<i", data.nbytes)
        + data.tobytes()
        + put()
        + b"t"
        + put()
        + b"b"
    )
    parts = [
        text(b"batch_label"),
        text(b"training batch 1 of 5"),
        text(b"labels"),
        labels,
        text(b"data"),
        array,
        text(b"filenames"),
        b"]" + put(),
    ]
    return b"\x80\2}" + put() + b"(" + b"".join(parts) + b"u."


def write_cifar(
    folder: Path, batch: int = 8, dumps: Callable[[Any], bytes] = python3_pickle
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
    theirs = load_digits()
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


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("dumps", [python2_pickle, python3_pickle, pickle.dumps])
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
        WrongCall, match=r"5 of 21 pictures cannot be read, the first .*cat/0.png: not an image"
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
        WrongCall, match=r"data_batch_2: is no batch of CIFAR-10: it asks for builtins.print"
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


def _one_missing(folder: Path) -> None:
    (folder / "t10k-labels-idx1-ubyte").unlink()


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
        (_one_missing, r"t10k-labels-idx1-ubyte\[.gz\] is missing"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, damage: Any, said: str) -> None:
    write_mnist(tmp_path, "")
    damage(tmp_path)
    with pytest.raises(WrongCall, match=said):
        prepared(tmp_path, tmp_path / "cache")


def test_what_is_no_data_set_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(
        WrongCall,
        match=r"no known data set there; looked for CIFAR-10 .*; MNIST .*; folders of pictures",
    ):
        prepared(tmp_path, tmp_path / "cache")
    with pytest.raises(WrongCall, match="there is no such file or folder; or take data=digits"):
        prepared(tmp_path / "nothing", tmp_path / "cache")
    write_pictures(tmp_path / "own" / "train")
    write_pictures(tmp_path / "own" / "val")
    (tmp_path / "own" / "val" / "fox").mkdir()
    with pytest.raises(WrongCall, match="val has the class 'fox', which train has not"):
        prepared(tmp_path / "own", tmp_path / "cache", 16, 3)


# ---- hostile files: bounds before memory, nothing silently wrong


def refused(source: Path, said: str, side: int = 28, channels: int = 1) -> None:
    """One printable line with exit code 2, in less than 64 MiB."""
    tracemalloc.start()
    try:
        with pytest.raises(WrongCall, match=said) as raised:
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
        ({"labels": [-1, 0]}, "label -1 of picture 1; a label is a whole number"),
        ({"labels": np.array([0, np.nan])}, "label nan of picture 2"),
        ({"labels": np.array([0.5, 1])}, "label 0.5 of picture 1"),
        ({"labels": [0, 1, 2]}, "2 images, but 3 labels"),
        ({"labels": [0, "cat"]}, "has no list of labels: one whole number a picture"),
        ({"labels": [0, 2**80]}, "an integer of more than 64 bits"),
        (
            {"data": np.full((2, 3072), 300)},
            "data holds integers from 300 to 300: write pixels as integers 0 … 255",
        ),
        ({"data": np.zeros((2, 3000), np.uint8)}, "'data' is no array of 3,072 values a picture"),
        (
            {"data": np.zeros((0, 3072), np.uint8), "labels": []},
            "holds nothing: its sizes are 0 × 3072",
        ),
        ({"data": None}, "'data' is no array"),
    ],
)
def test_batches_of_cifar_that_cannot_be_right(
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
        ([b"caf\xe9"] * 10, r"a class is called 'caf\\udce9'"),
        ([b"cat"] * 10, "10 classes are called 'cat'"),
        ([b""] * 10, "a class is called ''"),
        (None, "has no list 'label_names'"),
    ],
)
def test_class_names_of_cifar_that_cannot_be_right(tmp_path: Path, names: Any, said: str) -> None:
    write_cifar(tmp_path / "cifar")
    (tmp_path / "cifar" / "batches.meta").write_bytes(
        pickle.dumps({b"label_names": names}, protocol=2)
    )
    refused(tmp_path / "cifar", said, 32, 3)


def _doubled_tuples(depth: int = 60) -> bytes:
    """A key of 2⁶⁰ tuples in 300 bytes: Python computes a tuple's hash again at every visit."""
    return (
        b"\x80\2})" + b"".join(b"q%c0h%ch%c\x86" % (at, at, at) for at in range(depth)) + b"K\1s."
    )


def _shared_tuples(before_put: bytes = b"", depth: int = 60) -> bytes:
    """The same without POP."""
    doubled = (b"\x86%bq%ch%c" % (before_put, at, at) for at in range(depth))
    return b"\x80\2}K\0K\0" + b"".join(doubled) + b"\x86K\1s."


def _colliding_keys(count: int = 30_000) -> bytes:
    """Tuples of one hash as keys: each is compared with all before it. CPython's xxHash of (a, b), solved for b."""
    mask, keys = 2**64 - 1, list[tuple[int, int]]()
    first, second, fifth = 11400714785074694791, 14029467366897019727, 2870177450012600261
    before_last_step, undone = 12345 * pow(first, -1, 2**64) & mask, pow(second, -1, 2**64)
    rotated = (before_last_step >> 31 | before_last_step << 33) & mask
    for a in itertools.count(1):
        once = (fifth + a * second) & mask
        once = (once << 31 | once >> 33) & mask
        b = (rotated - once * first) * undone & mask
        if b < 2**61 - 1:
            keys.append((a, b))
        if len(keys) == count:
            assert len({hash(key) for key in keys[:9]}) == 1
            pairs = b"".join(pickle.dumps(key, 2)[2:-3] + b"K\0" for key in keys)
            return b"\x80\2}(" + pairs + b"u."
    raise AssertionError


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\2}r\xff\xff\xff\x7f.",  # a memo of 2³¹ entries
        b"\x80\2cnumpy\nndarray\n(J\0\0\0\x40J\0\x10\0\0t\x85R.",  # an array of 4 TiB
        b"\x80\2cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n(J\0\0\0\x40tU\1b\x87R.",
        b"\x80\4\x8e\0\0\0\0\0\x01\0\0.",  # a TiB of bytes
        b"\x80\2" + b"(" * 100_000 + b"l" * 100_000 + b".",  # lists in lists
        _doubled_tuples(),
        _shared_tuples(),
        _shared_tuples(b"(e"),  # nothing appended to a tuple: a PUT that is not that of TUPLE2
        _colliding_keys(),
        b"\x80\2})" + b"\x85" * 500_000 + b"K\0s.",  # a key whose hash takes all of the C stack
        # the end of a frame in an opcode: Unpickler drops a byte, and reads a LONG_BINPUT in pickletools' string
        b"\x80\4\x95\3\0\0\0\0\0\0\0}J\0" + b"\0\0\0Ur\xff\xff\xff\x7f" + b"a" * 110 + b".",
        b"\x80\2" + b"]" * 1_000_001 + b".",  # an empty list takes 56 bytes
        b"\x80\2(X\0\0\1\0"
        + b"a" * 65_536
        + b"q\0"
        + b"c_codecs\nencode\nh\0\x85R" * 10_000
        + b"t.",
        b"\x80\2c_codecs\nencode\nN}X\7\0\0\0__new__Ns\x86b.",  # a class of ours, changed
        b"\x80\2c_codecs\nencode\nX\1\0\0\0aX\7\0\0\0unknown\x86R.",  # LookupError
        b"\x80\2K\1K\2a.",  # TypeError, once
        b"",
    ],
)
def test_pickles_take_no_more_than_their_size(tmp_path: Path, content: bytes) -> None:
    (write_batch(tmp_path) / "data_batch_2").write_bytes(content)
    began = time.monotonic()
    refused(tmp_path / "cifar", "data_batch_2: is no batch of CIFAR-10: ", 32, 3)
    assert time.monotonic() - began < 20


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
    with gzip.open(
        folder / "train-images-idx3-ubyte.gz", "wb"
    ) as file:  # more than its header says
        file.write(struct.pack(">BBBB3I", 0, 0, 8, 3, 30, 28, 28))
        for _ in range(200):
            file.write(bytes(784_000))
    refused(folder, r"is cut off or too long: 23,521 bytes for 30 × 28 × 28 values")


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("sizes", "values", "said"),
    [
        ((2**31, 2**31, 4), 0, "train-images"),  # 2⁶⁴ values, which is 0 in 64 bits
        ((2**32 - 1, 28, 28), 23_520, "train-images"),
        ((30, 0, 28), 0, "holds nothing: its sizes are 30 × 0 × 28; each must be at least 1"),
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
        ({"x_test": np.full((4, 5, 6), np.nan)}, "x_test holds floats from nan to nan"),
        ({"x_train": np.full((4, 5, 6), -1)}, "x_train holds integers from -1 to -1"),
        ({"x_train": np.full((4, 5, 6), "a")}, "x_train.npy holds str32 instead of numbers"),
        ({"x_train": np.full((4, 5, 6), None)}, "x_train.npy holds object instead of numbers"),
        ({"x_train": np.zeros((4, 0, 6))}, "holds nothing: its sizes are 4 × 0 × 6"),
        (
            {"y_train": np.array([0, 1, 2, -1])},
            "label -1 of picture 4; a label is a whole number from 0 to 999",
        ),
        ({"y_train": np.array([0, 1, np.nan, 3])}, "label nan of picture 3"),
        ({"y_train": np.array([0, 1.5, 2, 3])}, "label 1.5 of picture 2"),
        (
            {"y_train": np.arange(5)},
            r"images and labels do not belong together: images \(4, 5, 6\), labels \(5,\)",
        ),
    ],
)
def test_archives_that_cannot_be_right(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    refused(write_npz(tmp_path / "mnist", **changed), said)


def test_floats_from_0_to_1_are_scaled_and_labels_may_be_whole_floats(tmp_path: Path) -> None:
    floats = RNG.random((4, 5, 6)).astype(np.float32)
    floats[0, 0, :2] = 0, 1
    integers = RNG.integers(0, 256, (4, 5, 6)).astype(np.int64)
    write_npz(tmp_path / "mnist", x_train=floats, x_test=integers, y_train=np.array([0.0, 1, 2, 3]))
    data = prepared(tmp_path / "mnist", tmp_path / "cache", 5)
    found = [np.asarray(picture) for picture in mnist.read(tmp_path / "mnist").pictures()]
    np.testing.assert_array_equal(found[:4], np.rint(floats.astype(np.float64) * 255))
    np.testing.assert_array_equal(found[4:], integers)
    assert data.labels.tolist() == [0, 1, 2, 3] * 2


def _npy(shape: tuple[int, ...], content: bytes = b"") -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    return header.getvalue() + content


@pytest.mark.parametrize(
    ("npy", "compression", "said"),
    [
        (
            _npy((10**6, 10**6, 4)),
            zipfile.ZIP_DEFLATED,
            "x_train.npy is cut off or too long: 0 bytes for 1000000 × 1000000 × 4 values",
        ),
        (
            _npy((2**32, 2**32, 1)),
            zipfile.ZIP_STORED,
            "cut off or too long: 0 bytes for 4294967296 × 4294967296 × 1 values",
        ),
        (
            _npy((200_000, 28, 28), bytes(156_800_000)),
            zipfile.ZIP_DEFLATED,
            "its header promises 156,800,128 bytes in a file of",
        ),
        (
            _npy((4, 5, 6), bytes(120)),
            zipfile.ZIP_LZMA,
            "x_train.npy is compressed in a way that numpy.savez does not know",
        ),
        (b"\x93NUMPY\1\0\xff\xff" + b"(" * 65_535, zipfile.ZIP_DEFLATED, "mnist.npz: "),
        (
            b"no array",
            zipfile.ZIP_DEFLATED,
            "is no MNIST archive with x_train, y_train, x_test, y_test: ",
        ),
    ],
    ids=["sizes", "overflow", "bomb", "lzma", "nested", "text"],
)
def test_headers_inside_an_archive_are_not_believed(
    tmp_path: Path, npy: bytes, compression: int, said: str
) -> None:
    path = write_npz(tmp_path / "mnist") / "mnist.npz"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in {**members, "x_train.npy": npy}.items():
            archive.writestr(name, content)
    refused(tmp_path / "mnist", said)


def test_a_flipped_bit_in_an_archive_is_seen(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "mnist") / "mnist.npz"
    arrays = dict(np.load(path))
    np.savez(path, **arrays)
    data = bytearray(path.read_bytes())
    data[data.index(arrays["x_train"].tobytes())] ^= 1
    path.write_bytes(data)
    refused(tmp_path / "mnist", "mnist.npz: is no MNIST archive with .*: Bad CRC-32")


@pytest.mark.parametrize(
    ("name", "shown"), [(b"caf\xe9", r"'caf\\udce9'"), (b"red\x1b[31m", r"'red\\x1b\[31m'")]
)
def test_class_folders_that_cannot_be_said(tmp_path: Path, name: bytes, shown: str) -> None:
    write_pictures(tmp_path / "some")
    os.rename(os.fsencode(tmp_path / "some" / "emu"), os.fsencode(tmp_path / "some") + b"/" + name)
    refused(
        tmp_path / "some",
        f"some: a class is called {shown}; a name is 1 to 255 characters of UTF-8",
    )


def test_paths_that_cannot_be_said(tmp_path: Path) -> None:
    write_pictures(tmp_path / "caf\udce9")
    refused(
        tmp_path / "caf\udce9", r"caf\\udce9: a path must be UTF-8 text without control characters"
    )
    refused(tmp_path / ("x" * 300), "cannot be read: File name too long")


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
def test_what_is_no_picture_is_left_out_and_named(
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


@pytest.mark.parametrize("part", ["", "train", "val"])
def test_a_data_set_of_folders_that_lead_out_is_refused(tmp_path: Path, part: str) -> None:
    for name in ("train", "val"):
        write_pictures(tmp_path / "there" / name)
        write_pictures(tmp_path / "some" / name)
    if part:
        shutil.rmtree(tmp_path / "some" / part)
        (tmp_path / "some" / part).symlink_to(tmp_path / "there" / part)
    else:
        shutil.rmtree(tmp_path / "some")
        (tmp_path / "some").mkdir()
        for name in ("cat", "emu"):
            (tmp_path / "some" / name).symlink_to(tmp_path / "there" / "train" / name)
    said = (
        r"some: val has no pictures; 3 left out"
        if part == "val"
        else r"some: 0 classes, two are needed; \d left out"
    )
    refused(
        tmp_path / "some",
        said
        + rf", the first {tmp_path}/some/.*: the folder of a class leads out of the data folder; name",
    )


def test_one_picture_a_class_leaves_none_to_train_on(tmp_path: Path) -> None:
    write_pictures(tmp_path / "some", 1)
    refused(
        tmp_path / "some",
        "has 0 pictures to train on and 3 to validate with; both are needed",
        8,
        3,
    )


def test_what_the_disk_cannot_hold_is_said_before_it_is_written(tmp_path: Path) -> None:
    write_pictures(tmp_path / "some")
    with pytest.raises(
        WrongCall,
        match=r"some: its pictures take .* GiB, the cache .* has .* left; take a smaller image_size",
    ):
        prepared(tmp_path / "some", tmp_path / "cache", 2_000_000, 3)


def test_a_damaged_cache_is_one_line(tmp_path: Path) -> None:
    data = prepared("digits", tmp_path)
    (data.folder / "labels.npy").write_bytes((data.folder / "labels.npy").read_bytes()[:-4])
    with pytest.raises(
        WrongCall,
        match=r"is no whole data set in the cache \(remove the folder, and it is made again\): ",
    ):
        prepared("digits", tmp_path)
    (data.folder / "about.json").write_text("[]")
    with pytest.raises(WrongCall, match=r"about\.json lacks what belongs there"):
        prepared("digits", tmp_path)


def test_on_the_command_line_it_is_one_line(tmp_path: Path) -> None:
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
from experiments.datasets.handwritten import handwritten
from experiments.datasets.labelled import batches, mnist
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
    run_in(framework, "-c", NATIVE, framework, str(data.folder))

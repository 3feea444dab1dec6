"""Ten thousand damaged files of labelled images and weights: read, or one line; never a traceback, gigabytes or minutes."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from experiments.datasets.labelled import checks, cifar10
from experiments.datasets.labelled.data import Labelled, prepare
from models import spec, weights
from models.contract import ModelError
from tests.experiments.datasets.test_labelled import (
    python2_pickle,
    write_cifar,
    write_mnist,
    write_pictures,
)
from tests.fuzz.corpus import Format, Target, check
from tracking.errors import UsageError

QUICK, ALL = 70, 10_000
HEAD_BYTES = 320
TORCH_DATA_BYTES = 8 << 30
SIZES = spec("caption_decoder").Spec(vocabulary=11, length=4, features=6, width=5, hidden=3)


def whole_and_head(path: Path) -> list[Target]:
    """Damage anywhere, and in the first bytes alone, which say what the rest is."""
    return [Target.whole(path), Target.head(path, HEAD_BYTES)]


def idx(folder: Path) -> list[Target]:
    write_mnist(folder, "", train=8, test=4)
    return [target for path in sorted(folder.iterdir()) for target in whole_and_head(path)]


def idx_gz(folder: Path) -> list[Target]:
    write_mnist(folder, ".gz", train=8, test=4)
    packed = [Target(path, path.read_bytes()) for path in sorted(folder.iterdir())]
    return packed + [
        Target(one.path, gzip.decompress(one.content), gzip.compress) for one in packed
    ]


def npz(folder: Path) -> list[Target]:
    path = folder / "mnist.npz"
    parts = {
        "x_train": np.full((3, 4, 4), 7, np.uint8),
        "y_train": np.arange(3),
        "x_test": np.ones((2, 4, 4)) / 3,
    }
    np.savez_compressed(path, y_test=np.arange(2.0), **parts)  # type: ignore[arg-type]
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    def packing(name: str) -> Callable[[bytes], bytes]:
        return lambda content: zipped({**members, name: content})

    return [
        Target(path, path.read_bytes()),
        *(Target(path, content, packing(name)) for name, content in members.items()),
    ]


def zipped(members: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return made.getvalue()


def cifar(folder: Path) -> list[Target]:
    write_cifar(folder, 2)
    return [*whole_and_head(folder / "data_batch_2"), *whole_and_head(folder / "batches.meta")]


def cifar_of_python_2(folder: Path) -> list[Target]:
    write_cifar(folder, 2, python2_pickle)
    return [*whole_and_head(folder / "test_batch"), *whole_and_head(folder / "batches.meta")]


def pictures(folder: Path) -> list[Target]:
    write_pictures(folder, 2, (9, 7))
    found = []
    for ending, mode in (
        ("png", "P"),
        ("png", "I;16"),
        ("jpg", "CMYK"),
        ("gif", "L"),
        ("bmp", "RGB"),
        ("webp", "RGBA"),
        ("tif", "RGB"),
    ):
        path = folder / "cat" / f"{mode[0]}.{ending}"
        Image.fromarray(np.arange(63, dtype=np.uint8).reshape(7, 9)).convert(mode).save(path)
        found += whole_and_head(path)
    return found


def safetensors(folder: Path) -> list[Target]:
    weights.write_safetensors(
        weights.load("random", "caption_decoder", SIZES), folder / "drawn.safetensors"
    )
    return whole_and_head(folder / "drawn.safetensors")


def state_dict(folder: Path) -> list[Target]:
    import torch

    drawn = {
        name: torch.from_numpy(array)
        for name, array in weights.load("random", "caption_decoder", SIZES).items()
    }
    torch.save(drawn, folder / "zip.pth")
    torch.save(drawn, folder / "old.pth", _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(folder / "zip.pth") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    pickled = next(name for name in members if name.endswith("data.pkl"))
    inside = Target(
        folder / "zip.pth", members[pickled], lambda content: zipped({**members, pickled: content})
    )
    return [inside, *whole_and_head(folder / "zip.pth"), *whole_and_head(folder / "old.pth")]


def read_data(channels: int, folder: Path, _: Path) -> None:
    with TemporaryDirectory() as cache:
        options = {"side": 8, "channels": channels, "cache": Path(cache)}
        data = prepare(str(folder), **options, progress=lambda *_: None)
        check_data(data)
        if data.left_out:  # one of a hundred is, or one of less
            raise UsageError(data.left_out[0])


def check_data(data: Labelled) -> None:
    assert 0 <= data.labels.min() <= data.labels.max() < len(data.classes)
    assert data.images.shape[0] == len(data.labels)
    assert np.isfinite([data.mean, data.deviation]).all()


def read_cifar(_: Path, path: Path) -> None:
    """Read in this process; `prepare` starts one with limits for each data set."""
    reader = cifar10.read_names if path.name == cifar10.NAMES else cifar10.read_batch
    try:
        reader(path)
    except UsageError as error:
        raise UsageError(str(error)) from None  # under that bound memory may run out


def read_weights(_: Path, path: Path) -> None:
    weights.load(str(path), "caption_decoder", SIZES)


def convert(_: Path, path: Path) -> None:
    """In this process, which is torch's own and bound to the file's size; `weights.load` starts one for each file."""
    try:
        weights._convert(path, path.with_suffix(".safetensors"))
    except ModelError as error:
        raise ModelError(str(error)) from None  # under that bound memory may run out


REFUSALS = (UsageError, ModelError)
# 64 MiB may be unpacked freely, twice, with what is made of them.
FORMATS = {
    "idx": Format(idx, partial(read_data, 1)),
    "idx.gz": Format(idx_gz, partial(read_data, 1)),
    "npz": Format(npz, partial(read_data, 1)),
    "CIFAR-10": Format(cifar, read_cifar),
    "CIFAR-10 of Python 2": Format(cifar_of_python_2, read_cifar),
    "pictures": Format(pictures, partial(read_data, 3)),
    "safetensors": Format(safetensors, read_weights, refusals=REFUSALS),
    "pth": Format(state_dict, convert, data_bytes=TORCH_DATA_BYTES, refusals=REFUSALS),
}
COUNTS = [(QUICK, 0), pytest.param(-(-ALL // len(FORMATS)), 1, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("count", "seed"), COUNTS)
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_refused(name: str, count: int, seed: int) -> None:
    check(FORMATS[name], count, seed)


# ---- properties


@settings(max_examples=40, deadline=None)
@given(
    arrays.arrays(
        arrays.integer_dtypes() | arrays.unsigned_integer_dtypes() | arrays.floating_dtypes(),
        (3, 2, 2),
    )
)
def test_pixels_are_kept_scaled_or_refused(found: np.ndarray) -> None:
    whole, largest = found.dtype.kind in "ui", 255 if found.dtype.kind in "ui" else 1
    if np.all((found >= 0) & (found <= largest)):
        wanted = found if whole else np.rint(found.astype(np.float64) * 255)
        pixels = checks.pixels(Path("x.npz"), found, "it")
        np.testing.assert_array_equal(pixels, wanted.astype(np.uint8))
    else:
        with pytest.raises(UsageError, match=r"x\.npz: it holds (integers|floats) from .* to "):
            checks.pixels(Path("x.npz"), found, "it")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.integers() | st.floats() | st.booleans() | st.none() | st.text(max_size=2),
        min_size=1,
        max_size=4,
    )
    | arrays.arrays(arrays.integer_dtypes() | arrays.floating_dtypes(), 3)
)
def test_labels_are_numbers_of_classes_or_refused(found: Any) -> None:
    kinds = (np.integer, np.floating) if isinstance(found, np.ndarray) else (int,)
    good = [
        isinstance(label, kinds)
        and not isinstance(label, bool)
        and label in range(checks.MAX_CLASSES)
        for label in found
    ]
    if all(good):
        assert checks.labels(Path("x"), found, len(found)).tolist() == list(found)
    else:
        with pytest.raises(UsageError, match=r"^x: [ -~]+$"):
            checks.labels(Path("x"), found, len(found))

"""Damaged files of labelled images and weights: each is read or refused."""

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
from tests.experiments.datasets.test_labelled import (
    python2_pickle,
    write_cifar,
    write_mnist,
    write_pictures,
)
from tests.fuzz.corpus import Format, Target, check
from tracking.errors import ErrorCode, UsageError

QUICK, ALL = 40, 10_000
HEAD_BYTES = 320
TORCH_DATA_BYTES = 8 << 30
SIZES = spec("caption_decoder").Spec(vocabulary=11, length=4, features=6, width=5, hidden=3)


def whole_and_head(path: Path) -> list[Target]:
    """Damage bytes anywhere, and those of the header only."""
    return [Target.whole(path), Target.head(path, HEAD_BYTES)]


def idx(folder: Path) -> list[Target]:
    write_mnist(folder, "", train=8, test=4)
    return [target for path in sorted(folder.iterdir()) for target in whole_and_head(path)]


def idx_gz(folder: Path) -> list[Target]:
    write_mnist(folder, ".gz", train=8, test=4)
    paths = sorted(folder.iterdir())
    inside = [Target(path, gzip.decompress(path.read_bytes()), gzip.compress) for path in paths]
    return [*map(Target.whole, paths), *inside]


def npz(folder: Path) -> list[Target]:
    path, images = folder / "mnist.npz", np.full((3, 4, 4), 7, np.uint8)
    floats = {"x_test": np.ones((2, 4, 4)) / 3, "y_test": np.arange(2.0)}
    np.savez_compressed(path, x_train=images, y_train=np.arange(3), **floats)  # type: ignore[arg-type]
    return [Target.whole(path), *members_of(path)]


def members_of(path: Path, ending: str = "") -> list[Target]:
    """Damage members of an archive before they are compressed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    return [
        Target(path, content, partial(replaced, members, name))
        for name, content in members.items()
        if name.endswith(ending)
    ]


def replaced(members: dict[str, bytes], name: str, content: bytes) -> bytes:
    return zipped({**members, name: content})


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def cifar(folder: Path) -> list[Target]:
    write_cifar(folder, 2)
    return [*whole_and_head(folder / "data_batch_2"), *whole_and_head(folder / "batches.meta")]


def cifar_of_python_2(folder: Path) -> list[Target]:
    write_cifar(folder, 2, python2_pickle)
    return [*whole_and_head(folder / "test_batch"), *whole_and_head(folder / "batches.meta")]


MODES = {
    "png": ("P", "I;16"),
    "jpg": ("CMYK",),
    "gif": ("L",),
    "bmp": ("RGB",),
    "webp": ("RGBA",),
    "tif": ("RGB",),
}


def pictures(folder: Path) -> list[Target]:
    write_pictures(folder, 2, (9, 7))
    targets: list[Target] = []
    grey = Image.fromarray(np.arange(63, dtype=np.uint8).reshape(7, 9))
    for ending, modes in MODES.items():
        for mode in modes:
            path = folder / "cat" / f"{mode[0]}.{ending}"
            grey.convert(mode).save(path)
            targets += whole_and_head(path)
    return targets


def safetensors(folder: Path) -> list[Target]:
    path = folder / "drawn.safetensors"
    weights.write_safetensors(weights.load("random", "caption_decoder", SIZES), path)
    return whole_and_head(path)


def state_dict(folder: Path) -> list[Target]:
    import torch

    arrays = weights.load("random", "caption_decoder", SIZES)
    drawn = {name: torch.from_numpy(array) for name, array in arrays.items()}
    new, old = folder / "zip.pth", folder / "old.pth"
    torch.save(drawn, new)
    torch.save(drawn, old, _use_new_zipfile_serialization=False)
    return [*members_of(new, "data.pkl"), *whole_and_head(new), *whole_and_head(old)]


def read_data(channels: int, folder: Path, _: Path) -> None:
    with TemporaryDirectory() as cache:
        options = {"side": 8, "channels": channels, "cache": Path(cache)}
        data = prepare(str(folder), **options, progress=lambda *_: None)
        check_data(data)
        if data.left_out:  # one of a hundred is, or one of less
            raise UsageError(ErrorCode.UNREADABLE, data.left_out[0])


def check_data(data: Labelled) -> None:
    assert 0 <= data.labels.min() <= data.labels.max() < len(data.classes)
    assert data.images.shape[0] == len(data.labels)
    assert np.isfinite([data.mean, data.deviation]).all()


def read_cifar(_: Path, path: Path) -> None:
    """Read in this process; `prepare` starts one with limits for each data set."""
    _without_cause(cifar10._read_file, path)


def read_weights(_: Path, path: Path) -> None:
    weights.load(str(path), "caption_decoder", SIZES)


def convert(_: Path, path: Path) -> None:
    """Convert in this process; `weights.load` starts a bounded one for each file."""
    _without_cause(weights._convert, path, path.with_suffix(".safetensors"))


def _without_cause(call: Callable[..., object], *paths: Path) -> None:
    """Let memory run out, as it may in a process with limits."""
    try:
        call(*paths)
    except UsageError as error:
        raise UsageError(error.code, str(error)) from None


# 64 MiB may be unpacked freely, twice, beside their results.
FORMATS = {
    "idx": Format(idx, partial(read_data, 1)),
    "idx.gz": Format(idx_gz, partial(read_data, 1)),
    "npz": Format(npz, partial(read_data, 1)),
    "CIFAR-10": Format(cifar, read_cifar),
    "CIFAR-10 of Python 2": Format(cifar_of_python_2, read_cifar),
    "pictures": Format(pictures, partial(read_data, 3)),
    "safetensors": Format(safetensors, read_weights),
    "pth": Format(state_dict, convert, data_bytes=TORCH_DATA_BYTES),
}
COUNTS = [(QUICK, 0), pytest.param(-(-ALL // len(FORMATS)), 1, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("count", "seed"), COUNTS)
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_refused(name: str, count: int, seed: int) -> None:
    check(FORMATS[name], count, seed)


# ---- properties

NUMBERS = arrays.integer_dtypes() | arrays.unsigned_integer_dtypes() | arrays.floating_dtypes()


@settings(max_examples=40, deadline=None)
@given(arrays.arrays(NUMBERS, (3, 2, 2)))
def test_pixels_are_scaled_or_refused(values: np.ndarray) -> None:
    is_whole = values.dtype.kind in "ui"
    if np.all((values >= 0) & (values <= (255 if is_whole else 1))):
        expected = values if is_whole else np.rint(values.astype(np.float64) * 255)
        pixels = checks.pixels(Path("x.npz"), values, "it")
        np.testing.assert_array_equal(pixels, expected.astype(np.uint8))
    else:
        with pytest.raises(UsageError) as error:
            checks.pixels(Path("x.npz"), values, "it")
        assert error.value.code is ErrorCode.INVALID_VALUE


LABELS = st.integers() | st.floats() | st.booleans() | st.none() | st.text(max_size=2)


@settings(max_examples=50, deadline=None)
@given(st.lists(LABELS, min_size=1, max_size=4) | arrays.arrays(NUMBERS, 3))
def test_labels_are_numbers_of_classes_or_refused(labels: Any) -> None:
    kinds = (np.integer, np.floating) if isinstance(labels, np.ndarray) else (int,)
    are_right = [
        isinstance(label, kinds) and type(label) is not bool and label in range(checks.MAX_CLASSES)
        for label in labels
    ]
    if all(are_right):
        assert checks.labels(Path("x"), labels, len(labels)).tolist() == list(labels)
    else:
        with pytest.raises(UsageError) as error:
            checks.labels(Path("x"), labels, len(labels))
        assert str(error.value).isprintable()

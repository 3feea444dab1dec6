"""Damaged files of labelled images and weights: each is read or refused."""

from __future__ import annotations

import gzip
import io
import zipfile
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from PIL import Image

from experiments.datasets.labelled import cifar10
from experiments.datasets.labelled.data import prepare
from models import spec, weights
from tests.experiments.datasets.test_labelled import (
    python2_pickle,
    write_cifar,
    write_mnist,
    write_pictures,
)
from tests.fuzz.corpus import Read, Target, Write, check, whole
from tracking.errors import ErrorCode, UsageError

QUICK, ALL = 40, 1_500
SIZES = spec("caption_decoder").Spec(vocabulary=11, length=4, features=6, width=5, hidden=3)


def idx(folder: Path) -> list[Target]:
    write_mnist(folder, "", train=8, test=4)
    return whole(sorted(folder.iterdir()))


def idx_gz(folder: Path) -> list[Target]:
    """Damage files, and their content before it is compressed."""
    write_mnist(folder, ".gz", train=8, test=4)
    targets = whole(sorted(folder.iterdir()))
    inside = [Target(path, gzip.decompress(data), gzip.compress) for path, data, _ in targets]
    return targets + inside


def npz(folder: Path) -> list[Target]:
    path, images = folder / "mnist.npz", np.full((3, 4, 4), 7, np.uint8)
    floats = {"x_test": np.ones((2, 4, 4)) / 3, "y_test": np.arange(2.0)}
    np.savez_compressed(path, x_train=images, y_train=np.arange(3), **floats)  # type: ignore[arg-type]
    return [*whole([path]), *members_of(path)]


def members_of(path: Path, ending: str = "") -> list[Target]:
    """Damage members of an archive before they are compressed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    def replaced(name: str, content: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, original in members.items():
                archive.writestr(member, content if member == name else original)
        return file.getvalue()

    chosen = {name: content for name, content in members.items() if name.endswith(ending)}
    return [Target(path, content, partial(replaced, name)) for name, content in chosen.items()]


def cifar(folder: Path) -> list[Target]:
    """Write batches of Python 3, and one of Python 2."""
    write_cifar(folder, 2)
    (folder / "old").mkdir()
    write_cifar(folder / "old", 2, python2_pickle)
    names = ("data_batch_2", "batches.meta", "old/test_batch", "old/batches.meta")
    return whole(folder / name for name in names)


MODES = {"p.png": "P", "i.png": "I;16", "c.jpg": "CMYK", "l.gif": "L", "r.bmp": "RGB"}
MODES |= {"a.webp": "RGBA", "r.tif": "RGB"}


def pictures(folder: Path) -> list[Target]:
    write_pictures(folder, 2, (9, 7))
    grey = Image.fromarray(np.arange(63, dtype=np.uint8).reshape(7, 9))
    for name, mode in MODES.items():
        grey.convert(mode).save(folder / "cat" / name)
    return whole(folder / "cat" / name for name in MODES)


def safetensors(folder: Path) -> list[Target]:
    path = folder / "drawn.safetensors"
    weights.write_safetensors(weights.load("random", "caption_decoder", SIZES), path)
    return whole([path])


def state_dict(folder: Path) -> list[Target]:
    import torch

    arrays = weights.load("random", "caption_decoder", SIZES)
    drawn = {name: torch.from_numpy(array) for name, array in arrays.items()}
    new, old = folder / "zip.pth", folder / "old.pth"
    torch.save(drawn, new)
    torch.save(drawn, old, _use_new_zipfile_serialization=False)
    return [*members_of(new, "data.pkl"), *whole([new, old])]


def read_data(channels: int, folder: Path, _: Path) -> None:
    with TemporaryDirectory() as cache:
        options = {"side": 8, "channels": channels, "cache": Path(cache)}
        data = prepare(str(folder), **options, progress=lambda *_: None)
    assert 0 <= data.labels.min() <= data.labels.max() < len(data.classes)
    assert data.images.shape[0] == len(data.labels)
    assert np.isfinite([data.mean, data.deviation]).all()
    if data.left_out:  # one of a hundred is, or one of less
        raise UsageError(ErrorCode.UNREADABLE, data.left_out[0])


def read_cifar(_: Path, path: Path) -> None:
    """Read in this process; `prepare` starts one with limits for each data set."""
    cifar10._read_file(path)


def read_weights(_: Path, path: Path) -> None:
    weights.load(str(path), "caption_decoder", SIZES)


def convert(_: Path, path: Path) -> None:
    """Convert in this process; `weights.load` starts a bounded one for each file."""
    weights._convert(path, path.with_suffix(".safetensors"))


# 64 MiB may be unpacked freely, twice, beside their results.
FORMATS: dict[str, tuple[Write, Read]] = {
    "idx": (idx, partial(read_data, 1)),
    "idx.gz": (idx_gz, partial(read_data, 1)),
    "npz": (npz, partial(read_data, 1)),
    "CIFAR-10": (cifar, read_cifar),
    "pictures": (pictures, partial(read_data, 3)),
    "safetensors": (safetensors, read_weights),
    "pth": (state_dict, convert),
}


@pytest.mark.parametrize("count", [QUICK, pytest.param(ALL, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_refused(name: str, count: int) -> None:
    bounds = {"data_bytes": 8 << 30} if name == "pth" else {}
    check(*FORMATS[name], count, **bounds, has_memory=name not in ("CIFAR-10", "pth"))

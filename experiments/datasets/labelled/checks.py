"""What foreign files of labelled images promise, checked before memory is taken or a value believed."""

from __future__ import annotations

import struct
import tokenize
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tracking import plain
from tracking.errors import WrongCall

# A compressed file may unpack to this many bytes, or to this many times its size where that is more. MNIST's do to five times.
FREELY_UNPACKED_BYTES = 64 << 20
MAX_UNPACKED_RATIO = 100
# Of data that name no classes. ImageNet has as many.
MAX_CLASSES = 1_000
LONGEST_NAME = 255
_PIECE_BYTES = 1 << 20
_PIECE_PICTURES = 1_000
# What parsers raise on bytes that are not what they take them for. TypeError, AttributeError and NameError are mistakes of ours.
_UNREADABLE = (OSError, EOFError, zlib.error)
_DAMAGED = (
    *(ValueError, LookupError, ArithmeticError, NotImplementedError, RuntimeError, SyntaxError),
    *(struct.error, zipfile.BadZipFile, tokenize.TokenError),
)


def refused(path: Path | str, why: str) -> WrongCall:
    """The error that names the file, in one printable line."""
    return WrongCall(plain.line(f"{path}: {why}"))


@contextmanager
def reading(path: Path, wanted: str) -> Iterator[None]:
    """What a parser raises on foreign bytes becomes a WrongCall: the file cannot be read, or is not what is wanted."""
    try:
        yield
    except MemoryError:
        raise refused(path, "needs more memory than there is") from None
    except _UNREADABLE as error:
        raise refused(path, f"cannot be read: {_first_line(error)}") from None
    except _DAMAGED as error:
        raise refused(path, f"is no {wanted}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (said.strip().splitlines() or [type(error).__name__])[0][:200]


def check_unpacked(path: Path, unpacked_bytes: int) -> None:
    """Raises WrongCall where a compressed file promises more than one of pictures would."""
    size = path.stat().st_size
    if unpacked_bytes > max(FREELY_UNPACKED_BYTES, MAX_UNPACKED_RATIO * size):
        raise refused(
            path,
            f"its header promises {unpacked_bytes:,} bytes in a file of {size:,}; "
            f"at most {MAX_UNPACKED_RATIO} times its size is unpacked; if that is right, store it uncompressed",
        )


def up_to(file: IO[bytes], count: int) -> bytearray:
    """The next `count` bytes of an open file or fewer, taken as they come: a promise alone takes no memory."""
    data = bytearray()
    while len(data) < count and (piece := file.read(min(_PIECE_BYTES, count - len(data)))):
        data += piece
    return data


def check_shape(path: Path, shape: Sequence[int]) -> None:
    """Raises WrongCall for no pictures or labels, and for pictures without height or width."""
    if not all(shape):
        raise refused(
            path,
            f"holds nothing: its sizes are {' × '.join(map(str, shape))}; each must be at least 1",
        )


def pixels(path: Path, found: NDArray[Any], name: str = "it") -> NDArray[np.uint8]:
    """uint8 of the same shape: integers 0 … 255 as they are, floats 0 … 1 times 255, rounded. Raises WrongCall for others."""
    check_shape(path, found.shape)
    kind = {"u": "integers", "i": "integers", "f": "floats"}.get(found.dtype.kind)
    if kind is None:
        raise refused(
            path,
            f"{name} holds {found.dtype} instead of pixels: write integers 0 … 255 or floats 0 … 1",
        )
    if found.dtype == np.uint8:
        return found.view(np.uint8)
    lowest, highest = found.min(), found.max()
    if not (lowest >= 0 and highest <= (1 if kind == "floats" else 255)):  # NaN is neither
        raise refused(
            path,
            f"{name} holds {kind} from {lowest:g} to {highest:g}: write pixels as integers 0 … 255 or floats 0 … 1",
        )
    scaled = np.empty(found.shape, np.uint8)
    for first in range(0, len(found), _PIECE_PICTURES):
        part = found[first : first + _PIECE_PICTURES]
        scaled[first : first + _PIECE_PICTURES] = (
            np.rint(part * np.float64(255)) if kind == "floats" else part
        )
    return scaled


def labels(path: Path, found: object, pictures: int) -> NDArray[np.int64]:
    """int64 (pictures,), from 0 to MAX_CLASSES - 1, of a list of integers or an array. Raises WrongCall for others."""
    given = np.array(found, object) if _integers(found) else found
    if not isinstance(given, np.ndarray) or given.ndim != 1 or given.dtype.kind not in "uifO":
        raise refused(path, "has no list of labels: one whole number a picture")
    if len(given) != pictures:
        raise refused(path, f"{pictures} images, but {len(given)} labels")
    with np.errstate(invalid="ignore"):  # infinity % 1
        good = (given >= 0) & (given < MAX_CLASSES) & (given % 1 == 0)
    if not good.all():
        row = int(np.argmin(good))
        raise refused(
            path,
            f"label {given[row]} of picture {row + 1}; a label is a whole number from 0 to {MAX_CLASSES - 1}",
        )
    return given.astype(np.int64)


def _integers(found: object) -> bool:
    return isinstance(found, list) and all(type(label) is int for label in found)


def numbered(numbers: NDArray[np.int64]) -> tuple[str, ...]:
    """Names of classes for data that have none: 0 … the largest label, which `labels` has bounded."""
    return tuple(map(str, range(int(numbers.max()) + 1)))


def check_names(path: Path, names: Sequence[str]) -> None:
    """Raises WrongCall for a class whose name cannot be written into a table or said in a terminal."""
    for name in names:
        if not name or len(name) > LONGEST_NAME or not is_text(name):
            raise refused(
                path,
                f"a class is called {name[:40]!r}; a name is 1 to {LONGEST_NAME} characters of UTF-8, without control characters",
            )
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise refused(path, f"{count} classes are called {name!r}; give each a name of its own")


def check_path(path: Path) -> None:
    """Raise WrongCall for a data set whose path cannot be recorded."""
    if not is_text(str(path)):
        raise refused(
            f"data={path}",
            "a path must be UTF-8 text without control characters; rename what is not",
        )


def is_text(text: str) -> bool:
    """Neither control characters nor lone surrogates, which is what bytes that are not UTF-8 become in a path."""
    return not any(unicodedata.category(character) in ("Cc", "Cs") for character in text)

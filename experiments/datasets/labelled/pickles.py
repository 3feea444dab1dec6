"""Plain values and arrays of a pickle: a restricted `pickle.Unpickler`, after a check of the opcodes.

`find_class` keeps a file from running code, but not from taking memory or time: the number of a memo
entry or of bytes takes memory unread, nested or colliding tuples as keys take hours or all of the
C stack. The opcodes show all of this beforehand.
"""

from __future__ import annotations

import io
import math
import mmap
import pickle
import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

LARGEST_BYTES = 1 << 30
# An empty container takes 64 bytes. The training file of CIFAR-100 has a quarter of a million.
MAX_OPCODES = 1_000_000
MAX_TUPLES = 1_000
MAX_SHARED_CHARACTERS = 255
MAX_DIMENSIONS = 4
FRAME_BYTES = 9
TYPES = frozenset({"u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"})
TUPLES = frozenset({"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"})
# Each leaves a new value on the stack, which a PUT may store.
VALUES = TUPLES | {
    *(
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
    ),
    *("FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "STRING"),
    *("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_TUPLE"),
    *("EMPTY_LIST", "LIST", "EMPTY_DICT", "DICT", "GLOBAL", "STACK_GLOBAL", "REDUCE"),
}
PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
OTHERS = GETS | {"PROTO", "MARK", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD", "STOP"}


def load(path: Path) -> Any:
    """Return the value, with `Array` for arrays and bytes for Python 2's strings.

    Raises:
        ValueError, LookupError, RuntimeError: The file holds no such value.
    """
    if (size := path.stat().st_size) > LARGEST_BYTES:
        raise ValueError(f"it has {size:,} bytes; at most {LARGEST_BYTES:,} are read")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        stream = _check_opcodes(data)
    try:
        return _Unpickler(stream, encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, AttributeError, TypeError) as error:
        raise ValueError(str(error)) from None


def _check_opcodes(data: mmap.mmap) -> IO[bytes]:
    """Return the stream without its frames, which make Unpickler skip what pickletools reads.

    Tuples that are no arguments are few, because of their hash. No tuple is used twice, nor a long
    text, which could be encoded again and again. A PUT follows the value that it stores: what may
    not be used twice is known by the opcode before.

    Raises:
        ValueError: The stream has an opcode that plain data have not, or one that takes too much.
    """
    stream, start, tuples = io.BytesIO(), 0, 0
    latest, is_single, memo = "", False, dict[Any, bool]()
    opcodes = cast(Iterator[tuple[Any, Any, int]], pickletools.genops(cast(IO[bytes], data)))
    for count, (opcode, argument, position) in enumerate(opcodes):
        name: str = opcode.name
        if count > MAX_OPCODES:
            raise ValueError(f"it has more than {MAX_OPCODES:,} opcodes")
        if isinstance(argument, int) and not -(2**63) <= argument < 2**64:
            raise ValueError("it has an integer of more than 64 bits")
        if name == "FRAME":
            stream.write(data[start:position])
            start = position + FRAME_BYTES
        elif name in PUTS and latest in VALUES:
            index = len(memo) if argument is None else argument
            if index > MAX_OPCODES:  # the memo is an array
                raise ValueError(f"it has a memo of more than {MAX_OPCODES:,} entries")
            memo[index] = is_single
        elif name in VALUES or name in OTHERS:
            if name in GETS and memo[argument]:
                raise ValueError("it uses a tuple or a long text twice")
            tuples += (name in TUPLES) - (latest in TUPLES and name in ("REDUCE", "BUILD"))
            if tuples > MAX_TUPLES:
                raise ValueError(f"it has more than {MAX_TUPLES:,} tuples")
            is_long = isinstance(argument, str) and len(argument) > MAX_SHARED_CHARACTERS
            latest, is_single = name, name in TUPLES or is_long
        else:
            raise ValueError(f"it asks for {name}")
    stream.write(data[start:])
    stream.seek(0)
    return stream


class _Changeless:
    """Base class of what a file can name: also a class is not to be changed by BUILD."""

    def __setstate__(self, state: Any) -> None:
        raise ValueError("it changes a value that is no array")


class _Type(_Changeless):
    """NumPy's type of an array."""

    def __init__(self, name: Any, *_: Any) -> None:
        self.name, self.order = _text(name), "|"

    def __setstate__(self, state: Any) -> None:
        match state:
            case (_, order, *_):
                self.order = _text(order)
            case _:
                super().__setstate__(state)


class Array(_Changeless):
    """An array of the file, a read-only view on its bytes."""

    def __init__(self, *_: Any) -> None:
        self.values: NDArray[Any] = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        match state:
            case (_, tuple(shape), _Type() as kind, fortran, bytes(data)):
                self.values = _array(shape, kind, bool(fortran), data)
            case _:
                super().__setstate__(state)


class _Encoded(_Changeless):
    """Bytes, as Python 3 writes them with the protocols of Python 2."""

    def __new__(cls, text: str = "", encoding: Any = "latin1") -> Any:
        if _text(encoding) not in ("latin1", "latin-1"):
            raise ValueError(f"it has bytes in the encoding {encoding[:20]!r}")
        return text.encode("latin-1")


NAMES = {
    "numpy.core.multiarray _reconstruct": Array,
    "numpy._core.multiarray _reconstruct": Array,
    "numpy ndarray": Array,
    "numpy dtype": _Type,
    "_codecs encode": _Encoded,
    "__builtin__ bytes": _Encoded,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (wanted := f"{module} {name}") not in NAMES:
            raise ValueError(f"it asks for {module}.{name}")
        return NAMES[wanted]


def _array(shape: tuple[Any, ...], kind: _Type, fortran: bool, data: bytes) -> NDArray[Any]:
    if kind.name not in TYPES or kind.order not in ("|", "<", ">", "="):
        raise ValueError(f"it has an array of the type {kind.name[:20]!r}")
    if len(shape) > MAX_DIMENSIONS or not all(
        isinstance(size, int) and size >= 0 for size in shape
    ):
        raise ValueError(f"it has an array whose sizes are not up to {MAX_DIMENSIONS} numbers")
    dtype = np.dtype(kind.order + kind.name)
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(
            f"it has an array of {' × '.join(map(str, shape))} values in {len(data):,} bytes"
        )
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _text(name: Any) -> str:
    text = name.decode("latin-1") if isinstance(name, bytes) else name
    if not isinstance(text, str):
        raise ValueError(f"it has a {type(name).__name__} in the place of a str")
    return text

"""Plain values and arrays out of a pickle, without unpickling: nothing in it can run code, or take more than its size again.

`pickle.Unpickler` is not bounded by the file, even where `find_class` refuses everything: the number of a memo entry, the shape
of an array or the hash of nested tuples takes all memory or time. Here the standard library splits the stream into opcodes, and
those that plain data have are carried out on a list.
"""

from __future__ import annotations

import math
import mmap
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

LARGEST_BYTES = 1 << 30
MAX_DIMENSIONS = 4
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
TYPES = frozenset({"u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"})
ARRAY, TYPE, ENCODE = "an array", "an array's type", "bytes"
NAMES = {
    "numpy.core.multiarray _reconstruct": ARRAY,
    "numpy._core.multiarray _reconstruct": ARRAY,
    "numpy ndarray": "",
    "numpy dtype": TYPE,
    "_codecs encode": ENCODE,
    "__builtin__ bytes": ENCODE,
}
_MARK = object()


@dataclass
class _Name:
    """A global name that a pickle imports."""

    makes: str


@dataclass
class _Type:
    name: str
    order: str = "|"


@dataclass
class Array:
    """An array of the file, a read-only view on its bytes."""

    values: NDArray[Any]


def load(path: Path) -> Any:
    """The value, with `Array` for arrays and bytes for Python 2's strings. Raises ValueError or LookupError for what is none."""
    if (size := path.stat().st_size) > LARGEST_BYTES:
        raise ValueError(f"it has {size:,} bytes; at most {LARGEST_BYTES:,} are read")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        machine = _Machine(size)
        for opcode, argument, _ in pickletools.genops(cast(IO[bytes], data)):
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.do(opcode.name, argument)
    raise ValueError("it has no end")


class _Machine:
    """A stack, and a memo of what is used again; every container of it has at most one entry an opcode."""

    def __init__(self, size: int) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._left_to_encode = size

    def do(self, name: str, argument: Any) -> None:
        if name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in EMPTY:
            self.stack.append(EMPTY[name]())
        elif name in ("PROTO", "FRAME"):
            pass
        elif name == "MARK":
            self.stack.append(_MARK)
        elif name.endswith(("PUT", "MEMOIZE")):
            self._memo[len(self._memo) if argument is None else argument] = self.stack[-1]
        elif name.endswith("GET"):
            self.stack.append(self._memo[argument])
        elif name in ("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"):
            self._object(name, argument)
        elif argument is not None:
            self.stack.append(_value(name, argument))
        else:
            self._container(name)

    def _container(self, name: str) -> None:
        if name in ("APPEND", "APPENDS"):
            items = self._marked() if name == "APPENDS" else [self.stack.pop()]
            _of(list, self.stack[-1]).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._marked() if name == "SETITEMS" else self._popped(2)
            _of(dict, self.stack[-1]).update(_pairs(items))
        elif name in TUPLES:
            self.stack.append(tuple(self._popped(TUPLES[name])))
        elif name in ("TUPLE", "LIST"):
            self.stack.append(tuple(self._marked()) if name == "TUPLE" else self._marked())
        elif name == "DICT":
            self.stack.append(_pairs(self._marked()))
        elif name == "POP":
            self.stack.pop()
        else:
            raise ValueError(f"it asks for {name}")

    def _object(self, name: str, argument: Any) -> None:
        if name == "BUILD":
            state = self.stack.pop()
            _build(self.stack[-1], state)
        elif name == "REDUCE":
            called, arguments = self._popped(2)
            self.stack.append(self._made(called, arguments))
        else:
            wanted = argument or " ".join(_of(str, part) for part in self._popped(2))
            if wanted not in NAMES:
                raise ValueError(f"it asks for {wanted.replace(' ', '.')}")
            self.stack.append(_Name(NAMES[wanted]))

    def _made(self, called: Any, arguments: Any) -> Any:
        match called, arguments:
            case _Name(makes="an array"), _:
                return Array(np.empty(0, np.uint8))
            case _Name(makes="an array's type"), (str() | bytes() as name, *_):
                return _Type(_text(name))
            case _Name(makes="bytes"), ():
                return b""
            case _Name(makes="bytes"), (str(text), str() | bytes() as encoding) if _text(encoding) in ("latin1", "latin-1"):
                self._left_to_encode -= len(text)  # the same text, encoded again and again, outgrows the file
                if self._left_to_encode >= 0:
                    return text.encode("latin-1")
        raise ValueError("it calls something with arguments of other types")

    def _popped(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("it takes values that it has not given")
        found = self.stack[-count:]
        del self.stack[-count:]
        return found

    def _marked(self) -> list[Any]:
        found: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            found.append(value)
        return found[::-1]


def _value(name: str, argument: Any) -> Any:
    if isinstance(argument, int) and not -(2**63) <= argument < 2**64:
        raise ValueError("it has an integer of more than 64 bits")
    if name in ("STRING", "BINSTRING", "SHORT_BINSTRING"):
        return argument.encode("latin-1")
    if isinstance(argument, int | float | str | bytes | bytearray) and not name.startswith(("EXT", "INST", "PERSID")):
        return bytes(argument) if isinstance(argument, bytearray) else argument
    raise ValueError(f"it asks for {name}")


def _build(target: Any, state: Any) -> None:
    match target, state:
        case _Type(), (_, str() | bytes() as order, *_):
            target.order = _text(order)
        case Array(), (_, tuple(shape), _Type() as kind, _ as fortran, bytes(data)):
            target.values = _array(shape, kind, bool(fortran), data)
        case _:
            raise ValueError("it changes a value that is no array")


def _array(shape: tuple[Any, ...], kind: _Type, fortran: bool, data: bytes) -> NDArray[Any]:
    if kind.name not in TYPES or kind.order not in ("|", "<", ">", "="):
        raise ValueError(f"it has an array of the type {kind.name[:20]!r}")
    if len(shape) > MAX_DIMENSIONS or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(f"it has an array whose sizes are not up to {MAX_DIMENSIONS} numbers")
    dtype = np.dtype(kind.order + kind.name)
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"it has an array of {' × '.join(map(str, shape))} values in {len(data):,} bytes")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _pairs(items: list[Any]) -> dict[bytes | str, Any]:
    keys = items[::2]
    if len(items) % 2 or not all(isinstance(key, bytes | str) for key in keys):  # a nested tuple's hash can take for ever
        raise ValueError("it has a dictionary whose keys are no names")
    return dict(zip(keys, items[1::2], strict=True))


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"it has a {type(value).__name__} in the place of a {kind.__name__}")
    return value


def _text(name: str | bytes) -> str:
    return name.decode("latin-1") if isinstance(name, bytes) else name

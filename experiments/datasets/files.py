"""Foreign files, read within bounds and with errors of one line; files written in one move."""

from __future__ import annotations

import codecs
import errno
import fcntl
import json
import os
import re
import shutil
import struct
import tempfile
import tokenize
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracking import plain
from tracking.errors import ErrorCode, UsageError
from tracking.journal import write_atomically

Progress = Callable[[str, int, int | None], None]

MAX_LINE_CHARACTERS = 1 << 20
MAX_JSON_BYTES = 1 << 30
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# Python's `surrogateescape` stands for a byte that the encoding does not have.
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Errors of parsers on bytes that are not their format. TypeError, AttributeError and NameError are
# mistakes of this program.
_UNREADABLE = (
    OSError,
    EOFError,
    MemoryError,
    zlib.error,
    ValueError,
    LookupError,
    ArithmeticError,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    struct.error,
    zipfile.BadZipFile,
    tokenize.TokenError,
)


def refused(path: Path | str, why: str, code: ErrorCode = ErrorCode.UNREADABLE) -> UsageError:
    return UsageError(code, plain.line(f"{path}: {why}"))


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Turn a parser's error into a UsageError that names the file and the expected format."""
    try:
        yield
    except _UNREADABLE as error:
        text = (error.strerror or "") if isinstance(error, OSError) else str(error)
        first_line = (text.strip().splitlines() or [type(error).__name__])[0][:200]
        raise refused(path, f"cannot be read as a {expected}: {first_line}") from None


def is_text(text: str) -> bool:
    """Return whether a text has no control characters and no lone surrogates (undecoded bytes)."""
    return not any(unicodedata.category(character) in ("Cc", "Cs") for character in text)


def check_path(path: Path) -> None:
    if not is_text(str(path)):
        raise refused(
            f"data={path}",
            "a path must be UTF-8 text without control characters; rename it",
            ErrorCode.INVALID_VALUE,
        )


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file without their ends.

    The encoding is UTF-8, or UTF-16 after its byte order mark.

    Raises:
        UsageError: The file has other bytes, or a line of more than `MAX_LINE_CHARACTERS`.
    """
    with reading(path, "text file"):
        encoding = _encoding(path)
        with path.open(encoding=encoding, errors="surrogateescape") as file:
            pieces = iter(lambda: file.readline(MAX_LINE_CHARACTERS + 1), "")
            for number, line in enumerate(pieces, start=1):
                where = f"{path}, line {number}"
                if len(line) > MAX_LINE_CHARACTERS:
                    raise refused(
                        where,
                        f"has more than {MAX_LINE_CHARACTERS:,} characters; write a row a line",
                        ErrorCode.TOO_LARGE,
                    )
                if undecoded := _ESCAPED_BYTE.search(line):
                    byte = ord(undecoded[0]) - 0xDC00
                    name = encoding.removesuffix("-sig").upper()
                    raise refused(
                        where,
                        f"byte 0x{byte:02x} is not {name}; save the file as UTF-8 "
                        "(one in Windows' Latin letters: iconv -f WINDOWS-1252 -t UTF-8)",
                    )
                yield line.rstrip("\n")


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in _UTF_16_MARKS else "utf-8-sig"


def json_arrays(path: Path, *keys: str) -> list[list[Any]]:
    """Return the arrays of these names in the file's object; an empty list for one that is missing.

    Raises:
        UsageError: The file is no JSON, or has more than `MAX_JSON_BYTES`.
    """
    with reading(path, "complete JSON file (fetch it again)"):
        check_size(path, MAX_JSON_BYTES)
        with path.open(encoding=_encoding(path)) as file:
            content = json.load(file)
    arrays = [content.get(key) if isinstance(content, dict) else None for key in keys]
    return [array if isinstance(array, list) else [] for array in arrays]


def check_size(path: Path, most_bytes: int) -> None:
    if (size := path.stat().st_size) > most_bytes:
        raise refused(
            path, f"has {size:,} bytes; at most {most_bytes:,} are read", ErrorCode.TOO_LARGE
        )


def save_arrays(folder: Path, about: Mapping[str, Any], **arrays: NDArray[Any]) -> None:
    """Write a data set of the cache: `about.json`, and an array a file."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")


def open_arrays(folder: Path, *names: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what `save_arrays` wrote; the arrays stay on disk until they are read."""
    with reading(folder, "whole data set in the cache (remove the folder to make it again)"):
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        return about, {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in names}


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to fill that becomes `target` in one move; a kill before leaves no `target`.

    If another process was faster, its `target` stays.

    Raises:
        UsageError: The folder cannot be written.
    """
    with _writing(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    try:
        yield partial
        partial.chmod(0o755)
        os.replace(partial, target)
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise _unwritable(target.parent, error) from error
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def hold_lock(lock: Path) -> Iterator[None]:
    """Hold a lock: another process that makes the same entry of the cache waits.

    The lock of a process that dies is free. On a file system without locks no process waits.

    Raises:
        UsageError: The file cannot be made.
    """
    with _writing(lock.parent):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a")
    with file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def replace_text(path: Path, text: str) -> None:
    """Write a file in one move. Raises UsageError if it cannot be written."""
    with _writing(path.parent):
        write_atomically(path, text)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        ErrorCode.UNWRITABLE,
        f"cannot write the cache {folder}: {error.strerror}; "
        "give a folder that can be written and has free space",
    )

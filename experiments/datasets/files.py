"""Reading text and JSON a piece at a time, and folders that appear whole or not at all."""

from __future__ import annotations

import codecs
import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from tracking.errors import WrongCall

_WINDOW_CHARACTERS = 1 << 20
_LINE_CHARACTERS = 1 << 20
_ITEM_CHARACTERS = 1 << 26
_NUMBER_TAIL = len("e+")
_FULL = (errno.ENOSPC, errno.EDQUOT)
# The mark of little-endian UTF-32 begins like that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file without their ends.

    The encoding is that of its byte order mark, which is dropped; without one UTF-8. Raises WrongCall for other bytes,
    and for a line that is none.
    """
    with _opened(path) as file:
        for number, line in enumerate(
            iter(lambda: file.readline(_LINE_CHARACTERS + 1), ""), start=1
        ):
            if len(line) > _LINE_CHARACTERS:
                raise WrongCall(
                    f"{path}, line {number} has more than {_LINE_CHARACTERS:,} characters; write a row on each line"
                )
            yield line.rstrip("\n")


def first_lines(path: Path, count: int) -> list[str]:
    """The first lines of any file, as far as they are text: to find out what it is."""
    try:
        with path.open(encoding=_marked(path) or "utf-8", errors="replace") as file:
            return [
                line.rstrip("\n")
                for line in islice(iter(lambda: file.readline(_LINE_CHARACTERS), ""), count)
            ]
    except OSError as error:
        raise WrongCall(f"cannot read {path}: {error.strerror}") from error


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """The file as text after its byte order mark. Raises WrongCall where it cannot be read or decoded."""
    try:
        encoding = _marked(path) or "utf-8"
        with path.open(encoding=encoding) as file:
            if file.read(1) != "\N{ZERO WIDTH NO-BREAK SPACE}":
                file.seek(0)
            yield file
    except UnicodeDecodeError:
        raise _undecodable(path, encoding) from None
    except OSError as error:
        raise WrongCall(f"cannot read {path}: {error.strerror}") from error


def _marked(path: Path) -> str:
    """The encoding that a byte order mark names, or empty."""
    with path.open("rb") as file:
        start = file.read(4)
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), "")


def _undecodable(path: Path, encoding: str) -> WrongCall:
    """Names the line of the first byte that the encoding does not have: the reader's buffer has long passed it."""
    decoder, line, byte = codecs.getincrementaldecoder(encoding)(), 1, ""
    with path.open("rb") as file:
        try:
            for piece in iter(lambda: file.read(_WINDOW_CHARACTERS), b""):
                line += decoder.decode(piece).count("\n")
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            line += error.object[: error.start].decode(encoding).count("\n")
            byte = f"byte 0x{error.object[error.start]:02x}"
    right = "save the file as UTF-8 (one in Windows' Latin letters: iconv -f WINDOWS-1252 -t UTF-8)"
    return WrongCall(
        f"{path}, line {line}: {byte} is not {encoding.removesuffix('-le').removesuffix('-be').upper()}; {right}"
    )


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill that becomes `target` at the end, in one move; a kill before leaves no `target`.

    Where another process was faster, its `target` stays. Raises WrongCall where nothing can be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    except OSError as error:
        raise _unwritable(target.parent, error) from error
    try:
        yield partial
        _move(partial, target)
    except OSError as error:
        if error.errno in _FULL:
            raise _unwritable(target.parent, error) from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """One process at a time: another that wants to make the same entry of the cache waits; who dies gives it back.

    Where the file system knows no locks nobody waits. Raises WrongCall where the file cannot be made.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a")
    except OSError as error:
        raise _unwritable(lock.parent, error) from error
    with file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def replace_text(path: Path, text: str) -> None:
    """Writes a file in one move. Raises WrongCall where it cannot be written."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=".partial-", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        raise _unwritable(path.parent, error) from error


def _move(partial: Path, target: Path) -> None:
    partial.chmod(0o755)
    try:
        os.replace(partial, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _unwritable(folder: Path, error: OSError) -> WrongCall:
    return WrongCall(
        f"cannot write the cache {folder}: {error.strerror}; give a folder that can be written, with room in it"
    )


def json_items(path: Path, key: str) -> Iterator[Any]:
    """The elements of the array `key` of the file's top-level object, one at a time; none where there is no such array.

    No more than a window of the file is in memory. Raises WrongCall where the file is not such JSON.
    """
    with _opened(path) as file:
        yield from _Window(path, file).items(key)


class _Window:
    """A part of a JSON file, refilled from the file when a value does not fit.

    Not ijson: its C backend crashes on a number of 5,000 digits, takes memory with the square of the
    depth, and refuses a whole file for NaN or half a character.
    """

    def __init__(self, path: Path, file: Any) -> None:
        self._path = path
        self._file = file
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._at = 0
        self._passed = 0
        self._ended = False

    def items(self, wanted: str) -> Iterator[Any]:
        for _ in self._members("{}"):
            key = self._value()
            self._expect(":")
            if self._peek() != "[":
                self._value()
                continue
            for _ in self._members("[]"):
                item = self._value()
                if key == wanted:
                    yield item

    def _members(self, brackets: str) -> Iterator[None]:
        """Stop at the beginning of each member of an object or array, for the caller to read it."""
        self._expect(brackets[0])
        while self._peek() != brackets[1]:
            yield
            if self._peek() != brackets[1]:
                self._expect(",")
        self._expect(brackets[1])

    def _peek(self) -> str:
        """Return the next character that is not white space, left where it is."""
        while True:
            while self._at < len(self._text):
                character = self._text[self._at]
                if not character.isspace():
                    return character
                self._at += 1
            if self._ended:
                raise self._broken("ends too early")
            self._refill()

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            raise self._broken(f"has no {character!r}")
        self._at += 1

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                end = len(self._text)
                if self._ended or end - self._at > _ITEM_CHARACTERS:
                    raise self._broken("cannot be understood") from None
            except RecursionError:
                raise self._broken("is nested too deeply") from None
            except ValueError:  # Python's own bound on whole numbers
                raise self._broken("has a number of thousands of digits") from None
            # A number may go on in the part that has not been read: `1`, `1.`, `1e+` all read as 1 here.
            if end + _NUMBER_TAIL < len(self._text) or self._ended:
                self._at = end
                return value
            self._refill()

    def _refill(self) -> None:
        rest = self._text[self._at :]
        # As much again as could not be decoded: a long value costs a few attempts, not one a window.
        more = self._file.read(max(_WINDOW_CHARACTERS, len(rest)))
        self._ended = not more
        self._passed += self._at
        self._text, self._at = rest + more, 0

    def _broken(self, what: str) -> WrongCall:
        place = self._passed + self._at
        return WrongCall(
            f"{self._path} is no complete JSON: it {what} at character {place}; fetch the file again"
        )

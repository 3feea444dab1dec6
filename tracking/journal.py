"""Every record on the local disk first: one append-only file a campaign, replayed into a tracking store as often as needed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shlex
import stat
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit, urlunsplit

from tracking.errors import EvenhandError, WrongCall
from tracking.records import Record, RunClosed, RunOpened, from_line, to_line

RECORDS = "records.jsonl"
CAMPAIGN = "campaign.json"
DELIVERED = "delivered"
CHECKSUM = "crc32"
# Every line ends so: the checksum of what stands before it.
_CHECKSUM = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\Z')
_CHECKSUM_BYTES = len(b',"crc32":"01234567"}')
# No text inside of a record holds these bytes: a quote inside of a JSON text is escaped.
_BEGINNING = b'{"record":"'
LONGEST_LINE_BYTES = 32 * 2**20
NAMED = 8
# What a campaign's description must hold, but where it is an export's.
_NEEDED: dict[str, type] = {"run": str, "run_id": str, "experiment": str, "settings": dict}


class JournalError(EvenhandError):
    """The journal's disk did not take a record; the record is kept in memory and written as soon as there is room."""


@dataclass(frozen=True)
class Damage:
    """A line that is set aside, because it is not what was written."""

    path: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path} line {self.line}: {self.reason}; the line is set aside"


Damages = dict[int, Damage]  # by the offset of the line


class Journal:
    """The folder of one campaign: `campaign.json` (asked), `records.jsonl` (measured), `cells/` (files).

    One writing process at a time, enforced by a lock on the file. Lines are whole or absent: a torn last line is cut off.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pending: deque[bytes] = deque()
        self._lock = threading.Lock()  # the sensors' thread and the uploader's come here too
        try:
            if (folder / CAMPAIGN).exists():  # it has begun: without its records it cannot go on
                _reading(folder / RECORDS).close()
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(folder / RECORDS, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o644)
            _check_regular(self._file, folder / RECORDS)
        except OSError as error:
            raise WrongCall(
                f"journal: cannot write {folder}: {error.strerror}; choose another with journal=DIR"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise WrongCall(
                f"campaign in {folder} is still running in another process; wait for it or stop it first"
            ) from None
        self._size = _whole_lines(folder / RECORDS)
        self._end_last_line()

    def append(self, record: Record) -> None:
        """Durable when a run closes (fsync); on JournalError nothing is lost, the record waits in memory."""
        with self._lock:
            self._pending.append(_line(record))
            try:
                while self._pending:
                    _write_all(self._file, self._pending[0], self._size)
                    self._size += len(self._pending.popleft())
                if isinstance(record, RunClosed):
                    os.fsync(self._file)
            except OSError as error:
                os.ftruncate(self._file, self._size)
                raise JournalError(f"journal: {error.strerror}: {self.folder}") from None

    def _end_last_line(self) -> None:
        """Cuts a torn record off. Anything else without a newline is not ours to delete: it becomes a line of its own."""
        rest = _rest(self.folder / RECORDS, self._size)
        if _is_torn(rest):
            os.ftruncate(self._file, self._size)
            return
        try:
            _write_all(self._file, b"\n", self._size + len(rest))
        except OSError as error:
            raise WrongCall(
                f"journal: cannot write {self.folder}: {error.strerror}; make room, or choose another"
            ) from None
        self._size += len(rest) + 1

    @property
    def size(self) -> int:
        """Bytes of whole records on disk."""
        return self._size

    def waiting(self) -> list[Record]:
        """Number of records that could not be written to disk yet."""
        with self._lock:
            return [_parsed(line[:-1]) for line in self._pending]

    def close(self) -> None:
        os.close(self._file)


def read(
    folder: Path, offset: int = 0, limit: int = 5_000, damaged: Damages | None = None
) -> tuple[list[Record], int]:
    """The records of at most `limit` whole lines from a byte offset, and the offset behind them: the same at the end.

    damaged: gets the lines that were set aside, each once. What is intact within such a line is read all the same.
    """
    records: list[Record] = []
    path = folder / RECORDS
    with _reading(path) as file:
        file.seek(offset)
        for _ in range(limit):
            line = file.readline(LONGEST_LINE_BYTES)
            if too_long := len(line) == LONGEST_LINE_BYTES and not line.endswith(b"\n"):
                line += _end_of_line(file)
            if not line.endswith(b"\n"):
                break
            try:
                if too_long:
                    raise ValueError(f"it is longer than {LONGEST_LINE_BYTES:,} bytes")
                records.append(_parsed(line[:-1]))
            except ValueError as error:
                records += _salvaged(line)
                _note(damaged, path, offset, str(error))
            offset = file.tell()
    return records, offset


def read_all(folder: Path, damaged: Damages | None = None) -> Iterator[Record]:
    """Every record that is intact, the last one too where its newline alone is missing."""
    offset = 0
    while True:
        records, after = read(folder, offset, damaged=damaged)
        if after == offset:
            break
        yield from records
        offset = after
    yield from tail(folder, offset, damaged)


def tail(folder: Path, offset: int, damaged: Damages | None = None) -> list[Record]:
    """What is intact behind the last newline: a record that lost its own. One that is still being written is none."""
    rest = _rest(folder / RECORDS, offset)
    if _is_torn(rest):
        return []
    found = _salvaged(rest)
    if not (found and _CHECKSUM.search(rest)):
        _note(damaged, folder / RECORDS, offset, "it is no record, and has no end")
    return found


def opened(folder: Path, damaged: Damages | None = None) -> list[RunOpened]:
    """The runs that a journal holds."""
    return [record for record in read_all(folder, damaged) if isinstance(record, RunOpened)]


def count(folder: Path, offset: int = 0) -> int:
    """Number of whole lines after an offset."""
    with _reading(folder / RECORDS) as file:
        file.seek(offset)
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(2**20), b""))


def named(troubles: list[str]) -> list[str]:
    """The first few, and how many there are besides."""
    rest = len(troubles) - NAMED
    return troubles[:NAMED] + ([f"and {rest:,} more"] if rest > 0 else [])


def delivered(folder: Path, server: str) -> tuple[int, str]:
    """Bytes of the journal that this server has confirmed, and what is wrong with the file that says so, if anything is.

    A file of another server counts as none: a server is sent what it may not have.
    """
    path = folder / DELIVERED
    try:
        with _open(path) as file:
            first, _, of = file.read(4_096).decode().partition("\n")
        offset = int(first)
    except FileNotFoundError:
        return 0, ""
    except (OSError, ValueError):
        return (
            0,
            f"{path} is damaged: it is no number of bytes; everything is sent again, which changes nothing",
        )
    if of.strip() != _public(server):
        return 0, ""
    if not _ends_a_line(folder / RECORDS, offset):
        return (
            0,
            f"{path} is damaged: byte {offset} ends no record; everything is sent again, which changes nothing",
        )
    return offset, ""


def mark_delivered(folder: Path, offset: int, server: str) -> None:
    write_atomically(folder / DELIVERED, f"{offset}\n{_public(server)}\n")


def write_campaign(folder: Path, description: dict[str, Any]) -> None:
    kept = json.loads(json.dumps(description))
    write_atomically(folder / CAMPAIGN, json.dumps({**kept, CHECKSUM: _checksum(kept)}, indent=1))


def read_campaign(folder: Path) -> dict[str, Any]:
    """What a campaign was asked. Raises WrongCall where its file is missing or damaged."""
    path = folder / CAMPAIGN
    try:
        with _open(path) as file:
            description = json.loads(file.read())
        reason = _trouble(description)
    except OSError as error:
        reason = f"it cannot be read ({error.strerror})"
    except (ValueError, RecursionError):
        reason = "it is not JSON"
    if reason:
        raise WrongCall(
            f"{path} is damaged: {reason}. This campaign cannot be resumed (another can, by resume=RUN_ID); "
            f"its records can be sent all the same, by replay --journal {shlex.quote(str(folder))}"
        )
    return {key: value for key, value in description.items() if key != CHECKSUM}


def experiment(folder: Path) -> str:
    """The experiment of a campaign, empty where its description does not say."""
    with suppress(WrongCall):
        return str(read_campaign(folder).get("experiment", ""))
    return ""


def campaigns(root: Path) -> list[Path]:
    """Folders of campaigns below `root`, the oldest first."""
    found = [path.parent for path in root.glob(f"*/{CAMPAIGN}")]
    return sorted(found, key=lambda folder: (folder / CAMPAIGN).lstat().st_mtime_ns)


def descriptions(root: Path, wanted: str) -> list[tuple[Path, dict[str, Any]]]:
    """Folders of campaigns below `root` with what they were asked, the oldest first.

    Raises WrongCall if the one that is wanted (its folder's name, or `last`) is damaged; others that are, are left out.
    """
    found, folders = [], campaigns(root)
    for folder in folders:
        try:
            found.append((folder, read_campaign(folder)))
        except WrongCall:
            if wanted == folder.name or (wanted == "last" and folder == folders[-1]):
                raise
    return found


def write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)


def _open(path: Path) -> BinaryIO:
    """Open a file of a journal. Raises OSError for what is no file: a pipe would be waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    _check_regular(descriptor, path)
    return os.fdopen(descriptor, "rb")


def _check_regular(descriptor: int, path: Path) -> None:
    """Raises OSError, and closes what was opened, where it is a folder, a pipe or a device."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))


def _reading(path: Path) -> BinaryIO:
    """Open the records of a journal. Raises WrongCall where they cannot be read."""
    try:
        return _open(path)
    except OSError as error:
        remedy = "put it back from a copy, or name another journal"
        raise WrongCall(f"{path} cannot be read: {error.strerror}; {remedy}") from None


def _line(record: Record) -> bytes:
    body = to_line(record).encode()[:-1]
    return b'%s,"crc32":"%08x"}\n' % (body, zlib.crc32(body))


def _parsed(line: bytes) -> Record:
    """Return the record of a line without its newline. Raises ValueError with what is wrong."""
    body = line[:-_CHECKSUM_BYTES]
    found = _CHECKSUM.search(line, len(body))
    if not found:
        raise ValueError("it has no checksum")
    if int(found[1], 16) != zlib.crc32(body):
        raise ValueError("its checksum is another")
    return from_line(body.decode() + "}")


def _salvaged(line: bytes) -> list[Record]:
    """Records with their checksums within a damaged line: two that lost the newline between them, one behind zeros."""
    records = []
    for piece in line.split(_BEGINNING)[1:]:
        whole = _BEGINNING + piece[: piece.rfind(b'"}') + 2]
        if _CHECKSUM.search(whole):
            with suppress(ValueError):
                records.append(_parsed(whole))
    return records


def _note(damaged: Damages | None, path: Path, offset: int, reason: str) -> None:
    if damaged is None or offset in damaged:
        return
    near = next((one for one in reversed(damaged) if one < offset), 0)  # lines are counted once
    line = damaged[near].line if near in damaged else 1
    damaged[offset] = Damage(path, line + _newlines(path, near, offset), reason)


def _newlines(path: Path, start: int, end: int) -> int:
    found = 0
    with path.open("rb") as file:
        file.seek(start)
        while start < end and (piece := file.read(min(end - start, 2**20))):
            found, start = found + piece.count(b"\n"), start + len(piece)
    return found


def _end_of_line(file: Any) -> bytes:
    """The last of what is left of a line, which the file then stands behind; empty if the line has no end."""
    while piece := file.readline(LONGEST_LINE_BYTES):
        if piece.endswith(b"\n"):
            return bytes(piece)
    return b""


def _ends_a_line(path: Path, offset: int) -> bool:
    if offset == 0:
        return True
    try:
        with _open(path) as file:
            file.seek(offset - 1)
            return file.read(1) == b"\n"
    except (OSError, ValueError, OverflowError):
        return False


def _trouble(description: Any) -> str:
    """What is wrong with a campaign's description, if anything is."""
    if not isinstance(description, dict):
        return "it holds no object"
    needed = {"study": str, **({} if description.get("study") == "export" else _NEEDED)}
    for name, kind in needed.items():
        if not isinstance(description.get(name), kind):
            return f"it does not say {name}"
    if description.get(CHECKSUM) != _checksum(
        {key: value for key, value in description.items() if key != CHECKSUM}
    ):
        return "its checksum is another"
    return ""


def _checksum(description: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(description, sort_keys=True).encode()):08x}"


def _public(server: str) -> str:
    """A server's address without the name and password that it may hold."""
    parts = urlsplit(server)
    return urlunsplit(
        (parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", "")
    )


def _write_all(file: int, data: bytes, position: int) -> None:
    while data:
        written = os.pwrite(file, data, position)
        data, position = data[written:], position + written


def _rest(path: Path, offset: int) -> bytes:
    """The bytes after the last newline."""
    with _reading(path) as file:
        file.seek(offset)
        return file.read()


def _is_torn(rest: bytes) -> bool:
    """Whether this is the beginning of one record and no more of it: what a killed writer leaves."""
    return rest[: len(_BEGINNING)] == _BEGINNING[: len(rest)] and not _salvaged(rest)


def _whole_lines(path: Path) -> int:
    size = path.stat().st_size
    with path.open("rb") as file:
        while size:
            start = max(0, size - 65_536)
            file.seek(start)
            newline = file.read(size - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            size = start
    return 0

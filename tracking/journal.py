"""Journal of a campaign: records on the local disk first, replayed into a tracking store."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import threading
import zlib
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit, urlunsplit

from tracking.errors import ErrorCode, EvenhandError, UsageError
from tracking.records import Record, RunClosed, RunOpened, from_line, to_line

RECORDS = "records.jsonl"
CAMPAIGN = "campaign.json"
DELIVERED = "delivered"
CHECKSUM = "crc32"
# Fields of `campaign.json`.
FIELDS = (
    *((name, str) for name in ("study", "run", "run_id", "experiment", "experiment_id")),
    *((name, dict) for name in ("settings", "plan", "own_models", "idle", "sweep")),
)
# A longer line is read in pieces, none of which is a record.
LONGEST_LINE_BYTES = 32 * 2**20
NAMED = 8

# Line of a journal that is set aside, by its offset: where it is, and what is wrong with it.
Damages = dict[int, str]


class JournalError(EvenhandError):
    """The disk did not take a record, which stays in memory until there is room."""


class Journal:
    """The folder of one campaign: `campaign.json`, `records.jsonl`, `cells/` (files).

    One writing process at a time, enforced by a lock on the file.

    Attributes:
        size: Bytes of whole records on disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pending: deque[Record] = deque()
        self._lock = threading.Lock()  # the threads of sensors and uploader write too
        path = folder / RECORDS
        try:
            if (folder / CAMPAIGN).exists():  # a campaign without its records cannot go on
                _open_records(folder).close()
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UsageError(
                ErrorCode.UNWRITABLE,
                f"journal: cannot write {folder}: {error.strerror}; choose another with "
                "journal=DIR",
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                ErrorCode.IN_USE,
                f"campaign in {folder} is still running in another process; "
                "wait for it or stop it first",
            ) from None
        with path.open("rb") as file:
            self.size = sum(len(line) for line in file if line.endswith(b"\n"))
        os.ftruncate(self._file, self.size)  # a record that a killed writer left behind

    def append(self, record: Record) -> None:
        """Write a record; the end of a run is synced to disk.

        Raises:
            JournalError: The disk is full. Nothing is lost, the record waits in memory.
        """
        with self._lock:
            self._pending.append(record)
            try:
                while self._pending:
                    body = to_line(self._pending[0]).encode()[:-1]
                    line, written = b'%s,"crc32":"%08x"}\n' % (body, zlib.crc32(body)), 0
                    while written < len(line):
                        written += os.pwrite(self._file, line[written:], self.size + written)
                    self.size += len(line)
                    self._pending.popleft()
                if isinstance(record, RunClosed):
                    os.fsync(self._file)
            except OSError as error:
                os.ftruncate(self._file, self.size)
                text = f"journal: {error.strerror}: {self.folder}"
                raise JournalError(ErrorCode.UNWRITABLE, text) from None

    def waiting(self) -> list[Record]:
        with self._lock:
            return list(self._pending)

    def close(self) -> None:
        os.close(self._file)


def read(
    folder: Path, offset: int = 0, limit: int = 5_000, damaged: Damages | None = None
) -> tuple[list[Record], int]:
    """Return the records of at most `limit` whole lines from an offset, and the offset after them.

    Args:
        damaged: Gets the lines that are set aside.
    """
    records: list[Record] = []
    with _open_records(folder) as file:
        file.seek(offset)
        for _ in range(limit):
            line = file.readline(LONGEST_LINE_BYTES)
            if not line.endswith(b"\n") and len(line) < LONGEST_LINE_BYTES:
                break
            try:
                records.append(_parsed(line))
            except ValueError as error:
                if damaged is not None:
                    where = f"{folder / RECORDS} byte {offset}"
                    damaged[offset] = f"{where}: {error}; the line is set aside"
            offset = file.tell()
    return records, offset


def read_all(folder: Path, damaged: Damages | None = None) -> Iterator[Record]:
    offset, after = -1, 0
    while after != offset:
        offset = after
        records, after = read(folder, offset, damaged=damaged)
        yield from records


def opened_runs(folder: Path, damaged: Damages | None = None) -> list[RunOpened]:
    """Return the records of all runs that a campaign opened, in their order.

    Args:
        folder: Folder of the campaign.
        damaged: Gets the lines that are set aside.
    """
    return [record for record in read_all(folder, damaged) if isinstance(record, RunOpened)]


def count(folder: Path, offset: int = 0) -> int:
    """Count the lines of a journal, damaged ones included.

    Args:
        folder: Folder of the campaign.
        offset: Bytes to skip, which end with a whole line.
    """
    with _open_records(folder) as file:
        file.seek(offset)
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(2**20), b""))


def delivery_troubles(
    refused: Collection[str], damaged: Collection[str], waiting: str, again: str
) -> list[str]:
    """Return the lines that a user sees about records that a server does not have.

    Args:
        refused: What the server refused, of which the first few are named.
        damaged: Lines of journals that were set aside, likewise.
        waiting: How many records wait, and the reason; empty if none does.
        again: The command that sends them again.
    """
    lines = []
    for troubles in (list(damaged), [f"refused: {line}" for line in refused]):
        lines += troubles[:NAMED]
        if len(troubles) > NAMED:
            lines.append(f"and {len(troubles) - NAMED:,} more")
    if waiting:
        lines.append(f"{waiting}; send them when it can: {again}")
    elif refused:
        lines.append(f"what was refused stays in the journal; send it again: {again}")
    return lines


def delivered(folder: Path, server: str) -> int:
    """Return the bytes of the journal that a server has confirmed.

    A file that is missing, damaged or of another server counts as none: sending again changes
    nothing.
    """
    try:
        first, address = (folder / DELIVERED).read_text(encoding="utf-8").splitlines()
        offset = int(first)
        with (folder / RECORDS).open("rb") as file:
            file.seek(offset - 1)
            is_confirmed = file.read(1) == b"\n" and address == _public(server)
    except (OSError, ValueError, OverflowError):
        return 0
    return offset if is_confirmed else 0


def mark_delivered(folder: Path, offset: int, server: str) -> None:
    """Save how much of the journal a server has confirmed, for `delivered`.

    Args:
        folder: Folder of the campaign.
        offset: Bytes of the journal, up to the end of a line.
        server: Address of the server, which is saved without its password.
    """
    write_atomically(folder / DELIVERED, f"{offset}\n{_public(server)}\n")


def write_campaign(folder: Path, description: dict[str, Any]) -> None:
    text = json.dumps({**description, CHECKSUM: _checksum(description)}, indent=1)
    write_atomically(folder / CAMPAIGN, text)


def read_campaign(folder: Path) -> dict[str, Any]:
    """Return what a campaign measures.

    Raises:
        UsageError: The file is missing or damaged.
    """
    try:
        description: dict[str, Any] = json.loads((folder / CAMPAIGN).read_bytes())
        if description.pop(CHECKSUM) != _checksum(description):
            raise ValueError
        if not all(isinstance(description.get(name, kind()), kind) for name, kind in FIELDS):
            raise ValueError
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        raise UsageError(
            ErrorCode.UNREADABLE,
            f"{folder / CAMPAIGN} is missing or damaged. This campaign cannot be resumed "
            "(another can, by resume=RUN_ID); "
            f"its records can be sent all the same, by replay --journal {shlex.quote(str(folder))}",
        ) from None
    return description


def experiment(folder: Path) -> str:
    """Return the experiment of a campaign, empty if its description is damaged or names none."""
    with suppress(UsageError):
        return str(read_campaign(folder).get("experiment", ""))
    return ""


def descriptions(root: Path, run_id: str) -> list[tuple[Path, dict[str, Any]]]:
    """Return the folders of campaigns below `root` with their descriptions, the oldest first.

    Args:
        run_id: A folder's name, or `last`. Other campaigns are left out if they are damaged.

    Raises:
        UsageError: The requested campaign is damaged.
    """
    readable = []
    folders = campaigns(root)
    for folder in folders:
        try:
            readable.append((folder, read_campaign(folder)))
        except UsageError:
            if run_id == folder.name or (run_id == "last" and folder == folders[-1]):
                raise
    return readable


def campaigns(root: Path) -> list[Path]:
    folders = [path.parent for path in root.glob(f"*/{CAMPAIGN}")]
    return sorted(folders, key=lambda folder: (folder / CAMPAIGN).lstat().st_mtime_ns)


def write_atomically(path: Path, text: str) -> None:
    """Write a file in one move, whatever is at its path. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _open_records(folder: Path) -> BinaryIO:
    try:
        return (folder / RECORDS).open("rb")
    except OSError as error:
        raise UsageError(
            ErrorCode.UNREADABLE,
            f"{folder / RECORDS} cannot be read: {error.strerror}; put it back from a copy, or "
            "name another journal",
        ) from None


def _parsed(line: bytes) -> Record:
    """Return the record of a line. Raises ValueError with what is wrong."""
    body, _, checksum = line.rpartition(b',"crc32":')
    if checksum != b'"%08x"}\n' % zlib.crc32(body):
        raise ValueError("its checksum is missing or another")
    return from_line(body.decode() + "}")


def _checksum(description: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(description, sort_keys=True).encode()):08x}"


def _public(server: str) -> str:
    """Return a server's address without the name and password that it may hold."""
    parts = urlsplit(server)
    address = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, address, parts.path.rstrip("/"), "", ""))

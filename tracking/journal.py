"""Every record on the local disk first: one append-only file a campaign, replayed into a tracking store as often as needed."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracking.errors import EvenhandError, WrongCall
from tracking.records import Record, RunClosed, from_line, to_line

RECORDS = "records.jsonl"
CAMPAIGN = "campaign.json"
DELIVERED = "delivered"


class JournalError(EvenhandError):
    """The journal's disk did not take a record; the record is kept in memory and written as soon as there is room."""


class Journal:
    """The folder of one campaign: `campaign.json` (asked), `records.jsonl` (measured), `cells/` (files).

    One writing process at a time, enforced by a lock on the file. Lines are whole or absent: a torn last line is cut off.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pending: deque[bytes] = deque()
        self._lock = threading.Lock()  # the sensors' thread and the uploader's come here too
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(folder / RECORDS, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise WrongCall(f"journal: cannot write {folder}: {error.strerror}; choose another with journal=DIR") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise WrongCall(f"campaign in {folder} is still running in another process; wait for it or stop it first") from None
        self._size = _whole_lines(folder / RECORDS)
        os.ftruncate(self._file, self._size)

    def append(self, record: Record) -> None:
        """Durable when a run closes (fsync); on JournalError nothing is lost, the record waits in memory."""
        with self._lock:
            self._pending.append(to_line(record).encode() + b"\n")
            try:
                while self._pending:
                    _write_all(self._file, self._pending[0], self._size)
                    self._size += len(self._pending.popleft())
                if isinstance(record, RunClosed):
                    os.fsync(self._file)
            except OSError as error:
                os.ftruncate(self._file, self._size)
                raise JournalError(f"journal: {error.strerror}: {self.folder}") from None

    @property
    def size(self) -> int:
        """Bytes of whole records on disk."""
        return self._size

    def waiting(self) -> list[Record]:
        """Records that the disk has not taken."""
        with self._lock:
            return [from_line(line.decode()) for line in self._pending]

    def close(self) -> None:
        os.close(self._file)


def read(folder: Path, offset: int = 0, limit: int = 5_000) -> tuple[list[Record], int]:
    """At most `limit` whole records from a byte offset, and the offset behind them."""
    records: list[Record] = []
    with (folder / RECORDS).open("rb") as file:
        file.seek(offset)
        for line in file:
            if len(records) == limit or not line.endswith(b"\n"):
                break
            records.append(from_line(line.decode()))
            offset += len(line)
    return records, offset


def read_all(folder: Path) -> Iterator[Record]:
    offset = 0
    while True:
        records, offset = read(folder, offset)
        if not records:
            return
        yield from records


def delivered(folder: Path) -> int:
    """Bytes of the journal that the tracking store has confirmed."""
    try:
        return int((folder / DELIVERED).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def mark_delivered(folder: Path, offset: int) -> None:
    write_atomically(folder / DELIVERED, str(offset))


def write_campaign(folder: Path, description: dict[str, Any]) -> None:
    write_atomically(folder / CAMPAIGN, json.dumps(description, indent=1))


def read_campaign(folder: Path) -> dict[str, Any]:
    description: dict[str, Any] = json.loads((folder / CAMPAIGN).read_text())
    return description


def campaigns(root: Path) -> list[Path]:
    """Folders of campaigns below `root`, the oldest first."""
    found = [path.parent for path in root.glob(f"*/{CAMPAIGN}")]
    return sorted(found, key=lambda folder: (folder / CAMPAIGN).stat().st_mtime_ns)


def write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)


def _write_all(file: int, data: bytes, position: int) -> None:
    while data:
        written = os.pwrite(file, data, position)
        data, position = data[written:], position + written


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

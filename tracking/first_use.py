"""Opening an SQLite store makes its tables, and two processes that do so at once fail: one waits for the other."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

_used: set[str] = set()


@contextmanager
def alone(uri: str) -> Iterator[None]:
    """Within it, no other process opens that store for the first time. Free from the second time on, and for a server."""
    folder = None if uri in _used else folder_of(uri)
    if folder is None:
        yield
        return
    # The folder itself is locked: a file of ours would stay there, and SQLite's own locks are lost with any handle of its file.
    handle = None
    with suppress(OSError):  # not there yet, or a file system without locks
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
        _used.add(uri)
    finally:
        if handle is not None:
            os.close(handle)


def folder_of(uri: str) -> Path | None:
    """Where an SQLite store lies; None for any other."""
    if urlsplit(uri).scheme.partition("+")[0] != "sqlite":
        return None
    return Path(unquote(urlsplit(uri).path)[1:]).parent  # three slashes before a relative path, four before an absolute one

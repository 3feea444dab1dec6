"""First use of an SQLite store, which creates its tables: processes wait for each other."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tracking.errors import ErrorCode, UsageError

_used: set[str] = set()


@contextmanager
def lock_first_use(uri: str) -> Iterator[None]:
    """Keep other processes from opening a store for the first time meanwhile."""
    folder = None if uri in _used else folder_of(uri)
    if folder is None:
        yield
        return
    # The folder is locked: another file would stay there, and SQLite's locks are lost with any
    # handle of its file.
    handle = None
    with suppress(OSError):  # missing, or a file system without locks
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
        _used.add(uri)
    finally:
        if handle is not None:
            os.close(handle)


def check(uri: str) -> None:
    """Create the folder of an SQLite store.

    Raises:
        UsageError: No file can hold it. MLflow would try for minutes, or fail with a traceback.
    """
    path = _path(uri)
    try:
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
        if path == Path() or (path and path.is_dir()):
            raise IsADirectoryError
    except OSError:
        raise UsageError(
            ErrorCode.UNWRITABLE,
            f"tracking store {uri} cannot be a file; set MLFLOW_TRACKING_URI to one such as "
            "sqlite:///mlflow.db",
        ) from None


def require(uri: str) -> None:
    path = _path(uri)
    if path is not None and not path.is_file():
        raise UsageError(
            ErrorCode.NO_RUNS,
            f"no runs here: {path.absolute()} does not exist; "
            "run a campaign first, or set MLFLOW_TRACKING_URI",
        )


def folder_of(uri: str) -> Path | None:
    """Return the folder of an SQLite store; None for any other store."""
    path = _path(uri)
    return None if path is None else path.parent


def _path(uri: str) -> Path | None:
    """Return the file of an SQLite store; None for any other store."""
    if urlsplit(uri).scheme.partition("+")[0] != "sqlite":
        return None
    # three slashes before a relative path, four before an absolute one
    return Path(unquote(urlsplit(uri).path)[1:])

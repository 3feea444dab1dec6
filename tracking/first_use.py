"""First use of an SQLite store, which creates its tables: processes wait for each other."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tracking.errors import ErrorCode, UsageError


@contextmanager
def lock_first_use(uri: str, *, to_read: bool = False) -> Iterator[None]:
    """Keep other processes from opening a store for the first time meanwhile.

    Args:
        uri: Of the store. The folder of an SQLite store is created.
        to_read: An SQLite store has to exist already.

    Raises:
        UsageError: It does not, or no file can hold it. MLflow would try for minutes, or fail with
            a traceback.
    """
    path = file_of(uri)
    if path is None:
        yield
        return
    if to_read and not path.is_file():
        raise UsageError(
            ErrorCode.NO_RUNS,
            f"no runs here: {path.absolute()} does not exist; "
            "run a campaign first, or set MLFLOW_TRACKING_URI",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path == Path() or path.is_dir():
            raise IsADirectoryError
    except OSError:
        raise UsageError(
            ErrorCode.UNWRITABLE,
            f"tracking store {uri} cannot be a file; set MLFLOW_TRACKING_URI to one such as "
            "sqlite:///mlflow.db",
        ) from None
    # The folder is locked: another file would stay there, and SQLite's locks are lost with any
    # handle of its file.
    handle = None
    with suppress(OSError):  # no right to list the folder, or a file system without locks
        handle = os.open(path.parent, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def file_of(uri: str) -> Path | None:
    """Return the file of an SQLite store; None for any other store."""
    if urlsplit(uri).scheme.partition("+")[0] != "sqlite":
        return None
    # three slashes before a relative path, four before an absolute one
    return Path(unquote(urlsplit(uri).path)[1:])

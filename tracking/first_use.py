"""Opening an SQLite store makes its tables, and two processes that do so at once fail: one waits for the other."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tracking.errors import WrongCall

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


def check(uri: str) -> None:
    """Makes the folder of an SQLite store. Raises WrongCall where no file can hold it.

    MLflow would try for minutes, or fail with a traceback.
    """
    path = _path(uri)
    if path is None:
        return
    problem = ""
    if path == Path() or path.is_dir():
        problem = "names no file"
    else:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"lies in a folder that cannot be made ({error.strerror})"
    if problem:
        raise WrongCall(
            f"tracking store {uri} {problem}; set MLFLOW_TRACKING_URI to one such as sqlite:///mlflow.db"
        )


def require(uri: str) -> None:
    """Raises WrongCall for an SQLite store that is not there yet: who only reads shall not make one."""
    path = _path(uri)
    if path is not None and not path.is_file():
        raise WrongCall(
            f"no runs here: {path.absolute()} does not exist; run a campaign first, or set MLFLOW_TRACKING_URI"
        )


def folder_of(uri: str) -> Path | None:
    """Where an SQLite store lies; None for any other."""
    path = _path(uri)
    return None if path is None else path.parent


def _path(uri: str) -> Path | None:
    """The file of an SQLite store, which may be missing; None for any other store."""
    if urlsplit(uri).scheme.partition("+")[0] != "sqlite":
        return None
    return Path(
        unquote(urlsplit(uri).path)[1:]
    )  # three slashes before a relative path, four before an absolute one

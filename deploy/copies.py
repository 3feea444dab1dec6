"""Folders of copies: made whole or not at all, found again, and the old ones deleted."""

from __future__ import annotations

import datetime
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.native.folder import Refused, locked

ABOUT, DUMP, ARTIFACTS = "about.json", "database.dump", "artifacts.tar"
NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d")
UNFINISHED = ".unfinished"
PARTS = ("about.json", ".about.json.", "database.", "artifacts.tar")


def new_name() -> str:
    """The time in UTC: in the order of names, copies are in the order of their making."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H-%M-%S")


@contextmanager
def unfinished(final: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `final` when all is in it; otherwise nothing of it is left.

    What a killed process has left beside it is removed first. Raises Refused for a disk that is full or not to be written.
    """
    if final.exists():
        raise Refused(f"{final} is there already; give another name")
    making = final.with_name(f".{final.name}{UNFINISHED}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sweep(final.parent)
        with locked(_lock(making)) as alone:
            if not alone:
                raise Refused(f"{final} is being made by another process at this moment")
            try:
                making.mkdir(mode=0o700)
                yield making
                os.sync()  # older copies may be deleted next
                os.replace(making, final)
            finally:
                shutil.rmtree(making, ignore_errors=True)
                _lock(making).unlink(missing_ok=True)
    except OSError as error:
        right = "free some room, or give another folder"
        raise Refused(f"no copy was made in {final.parent}: {error.strerror or error}; {right}") from None


def found(folder: Path) -> list[Path]:
    """The finished copies of a folder, the oldest first; what else lies there is not looked at."""
    return sorted(one for one in folder.glob("*") if NAME.fullmatch(one.name) and (one / ABOUT).is_file())


def prune(folder: Path, keep: int) -> list[Path]:
    """Deletes all but the newest copies; returns what is gone."""
    old = found(folder)[:-keep]
    for one in old:
        dying = one.with_name(f".{one.name}{UNFINISHED}")  # half deleted, it is no copy any more
        os.replace(one, dying)
        shutil.rmtree(dying)
    return old


def digest(path: Path) -> str:
    """SHA-256 of a file's content. Raises Refused where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None


def check(source: Path, digests: dict[str, str]) -> None:
    """Raises Refused where a file of a copy is not what it was when it was made, or was not written down then."""
    there = {one.name for one in source.iterdir()} - {ABOUT}
    if unknown := there ^ set(digests):
        raise Refused(f"{source} is damaged: {', '.join(sorted(unknown))} is either missing or not of the copy")
    for name, right in digests.items():
        if digest(source / name) != right:
            raise Refused(f"{source / name} is damaged: its checksum is not the one written when it was made")


def _sweep(folder: Path) -> None:
    for dead in folder.glob(f".*{UNFINISHED}"):
        with locked(_lock(dead)) as alone:
            if alone and dead.is_dir() and all(one.name.startswith(PARTS) for one in dead.iterdir()):
                shutil.rmtree(dead, ignore_errors=True)
            if alone:
                _lock(dead).unlink(missing_ok=True)


def _lock(making: Path) -> Path:
    return making.with_name(f"{making.name.removesuffix(UNFINISHED)}.lock")

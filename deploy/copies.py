"""Copies of a server's database and artifacts: made, checked, restored, and deleted when old."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from deploy.native.folder import Refused, locked, write_private
from deploy.readiness import PROBE

if TYPE_CHECKING:
    from deploy.native.database import Database

ABOUT, ARCHIVE, PREFIX = "about.json", "artifacts.tar", "artifacts"
NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d")
NAME_FORMAT = "%Y-%m-%dT%H-%M-%S"
UNFINISHED = ".unfinished"
About = TypeVar("About")
PARTS = (ABOUT, f".{ABOUT}.", "database.", ARCHIVE)


@dataclass(frozen=True)
class ArtifactFolder:
    """Artifacts below a folder."""

    path: Path

    def files(self) -> Iterator[tuple[str, int, IO[bytes]]]:
        """Yield name, size in bytes and content of the files that are not deleted meanwhile.

        Raises:
            Refused: There is a link, which may lead elsewhere.
        """
        for parent, _, names in os.walk(self.path):
            for path in (Path(parent, name) for name in names if not name.startswith(PROBE)):
                if path.is_symlink():
                    raise Refused(f"{path} is a link; put the file itself there")
                if path.is_file():
                    with suppress(FileNotFoundError), path.open("rb") as file:
                        name = path.relative_to(self.path).as_posix()
                        yield name, os.fstat(file.fileno()).st_size, file

    def write(self, name: str, content: IO[bytes]) -> bool:
        """Add a file, and return whether its name is one that stays in the folder."""
        parts = name.split("/")
        if {"", ".", ".."} & set(parts):
            return False
        path = self.path.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            shutil.copyfileobj(content, file)
        return True


@dataclass(frozen=True)
class Bucket:
    """Artifacts in a bucket, with the methods of `ArtifactFolder`; a key may be any text."""

    client: Any
    name: str

    def files(self) -> Iterator[tuple[str, int, IO[bytes]]]:
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name):
            for key in (item["Key"] for item in page.get("Contents", [])):
                if not key.rpartition("/")[2].startswith(PROBE):
                    with suppress(self.client.exceptions.NoSuchKey):
                        response = self.client.get_object(Bucket=self.name, Key=key)
                        yield key, response["ContentLength"], response["Body"]

    def write(self, name: str, content: IO[bytes]) -> bool:
        self.client.upload_fileobj(content, self.name, name)
        return True


Artifacts = ArtifactFolder | Bucket


def new_name() -> str:
    """Return the time in UTC, which sorts copies by age."""
    return datetime.datetime.now(datetime.UTC).strftime(NAME_FORMAT)


def make(
    final: Path, database: Database, artifacts: Artifacts | None, about: Mapping[str, Any]
) -> int:
    """Copy database and artifacts, and return how many files the latter are.

    The database comes first. Runs add files and do not change them, so that all that the dump
    refers to is in the copy.

    Args:
        final: Folder of the copy.
        database: The server's database.
        artifacts: The server's artifacts, None if they are kept elsewhere.
        about: What the copy states of its server.

    Raises:
        Refused: The copy cannot be made; nothing of it is left.
    """
    count = 0
    with _unfinished(final) as making:
        database.dump(making / database.dump_name)
        if artifacts:
            count = _pack(artifacts, making / ARCHIVE)
        digests = {path.name: _digest(path) for path in sorted(making.iterdir())}
        write_private(making / ABOUT, json.dumps({**about, "sha256": digests}, indent=1))
    return count


def load(source: Path, parse: Callable[[dict[str, Any]], About]) -> About:
    """Return what a copy states of its server, parsed.

    Raises:
        Refused: It is no copy, or one of its files is missing, added or damaged.
    """
    try:
        values = json.loads((source / ABOUT).read_text())
        digests, about = dict(values["sha256"]), parse(values)
    except (OSError, ValueError, KeyError, TypeError):
        raise Refused(f"{source} is no backup: it has no readable {ABOUT}") from None
    if unknown := {path.name for path in source.iterdir()} - {ABOUT} ^ set(digests):
        names = ", ".join(sorted(unknown))
        raise Refused(f"{source} is damaged: {names} is either missing or not of the copy")
    for name, digest in digests.items():
        if _digest(source / name) != digest:
            raise Refused(f"{source / name} is damaged: its checksum is not that of the copy")
    return about


def restore(source: Path, database: Database, artifacts: Artifacts) -> int:
    """Fill an empty database and empty artifacts from a copy, and return the number of files."""
    if any(True for _ in artifacts.files()):
        raise Refused("the store holds artifacts already; restore into a new one")
    if tables := database.tables():
        right = "restore into a new one, before the tracking server starts"
        raise Refused(f"the database holds {tables} tables already; {right}")
    database.restore(source / database.dump_name)
    archive = source / ARCHIVE
    return _unpack(archive, artifacts) if archive.exists() else 0


def finished(folder: Path) -> list[Path]:
    """Return the complete copies of a folder, the oldest first."""
    paths = folder.glob("*")
    return sorted(path for path in paths if NAME.fullmatch(path.name) and (path / ABOUT).is_file())


def age_seconds(folder: Path) -> float:
    """Return the age of the newest copy, infinity without one."""
    copies = finished(folder)
    if not copies:
        return float("inf")
    made = datetime.datetime.strptime(copies[-1].name, NAME_FORMAT).replace(tzinfo=datetime.UTC)
    return (datetime.datetime.now(datetime.UTC) - made).total_seconds()


def prune(folder: Path, keep: int) -> list[Path]:
    """Delete all but the newest copies, and return those that are gone."""
    old = finished(folder)[:-keep]
    for path in old:
        dying = path.with_name(f".{path.name}{UNFINISHED}")  # half deleted, it is no copy any more
        os.replace(path, dying)
        shutil.rmtree(dying)
    return old


@contextmanager
def _unfinished(final: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `final` if all is in it; otherwise it is removed.

    What a killed process left is removed first.
    """
    if final.exists():
        raise Refused(f"{final} exists already; choose another name")
    making = final.with_name(f".{final.name}{UNFINISHED}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sweep(final.parent)
        with locked(_lock(making)) as is_mine:
            if not is_mine:
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
        right = "free some room, or choose another folder"
        reason = error.strerror or error
        raise Refused(f"no copy was made in {final.parent}: {reason}; {right}") from None


def _sweep(folder: Path) -> None:
    for dead in folder.glob(f".*{UNFINISHED}"):
        with locked(_lock(dead)) as is_mine:
            if not is_mine:
                continue
            if dead.is_dir() and all(path.name.startswith(PARTS) for path in dead.iterdir()):
                shutil.rmtree(dead, ignore_errors=True)
            _lock(dead).unlink(missing_ok=True)


def _lock(making: Path) -> Path:
    return making.with_name(f"{making.name.removesuffix(UNFINISHED)}.lock")


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None


def _pack(artifacts: Artifacts, archive: Path) -> int:
    count = 0
    with tarfile.open(archive, "w") as tar:
        for name, size, content in artifacts.files():
            member = tarfile.TarInfo(f"{PREFIX}/{name}")
            member.size = size
            tar.addfile(member, content)
            count += 1
    return count


def _unpack(archive: Path, artifacts: Artifacts) -> int:
    """Write the archived files. Python of Debian 12 has no `filter="data"` for this yet."""
    count = 0
    with tarfile.open(archive) as tar:
        for member in (member for member in tar if not member.isdir()):  # of earlier versions
            prefix, _, name = member.name.partition("/")
            content = tar.extractfile(member) if member.isfile() and prefix == PREFIX else None
            if content is None or not artifacts.write(name, content):
                reason = f"holds {member.name!r}, which is no file of the artifacts"
                raise Refused(f"{archive} {reason}")
            count += 1
    return count

"""Backups of a server's database and artifacts: created, verified, restored, and pruned."""

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

from deploy.native.folder import locked, write_private
from deploy.readiness import PROBE
from tracking.errors import ErrorCode, UsageError

if TYPE_CHECKING:
    from deploy.native.database import PostgreSQL

METADATA, DUMP, ARCHIVE, PREFIX = "about.json", "database.dump", "artifacts.tar", "artifacts"
NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d")
NAME_FORMAT = "%Y-%m-%dT%H-%M-%S"
UNFINISHED, LOCK = ".evenhand-unfinished", ".evenhand-backup.lock"
Metadata = TypeVar("Metadata")


@dataclass(frozen=True)
class ArtifactFolder:
    """Artifacts below a folder."""

    path: Path

    def files(self) -> Iterator[tuple[str, int, IO[bytes]]]:
        """Yield name, size in bytes and content of the files that are not deleted meanwhile.

        Raises:
            UsageError: There is a link, which may lead elsewhere.
        """
        for parent, _, names in os.walk(self.path):
            for path in (Path(parent, name) for name in names if not name.startswith(PROBE)):
                if path.is_symlink():
                    text = f"{path} is a link; put the file itself there"
                    raise UsageError(ErrorCode.UNSUPPORTED, text)
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


def create(
    parent: Path,
    keep: int | None,
    database: PostgreSQL,
    artifacts: Artifacts | None,
    metadata: Mapping[str, Any],
) -> Path:
    """Copy database and artifacts into a dated folder, and return it.

    The database comes first. Runs add files and do not change them, so that the backup holds
    all files that the dump refers to.

    Args:
        parent: Folder of all backups.
        keep: Number of backups that stay there, None for all.
        database: The server's database.
        artifacts: The server's artifacts, None if they are stored elsewhere.
        metadata: Facts about the server, stored with the checksums.

    Raises:
        UsageError: The backup cannot be made; nothing of it is left.
    """
    if keep is not None and keep < 1:
        text = f"keep {keep} backups: at least 1 stays, the one that is made now"
        raise UsageError(ErrorCode.INVALID_VALUE, text)
    if is_backup(parent):
        raise UsageError(ErrorCode.EXISTS, f"{parent} is a backup itself; choose another folder")
    target = parent / datetime.datetime.now(datetime.UTC).strftime(NAME_FORMAT)
    count = 0
    with _unfinished(target) as folder:
        database.dump(folder / DUMP)
        if artifacts:
            with tarfile.open(folder / ARCHIVE, "w") as tar:
                for name, size, content in artifacts.files():
                    member = tarfile.TarInfo(f"{PREFIX}/{name}")
                    member.size = size
                    tar.addfile(member, content)
                    count += 1
        digests = {path.name: _digest(path) for path in sorted(folder.iterdir())}
        write_private(folder / METADATA, json.dumps({**metadata, "sha256": digests}, indent=1))
    print(f"copied to {target}: the database and {count} files", flush=True)
    for path in list_backups(parent)[:-keep] if keep else []:
        partial = path.with_name(f".{path.name}{UNFINISHED}")  # half deleted, it is no backup
        os.replace(path, partial)
        shutil.rmtree(partial)
        print(f"deleted the old backup {path}", flush=True)
    return target


def load(source: Path, parse: Callable[[dict[str, Any]], Metadata]) -> Metadata:
    """Return the parsed metadata of a backup after its checksums.

    Raises:
        UsageError: It is no backup, or one of its files is missing, added or damaged.
    """
    try:
        values = json.loads((source / METADATA).read_text())
        digests, metadata = dict(values["sha256"]), parse(values)
    except (OSError, ValueError, KeyError, TypeError):
        text = f"{source} is no backup: it has no readable {METADATA}"
        raise UsageError(ErrorCode.NOT_FOUND, text) from None
    files = {path.name: path for path in source.iterdir() if path.name != METADATA}
    for name in sorted(files.keys() | digests):
        if name not in files or name not in digests or _digest(files[name]) != digests[name]:
            text = f"{source / name} is damaged, missing or not of the backup"
            raise UsageError(ErrorCode.UNREADABLE, text)
    return metadata


def restore(source: Path, database: PostgreSQL, artifacts: Artifacts) -> int:
    """Fill an empty database and empty artifacts from a backup; return the number of artifacts.

    Raises:
        UsageError: One of them is not empty, or the archive holds something else.
    """
    if any(True for _ in artifacts.files()) or database.count_tables():
        right = "restore into new ones, before the tracking server starts"
        raise UsageError(ErrorCode.EXISTS, f"the database or the artifacts are not empty; {right}")
    database.restore(source / DUMP)
    archive, count = source / ARCHIVE, 0
    if not archive.exists():
        return 0
    with tarfile.open(archive) as tar:
        for member in tar:
            prefix, _, name = member.name.partition("/")
            content = tar.extractfile(member) if member.isfile() and prefix == PREFIX else None
            if content is None or not artifacts.write(name, content):
                text = f"{archive} holds {member.name!r}, which is no file of the artifacts"
                raise UsageError(ErrorCode.UNREADABLE, text)
            count += 1
    return count


def list_backups(folder: Path) -> list[Path]:
    """Return the complete backups of a folder, the oldest first."""
    paths = folder.glob("*")
    return sorted(path for path in paths if NAME.fullmatch(path.name) and is_backup(path))


def is_backup(path: Path) -> bool:
    """Return whether a folder, which is no link, has the metadata of a backup."""
    try:
        values = json.loads((path / METADATA).read_text())
    except (OSError, ValueError):
        return False
    return not path.is_symlink() and isinstance(values, dict) and "sha256" in values


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """Yield a folder that becomes the target if the block succeeds; otherwise it is removed.

    What a killed process left is removed first.
    """
    lock, partial = target.with_name(LOCK), target.with_name(f".{target.name}{UNFINISHED}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(lock) as is_free:
            if not is_free:
                text = f"another backup is being made in {target.parent}; wait for it"
                raise UsageError(ErrorCode.IN_USE, text)
            for dead in target.parent.glob(f".*{UNFINISHED}"):
                shutil.rmtree(dead)
            try:
                partial.mkdir(mode=0o700)
                yield partial
                os.sync()  # older backups may be deleted next
                os.replace(partial, target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
                lock.unlink(missing_ok=True)
    except OSError as error:
        reason, right = error.strerror or error, "free disk space, or choose another folder"
        text = f"no backup was made in {target.parent}: {reason}; {right}"
        raise UsageError(ErrorCode.UNWRITABLE, text) from None


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        text = f"{path} cannot be read: {error.strerror}"
        raise UsageError(ErrorCode.UNREADABLE, text) from None

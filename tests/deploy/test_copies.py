"""Backups: old and unfinished ones are removed; a backup or a restore is complete or missing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import tarfile
from pathlib import Path

import pytest

from deploy import copies
from deploy.copies import ArtifactFolder
from deploy.native.__main__ import parse_metadata
from deploy.native.folder import locked
from tests.deploy.group import Group, native
from tracking.errors import ErrorCode, UsageError


class FileDatabase:
    """Database in one file, with the methods of `PostgreSQL` that backups use."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def dump(self, path: Path) -> None:
        path.write_bytes(self.path.read_bytes())

    def restore(self, path: Path) -> None:
        self.path.write_bytes(path.read_bytes())

    def count_tables(self) -> int:
        return int(self.path.exists())


class Server:
    """Database and artifacts of 300 KB."""

    def __init__(self, folder: Path) -> None:
        self.artifacts = folder / "artifacts"
        (self.artifacts / "1").mkdir(parents=True)
        (self.artifacts / "1" / "values.bin").write_bytes(os.urandom(300_000))
        self.database = FileDatabase(folder / "database")
        self.database.path.write_text("7")

    def back_up(self, parent: Path, keep: int | None = None) -> Path:
        return copies.create(parent, keep, self.database, ArtifactFolder(self.artifacts), {})


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "server")


def add_backup(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir(parents=True)
    (made / "about.json").write_text('{"sha256": {}}')
    return made


def refusal(error: pytest.ExceptionInfo[UsageError], code: ErrorCode, *values: object) -> bool:
    return error.value.code is code and all(str(value) in str(error.value) for value in values)


def test_backup_keeps_the_newest_and_removes_unfinished_ones(
    server: Server, tmp_path: Path
) -> None:
    parent = tmp_path / "copies"
    old = [add_backup(parent, f"2020-01-0{day}T00-00-00") for day in (1, 2, 3)]
    inside = add_backup(tmp_path / "elsewhere", "2020-01-01T00-00-00")
    notes = parent / "2020-01-04T00-00-00"
    notes.mkdir()
    (notes / "about.json").write_text('{"title": "notes"}')
    foreign = [notes, add_backup(parent, "before-the-move"), parent / "2020-01-05T00-00-00"]
    foreign[-1].symlink_to(inside)
    dead = parent / f".2020-02-01T00-00-00{copies.UNFINISHED}"
    dead.mkdir()
    with locked(parent / copies.LOCK), pytest.raises(UsageError) as error:
        server.back_up(parent)
    assert refusal(error, ErrorCode.IN_USE, parent)
    newest = server.back_up(parent, keep=2)
    paths = [*old, dead, *foreign, inside]
    assert [path.exists() for path in paths] == [False, False, True, False, *[True] * 4]
    assert copies.list_backups(parent) == [old[2], newest]
    for folder, keep, code in (
        (parent, 0, ErrorCode.INVALID_VALUE),
        (newest, 2, ErrorCode.EXISTS),
    ):
        with pytest.raises(UsageError) as error:
            server.back_up(folder, keep)
        assert error.value.code is code
    copies.load(newest, dict)


@pytest.mark.parametrize("small_disk", ["128k"], indirect=True)
def test_full_disk_holds_no_part_of_a_backup(server: Server, small_disk: Path) -> None:
    with pytest.raises(UsageError) as error:
        server.back_up(small_disk / "copies")
    assert refusal(error, ErrorCode.UNWRITABLE, small_disk, os.strerror(errno.ENOSPC))
    assert list((small_disk / "copies").iterdir()) == []


def test_backup_refuses_a_link_among_the_artifacts(server: Server, tmp_path: Path) -> None:
    (server.artifacts / "link").symlink_to("/etc/passwd")
    with pytest.raises(UsageError) as error:
        server.back_up(tmp_path / "copies")
    assert refusal(error, ErrorCode.UNSUPPORTED, server.artifacts / "link")
    assert not list((tmp_path / "copies").iterdir())


def sign(copy: Path) -> None:
    """Write the checksums of a changed backup."""
    about = json.loads((copy / "about.json").read_text())
    for name in about["sha256"]:
        about["sha256"][name] = hashlib.sha256((copy / name).read_bytes()).hexdigest()
    (copy / "about.json").write_text(json.dumps(about))


def test_restore_needs_a_whole_backup_and_an_empty_place(server: Server, tmp_path: Path) -> None:
    copy = server.back_up(tmp_path / "copies")
    copies.load(copy, dict)
    with pytest.raises(UsageError) as error:
        copies.restore(copy, server.database, ArtifactFolder(tmp_path / "new"))
    assert error.value.code is ErrorCode.EXISTS
    place = FileDatabase(tmp_path / "new.db")
    assert copies.restore(copy, place, ArtifactFolder(tmp_path / "new")) == 1
    assert place.path.read_text() == "7"
    restored = (tmp_path / "new" / "1" / "values.bin").read_bytes()
    assert restored == (server.artifacts / "1" / "values.bin").read_bytes()
    added = copy / "added"
    added.touch()
    with pytest.raises(UsageError) as error:
        copies.load(copy, dict)
    assert refusal(error, ErrorCode.UNREADABLE, added)
    added.unlink()
    with (copy / "artifacts.tar").open("r+b") as file:
        file.write(b"x")
    with pytest.raises(UsageError) as error:
        copies.load(copy, dict)
    assert refusal(error, ErrorCode.UNREADABLE, copy / "artifacts.tar")


@pytest.mark.parametrize(
    "about",
    ["", "[]", "{}", '{"settings": {"color": 1}, "sha256": {}}', '{"settings": 3, "sha256": 4}'],
)
def test_load_refuses_metadata_of_no_backup(tmp_path: Path, about: str) -> None:
    (tmp_path / "about.json").write_text(about)
    with pytest.raises(UsageError) as error:
        copies.load(tmp_path, parse_metadata)
    assert refusal(error, ErrorCode.NOT_FOUND, tmp_path)


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("../../escaped", ""),
        ("/tmp/escaped", ""),
        ("artifacts/link", "/etc/passwd"),
        ("secrets.json", ""),
        ("artifacts/../secrets.json", ""),
    ],
)
def test_restore_writes_only_artifacts(tmp_path: Path, name: str, link: str) -> None:
    copy, folder = tmp_path / "copy", tmp_path / "server" / "artifacts"
    copy.mkdir()
    sqlite3.connect(copy / copies.DUMP).close()
    with tarfile.open(copy / "artifacts.tar", "w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = (tarfile.SYMTYPE, link) if link else (tarfile.REGTYPE, "")
        tar.addfile(member)
    with pytest.raises(UsageError) as error:
        copies.restore(copy, FileDatabase(tmp_path / "new.db"), ArtifactFolder(folder))
    assert refusal(error, ErrorCode.UNREADABLE, repr(name))
    assert not (tmp_path / "escaped").exists()
    assert not (tmp_path / "server").exists()


@pytest.mark.debian(package="postgresql")
def test_failed_restore_leaves_no_server_and_no_database(group: Group, place: Path) -> None:
    backups = place / "copies"
    assert native("backup", group.folder, str(backups)).returncode == 0
    (copy,) = copies.list_backups(backups)
    dump = (copy / copies.DUMP).read_bytes()
    (copy / copies.DUMP).write_bytes(dump[: len(dump) // 2])
    sign(copy)
    failed = native("restore", place / "new", str(copy))
    assert (failed.returncode, len(failed.stderr.splitlines())) == (2, 1), failed.stderr
    assert "pg_restore" in failed.stderr
    assert not [path.name for path in (place / "new").iterdir() if path.name != "at-work.lock"]
    assert native("status", place / "new").returncode == 2

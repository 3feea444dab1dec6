"""Backups: old and unfinished ones are removed; a backup or a restore is complete or missing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
from pathlib import Path

import psutil
import pytest

from deploy import copies
from deploy.native.__main__ import parse_metadata
from deploy.native.folder import DeployError, Folder, Settings, locked
from tests.deploy.group import Group, native


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return the folder of a stopped server with a database and artifacts of 300 KB."""
    made = Folder(tmp_path / "server")
    made.set_up(Settings(database="sqlite"))
    with sqlite3.connect(made.sqlite) as database:
        database.execute("CREATE TABLE kept (value)")
        database.execute("INSERT INTO kept VALUES (7)")
    (made.artifacts / "1").mkdir()
    (made.artifacts / "1" / "values.bin").write_bytes(os.urandom(300_000))
    return made


def add_backup(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir(parents=True)
    (made / "about.json").write_text('{"sha256": {}}')
    return made


def test_backup_keeps_the_newest_and_removes_unfinished_ones(folder: Folder) -> None:
    old = [add_backup(folder.backups, f"2020-01-0{day}T00-00-00") for day in (1, 2, 3)]
    other = add_backup(folder.backups, "before-the-move")
    dead = folder.backups / f".2020-02-01T00-00-00{copies.UNFINISHED}"
    dead.mkdir()
    with locked(folder.backups / copies.LOCK):
        refused = native("backup", folder.path)
    assert refused.returncode == 2
    assert "another backup is being made" in refused.stderr
    done = native("backup", folder.path, "--keep", "2")
    assert done.returncode == 0, done.stderr
    assert f"deleted the old backup {old[0]}" in done.stdout
    assert [path.exists() for path in (*old, other, dead)] == [False, False, True, True, False]
    assert len(list(folder.backups.iterdir())) == 3
    refused = native("backup", folder.path, "--keep", "0")
    assert refused.returncode == 2
    assert "--keep 0: at least 1 backup stays" in refused.stderr


def test_backup_into_a_folder_keeps_the_newest_copies_there(folder: Folder, tmp_path: Path) -> None:
    inside = add_backup(folder.backups, "2020-01-01T00-00-00")
    target = tmp_path / "copies"
    old = [add_backup(target, f"2020-01-0{day}T00-00-00") for day in (1, 2, 3)]
    notes = target / "2020-01-04T00-00-00"
    notes.mkdir()
    (notes / "about.json").write_text('{"title": "notes"}')
    others = [notes, add_backup(target, "before-the-move"), target / "2020-01-05T00-00-00"]
    others[-1].symlink_to(inside)
    done = native("backup", folder.path, str(target), "--keep", "2")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("deleted")] == [
        f"deleted the old backup {path}" for path in old[:2]
    ]
    assert [path.exists() for path in (*old, *others, inside)] == [False, False, *[True] * 5]
    newest = copies.list_backups(target)[-1]
    assert copies.list_backups(target) == [old[2], newest]
    assert f"copied to {newest};" in done.stdout
    copies.load(newest, parse_metadata)
    assert copies.list_backups(folder.backups) == [inside]
    refused = native("backup", folder.path, str(newest), "--keep", "2")
    assert refused.returncode == 2
    assert f"{newest} is a backup itself; choose another folder" in refused.stderr
    copies.load(newest, parse_metadata)


@pytest.mark.parametrize("small_disk", ["128k"], indirect=True)
def test_full_disk_is_one_line_and_holds_no_part_of_a_backup(
    folder: Folder, group: Group, small_disk: Path
) -> None:
    for server in (folder.path, group.folder):
        done = native("backup", server, str(small_disk / "copy"))
        assert done.returncode == 2
        assert "No space left on device" in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert list(small_disk.iterdir()) == []


def test_backup_refuses_a_link_among_the_artifacts(folder: Folder) -> None:
    (folder.artifacts / "link").symlink_to("/etc/passwd")
    done = native("backup", folder.path)
    assert done.returncode == 2
    assert str(folder.artifacts / "link") in done.stderr
    assert not list(folder.backups.iterdir())


def spoiled(copy: Path) -> None:
    """Add a file to the archive, with checksums that fit."""
    with tarfile.open(copy / "artifacts.tar", "a") as tar:
        tar.addfile(tarfile.TarInfo("secrets.json"))
    redone(copy)


def redone(copy: Path) -> None:
    about = json.loads((copy / "about.json").read_text())
    about["sha256"] = {
        name: hashlib.sha256((copy / name).read_bytes()).hexdigest() for name in about["sha256"]
    }
    (copy / "about.json").write_text(json.dumps(about))


def test_failed_restore_leaves_no_server(folder: Folder, tmp_path: Path) -> None:
    assert native("backup", folder.path, str(tmp_path / "copy")).returncode == 0
    spoiled(tmp_path / "copy")
    target = tmp_path / "new"
    failed = native("restore", target, str(tmp_path / "copy"))
    assert failed.returncode == 2
    assert "holds 'secrets.json', which is no file of the artifacts" in failed.stderr
    assert not [item.name for item in target.iterdir() if item.name != "at-work.lock"]
    assert "there is no server in" in native("status", target).stderr


@pytest.mark.parametrize(
    "about",
    ["", "[]", "{}", '{"settings": {"color": 1}, "sha256": {}}', '{"settings": 3, "sha256": 4}'],
)
def test_load_refuses_metadata_of_no_backup(tmp_path: Path, about: str) -> None:
    (tmp_path / "about.json").write_text(about)
    with pytest.raises(DeployError, match=r"is no backup: it has no readable about\.json"):
        copies.load(tmp_path, parse_metadata)


@pytest.mark.debian(package="postgresql")
def test_restore_of_a_broken_dump_leaves_no_database(group: Group, place: Path) -> None:
    assert native("backup", group.folder, str(place / "copy")).returncode == 0
    dump = (place / "copy" / "database.dump").read_bytes()
    (place / "copy" / "database.dump").write_bytes(dump[: len(dump) // 2])
    redone(place / "copy")
    failed = native("restore", place / "new", str(place / "copy"))
    assert failed.returncode == 2
    assert "pg_restore failed" in failed.stderr
    assert not [item.name for item in (place / "new").iterdir() if item.name != "at-work.lock"]
    left = [
        item.info
        for item in psutil.process_iter(["cmdline"])
        if str(place / "new") in " ".join(item.info["cmdline"] or [])
    ]
    assert not left
    shutil.rmtree(place / "copy")

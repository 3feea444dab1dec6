"""Copies: old ones go, what a dead one left goes, a full disk holds nothing of one, a restore is whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
from pathlib import Path

import psutil
import pytest

from deploy import copies
from deploy.native import backup
from deploy.native.folder import Folder, Refused, Settings, locked
from tests.deploy.group import Group, native


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Of a server that does not run: with a database, and artifacts of 300 KB."""
    made = Folder(tmp_path / "server")
    made.set_up(Settings(database="sqlite"))
    with sqlite3.connect(made.sqlite) as database:
        database.execute("CREATE TABLE kept (value)")
        database.execute("INSERT INTO kept VALUES (7)")
    (made.artifacts / "1").mkdir()
    (made.artifacts / "1" / "values.bin").write_bytes(os.urandom(300_000))
    return made


def copy_in(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir(parents=True)
    (made / "about.json").write_text("{}")
    return made


def test_the_newest_copies_stay_and_what_dead_ones_left_goes(folder: Folder) -> None:
    old = [copy_in(folder.backups, f"2020-01-0{day}T00-00-00") for day in (1, 2, 3)]
    mine = copy_in(folder.backups, "before-the-move")
    dead = folder.backups / ".2020-02-01T00-00-00.unfinished"
    at_work = folder.backups / ".2020-02-02T00-00-00.unfinished"
    for one in (dead, at_work):
        one.mkdir()
        (one / "database.dump").touch()
    with locked(at_work.with_name(".2020-02-02T00-00-00.lock")) as alone:
        assert alone
        done = native("backup", folder.path, "--keep", "2")
    assert done.returncode == 0, done.stderr
    assert f"deleted the old copy {old[0]}" in done.stdout
    assert [one.exists() for one in old] == [False, False, True]
    assert mine.exists()
    assert not dead.exists()
    assert at_work.exists()
    assert len(list(folder.backups.glob("[!.]*"))) == 3
    refused = native("backup", folder.path, "--keep", "0")
    assert refused.returncode == 2
    assert "--keep 0: at least 1 copy stays" in refused.stderr


@pytest.mark.parametrize("small_disk", ["128k"], indirect=True)
def test_a_full_disk_is_one_line_and_holds_nothing_of_the_copy(
    folder: Folder, group: Group, small_disk: Path
) -> None:
    for server in (folder.path, group.folder):
        done = native("backup", server, str(small_disk / "copy"))
        assert done.returncode == 2
        assert "No space left on device" in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert list(small_disk.iterdir()) == []


def test_a_backup_that_is_killed_leaves_what_the_next_removes(folder: Folder) -> None:
    (folder.artifacts / "1" / "large.bin").write_bytes(bytes(200_000_000))
    command = ["python", "-m", "deploy.native", "backup", "--folder", str(folder.path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not (left := list(folder.backups.glob(".*.unfinished/artifacts.tar"))):
        assert process.poll() is None
    process.kill()
    process.wait()
    assert left[0].exists()
    (folder.artifacts / "1" / "large.bin").unlink()
    assert native("backup", folder.path).returncode == 0
    assert [one.name.startswith(".") for one in folder.backups.iterdir()] == [False]


def test_a_link_among_the_artifacts_is_refused_when_copied(folder: Folder) -> None:
    (folder.artifacts / "link").symlink_to("/etc/passwd")
    done = native("backup", folder.path)
    assert done.returncode == 2
    assert str(folder.artifacts / "link") in done.stderr
    assert not list(folder.backups.iterdir())


def spoiled(copy: Path) -> None:
    """With checksums that fit: as whoever may write to the copies would."""
    with tarfile.open(copy / "artifacts.tar", "a") as tar:
        tar.addfile(tarfile.TarInfo("secrets.json"))
    redone(copy)


def redone(copy: Path) -> None:
    about = json.loads((copy / "about.json").read_text())
    about["sha256"] = {
        name: hashlib.sha256((copy / name).read_bytes()).hexdigest() for name in about["sha256"]
    }
    (copy / "about.json").write_text(json.dumps(about))


def test_a_restore_that_fails_leaves_no_server(folder: Folder, tmp_path: Path) -> None:
    assert native("backup", folder.path, str(tmp_path / "copy")).returncode == 0
    spoiled(tmp_path / "copy")
    target = tmp_path / "new"
    failed = native("restore", target, str(tmp_path / "copy"))
    assert failed.returncode == 2
    assert "holds 'secrets.json', which is no file of the artifacts" in failed.stderr
    assert not [one.name for one in target.iterdir() if one.name != "at-work.lock"]
    assert "there is no server in" in native("status", target).stderr

    (target / "restoring").write_text("sqlite")  # as a restore that was killed
    (target / "sqlite").mkdir()
    for action in ("start", "status", "stop", "backup"):
        told = native(action, target)
        assert told.returncode == 2
        assert "a copy was not wholly restored into" in told.stderr
    again = native("restore", target, str(tmp_path / "copy"))
    assert "which is no file of the artifacts" in again.stderr
    assert not [one.name for one in target.iterdir() if one.name != "at-work.lock"]


@pytest.mark.parametrize(
    "about",
    ["", "[]", "{}", '{"settings": {"color": 1}, "sha256": {}}', '{"settings": 3, "sha256": 4}'],
)
def test_what_is_no_copy_is_refused(tmp_path: Path, about: str) -> None:
    (tmp_path / "about.json").write_text(about)
    with pytest.raises(Refused, match=r"is no backup: it has no readable about\.json"):
        copies.load(tmp_path, backup.parse)


@pytest.mark.debian(package="postgresql")
def test_a_dump_that_cannot_be_read_leaves_no_database_behind(group: Group, place: Path) -> None:
    assert native("backup", group.folder, str(place / "copy")).returncode == 0
    dump = (place / "copy" / "database.dump").read_bytes()
    (place / "copy" / "database.dump").write_bytes(dump[: len(dump) // 2])
    redone(place / "copy")
    failed = native("restore", place / "new", str(place / "copy"))
    assert failed.returncode == 2
    assert "pg_restore failed" in failed.stderr
    assert not [one.name for one in (place / "new").iterdir() if one.name != "at-work.lock"]
    left = [
        one.info
        for one in psutil.process_iter(["cmdline"])
        if str(place / "new") in " ".join(one.info["cmdline"] or [])
    ]
    assert not left
    shutil.rmtree(place / "copy")

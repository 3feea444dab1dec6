"""Server of one command: backed up, restored, mended after deaths, stopped, upgraded."""

from __future__ import annotations

import grp
import os
import shutil
import socket
import sqlite3
import stat
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests

from deploy import copies
from deploy.copies import ArtifactFolder
from deploy.native import database
from deploy.native.database import PostgreSQL, Sqlite
from deploy.native.folder import DeployError, Folder, Secrets, Settings
from tests.deploy.group import API, Group, Team, cluster_processes, free_port, native


@dataclass
class Restored:
    """Server that was restored from a backup of the group's, with a run and its file."""

    folder: Path
    port: int
    run: str
    file: str


@pytest.fixture(scope="module")
def restored(group: Group) -> Iterator[Restored]:
    run = Team(group, "alice", "vision")
    point = {"key": "val/loss", "value": 1.5, "timestamp": 1, "step": 0}
    run.post("runs/log-metric", run_id=run.run, **point)
    place, port = Path(tempfile.mkdtemp(prefix="evenhand-native-", dir="/tmp")), free_port()
    place.chmod(0o711)
    copied = native("backup", group.folder, str(place / "copy"))
    assert copied.returncode == 0, copied.stderr
    options = ("--port", str(port), "--workers", "1")
    done = native("restore", place / "second", str(place / "copy"), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    yield Restored(place / "second", port, run.run, run.file)
    native("stop", place / "second")
    shutil.rmtree(place)


def test_backup_of_a_working_server_is_restored(group: Group, restored: Restored) -> None:
    again = native("start", group.folder, "--port", "1")
    assert again.returncode == 2
    assert "is running already" in again.stderr
    assert native("status", group.folder).returncode == 0, "a refused start changes nothing"

    def get(path: str) -> requests.Response:
        uri, user = f"http://127.0.0.1:{restored.port}", ("alice", group.password("alice"))
        return requests.get(f"{uri}{path}", auth=user, timeout=30)

    run = get(f"{API}/runs/get?run_id={restored.run}").json()["run"]
    assert [metric["value"] for metric in run["data"]["metrics"]] == [1.5]
    assert get(restored.file).content == b"kept"

    copy, damaged = restored.folder.parent / "copy", restored.folder.parent / "damaged"
    full = native("restore", restored.folder, str(copy))
    assert full.returncode == 2
    assert "restore into an empty --folder" in full.stderr
    shutil.copytree(copy, damaged)
    with (damaged / "artifacts.tar").open("r+b") as file:
        file.write(b"x")
    refused = native("restore", restored.folder.parent / "third", str(damaged))
    assert refused.returncode == 2
    assert "is damaged" in refused.stderr


@pytest.mark.debian(package="postgresql")
def test_start_mends_a_dead_database_and_stop_ends_workers(restored: Restored) -> None:
    folder = restored.folder
    first = psutil.Process(int((folder / "server.pid").read_text()))
    old = [first, *first.children(recursive=True)]
    for process in cluster_processes(folder):
        process.kill()
    time.sleep(3)  # the server's knowledge of itself is at most two seconds old
    status = native("status", folder)
    assert status.returncode == 1
    assert "is not ready: the database cannot be written and read: " in status.stdout
    assert "system is down" in status.stdout
    for headers in ({}, {"Authorization": "Bearer guessed"}):
        address = f"http://127.0.0.1:{restored.port}/ready"
        answer = requests.get(address, headers=headers, timeout=20)
        assert (answer.status_code, answer.text) == (503, "not ready\n"), "no reason for strangers"
    assert "not ready: the database cannot be" in (folder / "server.log").read_text()
    mended = native("start", folder)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "it is started again" in mended.stdout
    assert native("status", folder).returncode == 0
    assert not [process for process in old if process.is_running()]

    main = psutil.Process(int((folder / "server.pid").read_text()))
    workers = main.children(recursive=True)
    main.kill()
    psutil.wait_procs([main], timeout=10)
    assert native("status", folder).returncode == 1
    assert native("stop", folder).returncode == 0
    running = [process for process in workers if process.is_running()]
    assert {process.status() for process in running} <= {psutil.STATUS_ZOMBIE}
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", restored.port)) != 0


def test_database_is_served_by_the_version_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in (16, 18):
        initdb = tmp_path / str(version) / "bin" / "initdb"
        initdb.parent.mkdir(parents=True)
        initdb.touch()
    monkeypatch.setattr(database, "DEBIAN", tmp_path)
    folder = Folder(tmp_path / "server")
    cluster = folder.path / "postgres" / "data"
    cluster.mkdir(parents=True)
    for made_by, serves in ((None, 18), (16, 16), (18, 18)):
        if made_by:
            (cluster / "PG_VERSION").write_text(f"{made_by}\n")
        server = database.create(folder, Settings(), Secrets())
        assert isinstance(server, PostgreSQL)
        assert server.binaries == tmp_path / str(serves) / "bin"
    (cluster / "PG_VERSION").write_text("9\n")
    with pytest.raises(DeployError, match=r"is of PostgreSQL 9, not of 16, 18; install 9"):
        database.create(folder, Settings(), Secrets())


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
    copy, folder = tmp_path / "copy", Folder(tmp_path / "server")
    copy.mkdir()
    sqlite3.connect(copy / "database.sqlite").close()
    with tarfile.open(copy / "artifacts.tar", "w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = (tarfile.SYMTYPE, link) if link else (tarfile.REGTYPE, "")
        tar.addfile(member)
    folder.set_up(Settings(database="sqlite"))
    before = folder.secrets()
    with pytest.raises(DeployError, match="which is no file of the artifacts"):
        copies.restore(copy, Sqlite(folder.sqlite), ArtifactFolder(folder.artifacts))
    assert folder.secrets() == before
    assert not (tmp_path / "escaped").exists()
    assert not list(folder.artifacts.iterdir())


def test_only_owners_read_secrets(group: Group) -> None:
    for name in ("secrets.json", "server.log", "settings.json", "server.pid"):
        assert stat.S_IMODE((group.folder / name).stat().st_mode) == 0o600
    auth = (group.folder / "auth.ini").stat()
    assert stat.S_IMODE(auth.st_mode) == (
        0o600 if os.getuid() else 0o640
    )  # of root's, the server's user may read it
    assert os.getuid() or grp.getgrgid(auth.st_gid).gr_name == "evenhand"
    assert stat.S_IMODE((group.accounts / "alice.env").stat().st_mode) == 0o600
    hidden = [
        *group.secrets.values(),
        *(group.password(user) for user in ("alice", "bob", "carol")),
    ]
    everybody_sees = subprocess.run(
        ["ps", "axww", "-o", "args"], capture_output=True, text=True
    ).stdout
    logs = "".join(
        path.read_text(errors="replace")
        for path in group.folder.rglob("*.log")
        if os.access(path, os.R_OK)
    )
    for secret in hidden:
        assert secret not in everybody_sees
        assert secret not in logs


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("start", "--database", "mysql://x/y"),
            "write system, sqlite or postgresql://user@host/database",
        ),
        (("start", "--database", "postgresql://u:secret@h/d"), "leave it out and set PGPASSWORD"),
        (("status",), "there is no server in"),
        (("restore", "nowhere"), "is no backup"),
    ],
)
def test_wrong_call_is_one_line(tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    done = native(arguments[0], tmp_path / "server", *arguments[1:])
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.slow
def test_upgrade_copies_and_starts_again(place: Path) -> None:
    server = place / "one"
    done = native("start", server, "--database", "sqlite", "--port", str(free_port()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "for one person" in done.stdout
    upgraded = native("upgrade", server)
    assert upgraded.returncode == 0, upgraded.stdout + upgraded.stderr
    assert "MLflow answers" in upgraded.stdout
    assert len(list((server / "backups").iterdir())) == 1

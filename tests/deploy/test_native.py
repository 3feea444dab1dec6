"""Server of one command: backed up, restored, started again after deaths, stopped, upgraded."""

from __future__ import annotations

import grp
import os
import re
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests

from deploy import copies
from deploy.native import database
from deploy.native.folder import Folder, Secrets, Settings
from tests.deploy.group import (
    API,
    Group,
    Team,
    cluster_processes,
    free_port,
    native,
    server_processes,
)
from tracking.errors import ErrorCode, UsageError


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
    copied = native("backup", group.folder, str(place / "copies"))
    assert copied.returncode == 0, copied.stderr
    (copy,) = copies.list_backups(place / "copies")
    done = native("restore", place / "second", str(copy), "--port", str(port))
    assert done.returncode == 0, done.stdout + done.stderr
    yield Restored(place / "second", port, run.run, run.file)
    native("stop", place / "second")
    shutil.rmtree(place)


def test_backup_of_a_working_server_is_restored(group: Group, restored: Restored) -> None:
    again = native("start", group.folder, "--port", "1")
    assert (again.returncode, len(again.stderr.splitlines())) == (2, 1), again.stderr
    assert native("status", group.folder).returncode == 0, "a refused start changes nothing"

    def get(path: str) -> requests.Response:
        uri, user = f"http://127.0.0.1:{restored.port}", ("alice", group.password("alice"))
        return requests.get(f"{uri}{path}", auth=user, timeout=30)

    run = get(f"{API}/runs/get?run_id={restored.run}").json()["run"]
    assert [metric["value"] for metric in run["data"]["metrics"]] == [1.5]
    assert get(restored.file).content == b"kept"
    (copy,) = copies.list_backups(restored.folder.parent / "copies")
    full = native("restore", restored.folder, str(copy))
    assert (full.returncode, len(full.stderr.splitlines())) == (2, 1), full.stderr


@pytest.mark.debian(package="postgresql")
def test_start_follows_a_dead_database_and_stop_a_dead_main_process(restored: Restored) -> None:
    folder = restored.folder
    before = server_processes(folder)
    for process in cluster_processes(folder):
        process.kill()
    time.sleep(3)  # the server's knowledge of itself is at most two seconds old
    status = native("status", folder)
    assert status.returncode == 1
    reason = re.search("not ready: (the database .*)", (folder / "server.log").read_text())[1]
    assert reason in status.stdout
    answer = requests.get(f"http://127.0.0.1:{restored.port}/ready", timeout=20)
    assert (answer.status_code, answer.text) == (503, "not ready\n"), "no reason for strangers"
    again = native("start", folder)
    assert again.returncode == 0, again.stdout + again.stderr
    assert native("status", folder).returncode == 0
    assert not [process for process in before if process.is_running()]

    main, *workers = server_processes(folder)
    main.kill()
    _, left = psutil.wait_procs(workers, timeout=20)
    assert {process.status() for process in left} <= {psutil.STATUS_ZOMBIE}
    assert native("status", folder).returncode == 1
    assert native("stop", folder).returncode == 0
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
        assert server.binaries == tmp_path / str(serves) / "bin"
    (cluster / "PG_VERSION").write_text("9\n")
    with pytest.raises(UsageError) as error:
        database.create(folder, Settings(), Secrets())
    assert error.value.code is ErrorCode.NOT_INSTALLED
    assert all(version in str(error.value) for version in ("PostgreSQL 9", "16, 18"))


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
    ("arguments", "value"),
    [
        (("start", "--database", "mysql://x/y"), "--database"),
        (("start", "--database", "postgresql://u:secret@h/d"), "PGPASSWORD"),
        (("status",), "/server"),
        (("restore", "nowhere"), "/nowhere"),
    ],
)
def test_wrong_call_is_one_line(tmp_path: Path, arguments: tuple[str, ...], value: str) -> None:
    done = native(arguments[0], tmp_path / "server", *arguments[1:])
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert value in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.slow
def test_upgrade_copies_and_starts_again(place: Path) -> None:
    server = place / "first"
    done = native("start", server, "--port", str(free_port()))
    assert done.returncode == 0, done.stdout + done.stderr
    upgraded = native("upgrade", server)
    assert upgraded.returncode == 0, upgraded.stdout + upgraded.stderr
    assert native("status", server).returncode == 0
    assert len(copies.list_backups(server / "backups")) == 1

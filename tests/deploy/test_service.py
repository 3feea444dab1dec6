"""Processes of a server: stopped as a whole, started as another user, started again."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from deploy.native import account, interpreter
from deploy.native.folder import Folder, Settings, locked
from tests.conftest import ROOT
from tests.deploy.group import Group, cluster_processes, free_port, native, server_processes

AS_ROOT = pytest.mark.skipif(
    os.getuid() != 0, reason="what root's server may do is looked at as root"
)
# Python may lie where nobody may enter: rights are given up once the command is imported.
AS_NOBODY = """
import os, pwd, sys
from deploy.native.__main__ import main
user = pwd.getpwnam("nobody")
os.setgroups([])
os.setgid(user.pw_gid)
os.setuid(user.pw_uid)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def other_port() -> Iterator[int]:
    """Return a port on which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def refused(done: subprocess.CompletedProcess[str], *values: object) -> bool:
    """Return whether a call was refused in one line that names the values."""
    lines = done.stderr.splitlines()
    is_named = all(str(value) in done.stderr for value in values)
    return done.returncode == 2 and len(lines) == 1 and is_named


@pytest.mark.debian(package="postgresql")
def test_stop_leaves_a_process_that_got_the_servers_number(place: Path, other_port: int) -> None:
    """Write the number of another session: no process holds the server's lock."""
    folder = Folder(place / "server")
    folder.set_up(Settings(port=other_port))
    folder.log.touch()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        for action, code in {"status": 1, "stop": 0, "start": 2}.items():
            folder.pid_file.write_text(str(stranger.pid))
            done = native(action, folder.path)
            assert done.returncode == code, done.stdout + done.stderr
            assert stranger.poll() is None
        assert refused(done, f"127.0.0.1:{other_port}")
        with locked(folder.log):  # and of a server that runs the number has to be known
            folder.pid_file.write_text("0")
            assert refused(native("stop", folder.path), folder.pid_file)
        stranger.kill()


@AS_ROOT
def test_call_of_another_user_is_one_line(place: Path) -> None:
    folder = Folder(place / "server")
    folder.set_up(Settings())
    for action in ("start", "status", "backup"):
        command = [sys.executable, "-c", AS_NOBODY, action, "--folder", str(folder.path)]
        local = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(command, cwd="/", env=local, capture_output=True, text=True)
        assert refused(done, folder.path), done.stderr


@AS_ROOT
def test_start_names_a_folder_that_the_servers_user_cannot_enter(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    database = "postgresql://evenhand@127.0.0.1/none"  # nobody asks it before
    options = ("--database", database, "--port", str(free_port()))
    done = native("start", closed / "server", *options)
    assert refused(done, f"chmod o+x {closed}"), done.stderr


@AS_ROOT
def test_server_runs_a_copy_if_its_user_cannot_enter_pythons_folder(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, owner = group.folder / "python", account.of_server()
    if not copy.exists():  # this machine's Python is open to all: make the copy alone
        monkeypatch.setattr(account, "obstacle", lambda *_: "/closed")
        interpreter.command(owner, Folder(group.folder))
    else:
        (server, *_) = server_processes(group.folder)
        assert server.environ()["PYTHONPATH"] == str(copy / "packages")
    (made,) = copy.glob("copied-*")
    before = made.stat()
    python, variables = interpreter.command(owner, Folder(group.folder))
    assert made.stat() == before, "a copy that still fits stays"
    assert variables["PYTHONPATH"] == str(copy / "packages")
    assert subprocess.run(["test", "-x", python], **account.process_options(owner)).returncode == 0
    files = [path for path in copy.rglob("*") if not path.is_symlink()]
    assert {path.owner() for path in files} == {"root"}
    assert not [path for path in files if path.stat().st_mode & 0o022]
    original = Path(requests.__file__).resolve()
    assert (copy / "packages/requests/__init__.py").samefile(original), "a link takes no space"
    assert not {"torch", "tensorflow", "keras"} & {path.name for path in copy.glob("packages/*")}


@AS_ROOT
def test_server_may_write_its_artifacts_and_nothing_else(group: Group) -> None:
    processes = server_processes(group.folder)
    users = {item.username() for item in processes if item.status() != psutil.STATUS_ZOMBIE}
    assert users == {"evenhand"}
    assert {item.gids().effective for item in processes} == {pwd.getpwnam("evenhand").pw_gid}
    assert cluster_processes(group.folder)[0].username() == "postgres"
    (group.folder / "backups").mkdir(mode=0o700)
    options = account.process_options(account.of_server())

    def may(way: str, name: str) -> bool:
        command = ["test", f"-{way}", str(group.folder / name)]
        return subprocess.run(command, **options).returncode == 0

    closed = ["secrets.json", "settings.json", "server.log", "server.pid", "backups"]
    closed.append("postgres/data")
    assert not [name for name in closed if may("r", name)]
    assert not [name for name in (*closed, ".", "auth.ini", "postgres") if may("w", name)]
    assert may("w", "artifacts")
    assert may("r", "auth.ini")
    shutil.rmtree(group.folder / "backups")

"""Processes of a server: stopped as a whole, started again after a death, watched."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import psutil
import pytest
import requests

from deploy.native import account, interpreter, service
from deploy.native.account import Account
from deploy.native.folder import Folder, Settings, locked
from tests.conftest import ROOT
from tests.deploy.group import Group, cluster_processes, free_port, native

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


class Silent(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other_port() -> Iterator[int]:
    """Return a port on which another server answers."""
    server = HTTPServer(("127.0.0.1", 0), Silent)
    Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


def test_stop_leaves_a_process_that_got_the_servers_number(place: Path, other_port: int) -> None:
    """The number is that of a session that is not the server's: no process holds its lock."""
    folder = Folder(place / "server")
    folder.set_up(Settings(database="sqlite", port=other_port))
    folder.log.touch()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        for action, code in {"status": 1, "stop": 0, "start": 2}.items():
            folder.pid_file.write_text(str(stranger.pid))
            done = native(action, folder.path)
            assert done.returncode == code, done.stdout + done.stderr
            assert stranger.poll() is None
        assert "something else answers" in done.stderr
        with locked(folder.log) as is_free:  # and of a server that runs the number has to be known
            folder.pid_file.write_text("0")
            assert is_free
            done = native("stop", folder.path)
        stranger.kill()
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr


@AS_ROOT
def test_call_of_another_user_is_one_line(place: Path) -> None:
    folder = Folder(place / "server")
    folder.set_up(Settings(database="sqlite"))
    for action in ("start", "status", "backup"):
        command = [sys.executable, "-c", AS_NOBODY, action, "--folder", str(folder.path)]
        local = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(command, cwd="/", env=local, capture_output=True, text=True)
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert "call this as root" in done.stderr


@AS_ROOT
def test_start_names_a_folder_that_the_servers_user_cannot_enter(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    done = native("start", closed / "server", "--database", "sqlite", "--port", str(free_port()))
    assert done.returncode == 2
    assert f"cannot enter {closed}" in done.stderr
    assert f"chmod o+x {closed}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@AS_ROOT
def test_server_runs_a_copy_if_its_user_cannot_enter_pythons_folder(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, owner = group.folder / "python", account.of_server()
    if not copy.exists():  # this machine's Python is open to all: make the copy alone
        monkeypatch.setattr(Account, "obstacle", lambda *_: "/closed")
        interpreter.command(owner, Folder(group.folder))
    else:
        server = psutil.Process(int((group.folder / "server.pid").read_text()))
        assert server.environ()["PYTHONPATH"] == str(copy / "packages")
    (made,) = copy.glob("copied-*")
    before = made.stat()
    python, variables = interpreter.command(owner, Folder(group.folder))
    assert made.stat() == before, "a copy that still fits stays"
    assert variables["PYTHONPATH"] == str(copy / "packages")
    assert subprocess.run(["test", "-x", python], **owner.process_options).returncode == 0
    files = [path for path in copy.rglob("*") if not path.is_symlink()]
    assert {path.owner() for path in files} == {"root"}
    assert not [path for path in files if path.stat().st_mode & 0o022]
    original = Path(requests.__file__).resolve()
    assert (copy / "packages/requests/__init__.py").samefile(original), "a link takes no space"
    assert not {"torch", "tensorflow", "keras"} & {path.name for path in copy.glob("packages/*")}


@AS_ROOT
def test_server_may_write_its_artifacts_and_nothing_else(group: Group) -> None:
    server = psutil.Process(int((group.folder / "server.pid").read_text()))
    processes = [server, *server.children(recursive=True)]
    users = {item.username() for item in processes if item.status() != psutil.STATUS_ZOMBIE}
    assert users == {"evenhand"}
    assert {item.gids().effective for item in processes} == {pwd.getpwnam("evenhand").pw_gid}
    assert cluster_processes(group.folder)[0].username() == "postgres"
    (group.folder / "backups").mkdir(mode=0o700)
    options = account.of_server().process_options

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


def test_run_in_the_foreground_notifies_and_ends_on_a_signal(place: Path) -> None:
    folder, address = place / "server", place / "notify"
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(address))
    manager.settimeout(150)
    command = [sys.executable, "-m", "deploy.native", "run", "--folder", str(folder)]
    command += ["--port", str(free_port()), "--workers", "1", "--database", "sqlite"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    env["NOTIFY_SOCKET"] = str(address)
    with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE) as process:
        assert manager.recv(1_000) == b"READY=1"
        assert native("status", folder).returncode == 0
        process.send_signal(signal.SIGTERM)
        assert manager.recv(1_000) == b"STOPPING=1"
        assert process.wait(60) == 0
    assert "is not ready: it is not running" in native("status", folder).stdout


@pytest.mark.parametrize(
    ("seconds", "problems", "reason"),
    [
        (0.1, [], "the server's main process ended with code 0"),
        (60, ["x", "x", "x"], "not ready for 3 checks"),
        (60, ["x", "x", "", "x", "x", "x"], "not ready for 3 checks"),
    ],
)
def test_watch_ends_with_the_process_or_after_three_failed_checks(
    monkeypatch: pytest.MonkeyPatch, seconds: float, problems: list[str], reason: str
) -> None:
    waiting = iter(problems)
    monkeypatch.setattr(service, "problem", lambda *_: next(waiting, ""))
    monkeypatch.setattr(service, "CHECK_SECONDS", 0.01)
    with subprocess.Popen(["sleep", str(seconds)]) as process:
        assert service.watch(Folder(Path("unused")), Settings(), process) == reason
        process.kill()
    assert next(waiting, None) is None

"""Processes of a server: stopped as a whole, started again after a death, watched."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
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
from tests.conftest import ROOT, wait_for
from tests.deploy.group import Group, free_port, native

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
    """Where somebody else answers: a start gets as far as that."""
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
    for action in ("start", "run", "stop", "status", "backup", "upgrade", "gc"):
        command = [sys.executable, "-c", AS_NOBODY, action, "--folder", str(folder.path)]
        own = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd="/", env=own, capture_output=True, text=True)
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
    everyone = [server, *server.children(recursive=True)]
    assert {one.username() for one in everyone if one.status() != psutil.STATUS_ZOMBIE} == {
        "evenhand"
    }
    assert {one.gids().effective for one in everyone} == {pwd.getpwnam("evenhand").pw_gid}
    cluster = psutil.Process(
        int(
            subprocess.check_output(
                ["head", "-1", str(group.folder / "postgres/data/postmaster.pid")]
            )
        )
    )
    assert cluster.username() == "postgres"
    native("backup", group.folder)

    def may(way: str, path: Path) -> bool:
        command = ["test", f"-{way}", str(path)]
        return (
            subprocess.run(command, user="evenhand", group="evenhand", extra_groups=[]).returncode
            == 0
        )

    closed = [
        "secrets.json",
        "settings.json",
        "server.log",
        "server.pid",
        "backups",
        "postgres/data",
    ]
    assert not [name for name in closed if may("r", group.folder / name)]
    assert not [
        name for name in (*closed, ".", "auth.ini", "postgres") if may("w", group.folder / name)
    ]
    assert may("w", group.folder / "artifacts")
    assert may("r", group.folder / "auth.ini")
    shutil.rmtree(group.folder / "backups")


@pytest.mark.debian(package="postgresql")
def test_start_mends_a_dead_database_and_a_dead_main_process(place: Path) -> None:
    folder = place / "server"
    port = free_port()
    started = native("start", folder, "--port", str(port), "--workers", "1")
    assert started.returncode == 0, started.stdout + started.stderr
    first = psutil.Process(int((folder / "server.pid").read_text()))
    workers = first.children(recursive=True)

    for one in _cluster(folder):
        one.kill()
    time.sleep(3)  # what the server knows of itself is at most two seconds old
    told = native("status", folder)
    assert told.returncode == 1
    assert "is not ready: the database cannot be written and read: " in told.stdout
    assert "system is down" in told.stdout
    for headers in ({}, {"Authorization": "Bearer guessed"}):
        answer = requests.get(f"http://127.0.0.1:{port}/ready", headers=headers, timeout=20)
        assert (answer.status_code, answer.text) == (503, "not ready\n"), "strangers get no reason"
    log = (folder / "server.log").read_text()
    assert "not ready: the database cannot be written and read: " in log
    mended = native("start", folder)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "it is started again" in mended.stdout
    assert native("status", folder).returncode == 0
    assert not [one for process in (first, *workers) if process.is_running()]
    second = psutil.Process(int((folder / "server.pid").read_text()))
    workers = second.children(recursive=True)
    second.kill()
    wait_for(lambda: not second.is_running() or second.status() == psutil.STATUS_ZOMBIE, 10)
    told = native("status", folder)
    assert told.returncode == 1
    assert re.search(
        "is not ready: (its main process was killed|it is not running)", told.stdout
    ), "workers end after it"
    assert native("stop", folder).returncode == 0
    assert not [one for one in workers if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def _cluster(folder: Path) -> list[psutil.Process]:
    main = psutil.Process(
        int((folder / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
    )
    return [main, *main.children(recursive=True)]


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

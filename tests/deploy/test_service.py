"""The server's processes: told from others', ended whole, mended when something of them died, and watched in the foreground."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import psutil
import pytest
import requests

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


def test_a_process_that_got_the_servers_number_is_left_alone(place: Path, other_port: int) -> None:
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
def test_another_users_call_is_one_line(place: Path) -> None:
    folder = Folder(place / "server")
    folder.set_up(Settings(database="sqlite"))
    for action in ("start", "run", "stop", "status", "backup", "upgrade", "gc"):
        command = [sys.executable, "-c", AS_NOBODY, action, "--folder", str(folder.path)]
        own = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd="/", env=own, capture_output=True, text=True)
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert "belongs to root; call this as root" in done.stderr


@AS_ROOT
def test_a_folder_that_the_servers_user_cannot_enter_is_named(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    done = native("start", closed / "server", "--database", "sqlite", "--port", str(free_port()))
    assert done.returncode == 2
    assert f"cannot enter {closed}" in done.stderr
    assert f"chmod o+x {closed}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def with_a_copy(group: Group, place: Path) -> Path:
    """The folder of a running server that has a copy of Python: the group's where it needs one, as making one takes long."""
    if (group.folder / "python").exists():
        return group.folder
    folder, closed = place / "server", place / "closed"
    closed.mkdir(mode=0o700)
    venv.create(closed / "venv", symlinks=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(closed / "venv")})
    Path(packages, "tests.pth").write_text(sysconfig.get_path("purelib"))
    command = [
        str(closed / "venv/bin/python"),
        "-m",
        "deploy.native",
        "start",
        "--folder",
        str(folder),
    ]
    command += ["--database", "sqlite", "--port", str(free_port()), "--workers", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    return folder


@AS_ROOT
def test_a_server_whose_user_cannot_enter_pythons_folder_runs_a_private_copy(
    with_a_copy: Path,
) -> None:
    copy = with_a_copy / "python"
    server = psutil.Process(int((with_a_copy / "server.pid").read_text()))
    assert server.username() == "evenhand"
    assert server.environ()["PYTHONPATH"] == str(copy / "packages")
    account = server.cmdline()[0]
    assert (
        subprocess.run(
            ["test", "-x", account], user="evenhand", group="evenhand", extra_groups=[]
        ).returncode
        == 0
    )
    assert {path.owner() for path in copy.rglob("*")} == {"root"}
    writable = [
        path for path in copy.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o022
    ]
    assert not writable
    original = Path(requests.__file__).resolve()
    assert (copy / "packages/requests/__init__.py").samefile(original), (
        "on one file system it takes no space"
    )
    assert not [
        name for name in ("torch", "tensorflow", "keras") if (copy / "packages" / name).exists()
    ]
    (made,) = copy.glob("copied-*")
    before = made.stat()
    native("stop", with_a_copy)
    again = native("start", with_a_copy)
    assert again.returncode == 0, again.stdout + again.stderr
    assert made.stat() == before, "a copy that still fits is kept"


@AS_ROOT
def test_the_server_may_write_its_artifacts_and_nothing_else(group: Group) -> None:
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
def test_what_died_is_told_and_mended(place: Path) -> None:
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
    if os.getuid() == 0:  # as earlier versions left them
        (folder / "artifacts" / "old.txt").write_text("kept")
        os.chown(folder / "artifacts", 0, 0)
    mended = native("start", folder)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "it is started again" in mended.stdout
    assert native("status", folder).returncode == 0
    assert not [one for one in (first, *workers) if one.is_running()]
    if os.getuid() == 0:
        assert (folder / "artifacts" / "old.txt").owner() == "evenhand"

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


class Manager:
    """What systemd is to a service: a socket that it is told things on."""

    def __init__(self, place: Path) -> None:
        self.address = place / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.address))
        self._socket.settimeout(0.1)
        self.told = ""

    def heard(self, text: str) -> bool:
        try:
            self.told += self._socket.recv(10_000).decode() + "\n"
        except TimeoutError:
            pass
        return text in self.told

    def run(self, folder: Path, *arguments: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "deploy.native",
            "run",
            "--folder",
            str(folder),
            *arguments,
        ]
        told = {"NOTIFY_SOCKET": str(self.address), "WATCHDOG_USEC": "3000000"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=kept | told,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


@pytest.mark.debian(package="postgresql")
def test_in_the_foreground_it_says_that_it_is_ready_and_ends_with_its_database(place: Path) -> None:
    manager, folder = Manager(place), place / "server"
    process = manager.run(folder, "--port", str(free_port()), "--workers", "1")
    wait_for(lambda: manager.heard("READY=1") or process.poll() is not None, 150)
    assert process.poll() is None, process.communicate()
    wait_for(lambda: manager.heard("WATCHDOG=1"), 20)
    for one in _cluster(folder):
        one.kill()
    _, said = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "not ready: the database cannot be written and read" in said
    assert said.splitlines()[-1] == "evenhand server: not ready for 3 checks"
    wait_for(lambda: manager.heard("STOPPING=1"), 5)
    assert "STATUS=not ready: the database" in manager.told
    assert native("status", folder).returncode == 1

    again = manager.run(folder)  # as Restart=on-failure does; asked to end while it starts
    wait_for(lambda: (folder / "server.pid").exists(), 90)
    began = time.monotonic()
    again.send_signal(signal.SIGTERM)
    _, said = again.communicate(timeout=90)
    assert again.returncode == 0, said
    assert time.monotonic() - began < 60
    stopped = native("status", folder)
    assert "is not ready: it is not running" in stopped.stdout
    assert "system is down" in stopped.stdout

"""PostgreSQL server for tests: Debian's binaries, a temporary folder, a free port on loopback."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests import debian


def free_port() -> int:
    """Return a port below the kernel's own: it is still free minutes later."""
    while True:
        port = 15_000 + secrets.randbelow(15_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("0.0.0.0", port))
            return port


def running() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.stop()


class Postgres:
    """Server that runs until `stop`, or `kill` and `start`."""

    def __init__(self) -> None:
        # PostgreSQL refuses to run as root, and its user cannot enter a private TMPDIR.
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:
            self._user = {"user": "postgres", "group": "postgres", "extra_groups": []}
        self._folder = Path(tempfile.mkdtemp(prefix="evenhand-postgres-", dir="/tmp"))
        if self._user:
            shutil.chown(self._folder, "postgres", "postgres")
        self.port = free_port()
        self._data = f"--pgdata={self._folder}/data"
        options = [
            "--no-sync",
            "--username=evenhand",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
        ]
        self._call("initdb", self._data, *options)
        self.start()

    def start(self) -> None:
        """Start, after a kill with a few tries, until the kernel frees the shared memory."""
        # What a killed process has written outlives it; only a crash of the machine needs fsync.
        options = f"--options=-h 127.0.0.1 -p {self.port} -k {self._folder} -c fsync=off"
        log, deadline = self._folder / "log", time.monotonic() + 60
        while True:
            try:
                self._call("pg_ctl", self._data, f"--log={log}", options, "--wait", "start")
                return
            except AssertionError:
                if time.monotonic() > deadline:
                    print(log.read_text()[-2_000:])
                    raise
                time.sleep(1)

    def kill(self) -> None:
        """Kill all processes at once: the next start has to recover unwritten data."""
        lines = (self._folder / "data" / "postmaster.pid").read_text().split()
        main = psutil.Process(int(lines[0]))
        processes = [main, *main.children(recursive=True)]
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, timeout=60)

    def database(self, name: str) -> str:
        """Create an empty database. Return its SQLAlchemy URI."""
        self._call(
            "createdb", "--host=127.0.0.1", f"--port={self.port}", "--username=evenhand", name
        )
        return self.uri(name)

    def uri(self, name: str) -> str:
        return f"postgresql+psycopg2://evenhand@127.0.0.1:{self.port}/{name}"

    def stop(self) -> None:
        self._call("pg_ctl", self._data, "--mode=fast", "--wait", "stop")
        shutil.rmtree(self._folder)

    def _call(self, program: str, *arguments: str) -> None:
        with (self._folder / f"{program}.log").open(
            "w+"
        ) as log:  # a pipe would stay open as long as the server runs
            command = [str(debian.POSTGRESQL[-1] / program), *arguments]
            code = subprocess.run(
                command, cwd=self._folder, stdout=log, stderr=log, **self._user
            ).returncode
            log.seek(0)
            assert code == 0, log.read()

"""A PostgreSQL server of the test's own: Debian's binaries, a temporary folder, a free port on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests import debian


def running() -> Iterator[Postgres]:
    made = Postgres()
    yield made
    made.stop()


class Postgres:
    """Runs until `stop`, or `kill` and `start`. `database(name)` makes an empty database and returns its SQLAlchemy URI."""

    def __init__(self) -> None:
        # PostgreSQL refuses to run as root, and the user it runs as instead cannot enter a private TMPDIR.
        self._user: dict[str, Any] = (
            {"user": "postgres", "group": "postgres", "extra_groups": []}
            if os.getuid() == 0
            else {}
        )
        self._folder = Path(tempfile.mkdtemp(prefix="evenhand-postgres-", dir="/tmp"))
        if self._user:
            shutil.chown(self._folder, "postgres", "postgres")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._data = f"--pgdata={self._folder}/data"
        self._call(
            "initdb",
            self._data,
            "--username=evenhand",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
        )
        self.start()

    def start(self) -> None:
        """After a kill it may take a few tries, as long as the kernel holds what the dead had in common."""
        options = f"-h 127.0.0.1 -p {self.port} -k {self._folder}"
        deadline = time.monotonic() + 60
        while True:
            try:
                return self._call(
                    "pg_ctl",
                    self._data,
                    f"--log={self._folder}/log",
                    f"--options={options}",
                    "--wait",
                    "start",
                )
            except AssertionError as error:
                if time.monotonic() > deadline:
                    raise AssertionError(
                        f"{error}\n{(self._folder / 'log').read_text()[-2_000:]}"
                    ) from None
                time.sleep(1)

    def kill(self) -> None:
        """All its processes at once, with SIGKILL: what was not written is for the next start to recover."""
        main = psutil.Process(
            int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        )
        everyone = [main, *main.children(recursive=True)]
        for one in everyone:
            one.kill()
        while any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in everyone):
            time.sleep(0.05)

    def database(self, name: str) -> str:
        self._call(
            "createdb", "--host=127.0.0.1", f"--port={self.port}", "--username=evenhand", name
        )
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

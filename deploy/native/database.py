"""Database of a server: PostgreSQL, in a cluster of the folder or elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from deploy.native import account
from deploy.native.folder import Folder, Secrets, Settings, last_line, write_private
from tracking.errors import ErrorCode, UsageError

USER, DATABASE = "evenhand", "evenhand"
DEBIAN = Path("/usr/lib/postgresql")
START_SECONDS = 30
LONGEST_SOCKET = 90  # a socket's path has at most 107 characters, its name among them
NO_ANSWER = 2  # pg_isready's exit code; while a server starts or recovers it is 1


@dataclass(frozen=True)
class PostgreSQL:
    """Database of PostgreSQL.

    Attributes:
        url: SQLAlchemy's address, without a password.
        password: Passed on in the environment, never in an argument.
        binaries: Folder of PostgreSQL's programs, None for those in PATH.
        cluster: Folder of the server's own cluster, None if the database is elsewhere.
    """

    url: str
    password: str
    binaries: Path | None = None
    cluster: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **({"PGPASSWORD": self.password} if self.password else {})}

    @property
    def client_url(self) -> str:
        """Address in the form that PostgreSQL's own programs accept."""
        return self.url.replace("postgresql+psycopg2://", "postgresql://")

    @property
    def is_running(self) -> bool:
        """True if the cluster answers on its socket; a number in a file may be another's."""
        sockets = self.cluster and self.cluster.parent
        command = [f"{self.binaries}/pg_isready", "--quiet", f"--host={sockets}"]
        return subprocess.run(command, cwd="/", **_user_options()).returncode < NO_ANSWER

    def start(self) -> None:
        """Start the server's own cluster, made the first time; do nothing without one."""
        if not self.cluster or self.is_running:
            return
        sockets = self.cluster.parent
        if len(str(sockets)) > LONGEST_SOCKET:
            reason = "is too long a name for a socket of PostgreSQL"
            raise UsageError(ErrorCode.TOO_LARGE, f"{sockets} {reason}; choose a shorter --folder")
        if not self.cluster.exists():
            self._initialise(self.cluster)
        self._start_cluster(self.cluster)
        options = (f"--host={sockets}", f"--username={USER}")
        exists = f"SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'"
        if not self._query(exists, *options, "--dbname=postgres"):
            self._client("createdb", *options, DATABASE)

    def stop(self) -> None:
        if self.cluster and self.is_running:
            self._server("pg_ctl", f"--pgdata={self.cluster}", "--mode=fast", "--wait", "stop")

    def dump(self, path: Path) -> None:
        """Write one consistent state of the whole database, taken while it works."""
        self._client("pg_dump", "--format=custom", f"--file={path}", self.client_url)
        path.chmod(0o600)

    def restore(self, path: Path) -> None:
        """Fill an empty database from a dump, completely or not at all."""
        options = ("--single-transaction", "--no-owner", f"--dbname={self.client_url}")
        self._client("pg_restore", *options, str(path))

    def count_tables(self) -> int:
        count = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        return int(self._query(count, self.client_url))

    def _start_cluster(self, cluster: Path) -> None:
        """Start the cluster; after a kill again, until the last of its processes has ended."""
        sockets = cluster.parent
        options = f"-c listen_addresses='' -c unix_socket_directories='{sockets}'"
        start = (f"--log={sockets}/postgres.log", f"--options={options}", "--wait", "start")
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self._server("pg_ctl", f"--pgdata={cluster}", *start)
            except UsageError:
                # A server that ended by itself removes this file.
                was_killed = (cluster / "postmaster.pid").exists()
                if time.monotonic() > deadline or not was_killed:
                    raise
                time.sleep(1)

    def _initialise(self, cluster: Path) -> None:
        password = cluster.parent / "password"  # a private TMPDIR is closed to the server's user
        cluster.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_private(password, self.password)
            if os.getuid() == 0:
                shutil.chown(cluster.parent, "postgres", "postgres")
                shutil.chown(password, "postgres", "postgres")
            options = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8"]
            options += [f"--pgdata={cluster}", f"--username={USER}", f"--pwfile={password}"]
            self._server("initdb", *options)
        finally:
            password.unlink(missing_ok=True)

    def _server(self, program: str, *arguments: str) -> None:
        """Run a program of the server as its user. Its output is a file: the server keeps it."""
        command = [f"{self.binaries}/{program}", *arguments]
        with tempfile.TemporaryFile("w+") as log:
            done = subprocess.run(command, stdout=log, stderr=log, cwd="/", **_user_options())
            log.seek(0)
            if done.returncode:
                text = f"{program} failed: {last_line(log.read())}"
                raise UsageError(ErrorCode.CHILD_FAILED, f"{text}; see postgres.log")

    def _query(self, text: str, *options: str) -> str:
        command = ("--tuples-only", "--no-align", f"--command={text}")
        return self._client("psql", *command, *options).strip()

    def _client(self, program: str, *arguments: str) -> str:
        path = shutil.which(program, path=self.binaries)
        if not path:
            right = "install PostgreSQL's clients: apt-get install postgresql-client"
            raise UsageError(ErrorCode.NOT_INSTALLED, f"{program} is not installed; {right}")
        command = [path, *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            text = f"{program} failed: {last_line(done.stderr)}"
            raise UsageError(ErrorCode.CHILD_FAILED, text)
        return done.stdout


def create(folder: Folder, settings: Settings, secrets: Secrets) -> PostgreSQL:
    """Return the server's database. Raises UsageError if it is not available."""
    if settings.database == "system":
        cluster = folder.path / "postgres" / "data"
        host = quote(str(cluster.parent), safe="/")
        url = f"postgresql+psycopg2://{USER}@/{DATABASE}?host={host}"
        return PostgreSQL(url, secrets.database_password, _binaries(cluster), cluster)
    parts = urlsplit(settings.database)
    if not parts.scheme.startswith("postgresql") or parts.password:
        right = "write system or postgresql://user@host/database, and the password in PGPASSWORD"
        raise UsageError(ErrorCode.INVALID_VALUE, f"--database is another address: {right}")
    url = settings.database.replace("postgresql://", "postgresql+psycopg2://", 1)
    return PostgreSQL(url, os.environ.get("PGPASSWORD", ""))


def _binaries(cluster: Path) -> Path:
    """Return the programs of the version that made a cluster; of the newest for a new one."""
    folders = {int(path.name): path / "bin" for path in DEBIAN.glob("[0-9]*")}
    made_by = cluster / "PG_VERSION"
    version = int(made_by.read_text()) if made_by.exists() else max(folders, default=0)
    if version in folders:
        return folders[version]
    if not folders and (initdb := shutil.which("initdb")):
        return Path(initdb).parent
    installed = ", ".join(map(str, sorted(folders))) or "none"
    right = "apt-get install postgresql, or restore a backup into a new --folder"
    reason = f"PostgreSQL {version or ''} is not installed; have {installed}"
    raise UsageError(ErrorCode.NOT_INSTALLED, f"{reason}: {right}")


def _user_options() -> dict[str, Any]:
    """Return arguments of Popen that give up root, as whom PostgreSQL does not run."""
    if os.getuid():
        return {}
    if user := account.find("postgres"):
        return account.process_options(user)
    right = "make one, or start as another user"
    text = f"root cannot run PostgreSQL without a user postgres; {right}"
    raise UsageError(ErrorCode.NOT_FOUND, text)

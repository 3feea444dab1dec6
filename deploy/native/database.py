"""Database of a server: PostgreSQL, in a cluster of the folder or elsewhere, or SQLite."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

from deploy.native import account
from deploy.native.folder import DeployError, Folder, Secrets, Settings, last_line, write_private

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
    dump_name: ClassVar[str] = "database.dump"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **({"PGPASSWORD": self.password} if self.password else {})}

    @property
    def client_url(self) -> str:
        """The address in the form that PostgreSQL's own programs accept."""
        return self.url.replace("postgresql+psycopg2://", "postgresql://")

    @property
    def state(self) -> str:
        """State of the server's own cluster; empty if the database is elsewhere."""
        if not self.cluster:
            return ""
        return "runs" if self.is_running else "is down"

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
            raise DeployError(f"{sockets} {reason}; choose a shorter --folder")
        if not self.cluster.exists():
            self._initialise(self.cluster)
        self._start_cluster(sockets)
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

    def _start_cluster(self, sockets: Path) -> None:
        """Start the cluster; after a kill again, until the last of its processes has ended."""
        options = f"-c listen_addresses='' -c unix_socket_directories='{sockets}'"
        start = (f"--log={sockets}/postgres.log", f"--options={options}", "--wait", "start")
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self._server("pg_ctl", f"--pgdata={self.cluster}", *start)
            except DeployError as error:
                # A server that ended by itself removes this file.
                was_killed = Path(str(self.cluster), "postmaster.pid").exists()
                if time.monotonic() > deadline or not was_killed:
                    raise DeployError(f"{error}; {sockets}/postgres.log says why") from None
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
            if done.returncode:
                log.seek(0)
                raise DeployError(f"{program} failed: {last_line(log.read())}")

    def _query(self, text: str, *options: str) -> str:
        command = ("--tuples-only", "--no-align", f"--command={text}")
        return self._client("psql", *command, *options).strip()

    def _client(self, program: str, *arguments: str) -> str:
        path = shutil.which(program, path=self.binaries)
        if not path:
            right = "install PostgreSQL's clients: apt-get install postgresql-client"
            raise DeployError(f"{program} is not installed; {right}")
        command = [path, *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise DeployError(f"{program} failed: {last_line(done.stderr)}")
        return done.stdout


@dataclass(frozen=True)
class Sqlite:
    """Database in one file, with the methods of `PostgreSQL`."""

    path: Path
    dump_name: ClassVar[str] = "database.sqlite"
    state: ClassVar[str] = ""

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    @property
    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def dump(self, path: Path) -> None:
        with sqlite3.connect(self.path) as source, sqlite3.connect(path) as copy:
            source.backup(copy)

    def restore(self, path: Path) -> None:
        self.path.parent.mkdir(exist_ok=True, mode=0o700)
        shutil.copy2(path, self.path)

    def count_tables(self) -> int:
        if not self.path.exists():
            return 0
        with sqlite3.connect(self.path) as database:
            count = "SELECT count(*) FROM sqlite_master WHERE type = 'table'"
            return int(database.execute(count).fetchone()[0])


Database = PostgreSQL | Sqlite


def create(folder: Folder, settings: Settings, secrets: Secrets) -> Database:
    """Return the server's database. Raises DeployError if it is not available."""
    if settings.database == "sqlite":
        return Sqlite(folder.sqlite)
    if settings.database == "system":
        cluster = folder.path / "postgres" / "data"
        host = quote(str(cluster.parent), safe="/")
        url = f"postgresql+psycopg2://{USER}@/{DATABASE}?host={host}"
        return PostgreSQL(url, secrets.database_password, _binaries(cluster), cluster)
    parts = urlsplit(settings.database)
    if not parts.scheme.startswith("postgresql"):
        right = "write system, sqlite or postgresql://user@host/database"
        raise DeployError(f"--database {settings.database}: {right}")
    if parts.password:
        reason = "a password in the address ends in process lists"
        raise DeployError(f"--database: {reason}; leave it out and set PGPASSWORD")
    url = settings.database.replace("postgresql://", "postgresql+psycopg2://", 1)
    return PostgreSQL(url, os.environ.get("PGPASSWORD", ""))


def _binaries(cluster: Path) -> Path:
    """Return the programs of the version that made a cluster; of the newest for a new one."""
    folders = {int(path.name): path / "bin" for path in DEBIAN.glob("[0-9]*")}
    if not folders:
        initdb = shutil.which("initdb")
        if not initdb:
            right = "apt-get install postgresql, or --database sqlite"
            raise DeployError(f"PostgreSQL is not installed: {right}")
        return Path(initdb).parent
    made_by = cluster / "PG_VERSION"
    version = int(made_by.read_text()) if made_by.exists() else max(folders)
    if version not in folders:
        installed = ", ".join(map(str, sorted(folders)))
        right = f"install {version}, or restore a backup into a new --folder"
        raise DeployError(f"{cluster} is of PostgreSQL {version}, not of {installed}; {right}")
    return folders[version]


def _user_options() -> dict[str, Any]:
    """Return arguments of Popen that give up root, as whom PostgreSQL does not run."""
    if os.getuid():
        return {}
    if not account.find("postgres"):
        right = "make one, or start as another user"
        raise DeployError(f"root cannot run PostgreSQL without a user postgres; {right}")
    return {"user": "postgres", "group": "postgres", "extra_groups": []}

"""The database of a server: PostgreSQL, its own cluster or an existing one, or SQLite."""

from __future__ import annotations

import os
import re
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
from deploy.native.folder import Folder, Refused, Secrets, Settings, last_line, write_private

USER, DATABASE = "evenhand", "evenhand"
DEBIAN = Path("/usr/lib/postgresql")
START_SECONDS = 30
LONGEST_SOCKET = 90  # a socket's path has at most 107 characters, its name among them
NO_ANSWER = 2  # pg_isready's exit code; while a server starts or recovers it is 1


@dataclass(frozen=True)
class PostgreSQL:
    """A database of PostgreSQL.

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
    def plain_url(self) -> str:
        """The database URL in the form that PostgreSQL's own programs accept."""
        return self.url.replace("postgresql+psycopg2://", "postgresql://")

    def start(self) -> None:
        """Start the server's own cluster, made the first time; do nothing without one."""
        if not self.cluster or self.is_running:
            return
        sockets = self.cluster.parent
        if len(str(sockets)) > LONGEST_SOCKET:
            reason = "is too long a name for a socket of PostgreSQL"
            raise Refused(f"{sockets} {reason}; choose a shorter --folder")
        if not self.cluster.exists():
            self._make(self.cluster)
        self._serve(sockets)
        where = (f"--host={sockets}", f"--username={USER}")
        exists = f"SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'"
        if not self._query(exists, *where, "--dbname=postgres"):
            self._client("createdb", *where, DATABASE)

    def stop(self) -> None:
        if self.cluster and self.is_running:
            self._call("pg_ctl", f"--pgdata={self.cluster}", "--mode=fast", "--wait", "stop")

    @property
    def state(self) -> str:
        """Whether the server's own cluster runs, formatted; empty if the database is elsewhere."""
        return "" if not self.cluster else "runs" if self.is_running else "is down"

    @property
    def is_running(self) -> bool:
        """Whether the cluster answers on its socket; a number in a file may be another's."""
        command = [
            f"{self.binaries}/pg_isready",
            "--quiet",
            f"--host={self.cluster and self.cluster.parent}",
        ]
        return subprocess.run(command, cwd="/", **_as_user()).returncode < NO_ANSWER

    def dump(self, path: Path) -> None:
        """Write one consistent state of the whole database, taken while it works."""
        self._client("pg_dump", "--format=custom", f"--file={path}", self.plain_url)
        path.chmod(0o600)

    def restore(self, path: Path) -> None:
        """Fill an empty database from a dump, completely or not at all."""
        options = ("--single-transaction", "--no-owner", f"--dbname={self.plain_url}")
        self._client("pg_restore", *options, str(path))

    def tables(self) -> int:
        count = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        return int(self._query(count, self.plain_url))

    def _serve(self, sockets: Path) -> None:
        """Start the cluster, for a while again and again.

        What a killed server left in memory goes when the last of its processes has noticed.
        """
        options = f"-c listen_addresses='' -c unix_socket_directories='{sockets}'"
        start = (f"--log={sockets}/postgres.log", f"--options={options}", "--wait", "start")
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self._call("pg_ctl", f"--pgdata={self.cluster}", *start)
            except Refused as error:
                # A server that ended by itself removes this file.
                was_killed = Path(str(self.cluster), "postmaster.pid").exists()
                if time.monotonic() > deadline or not was_killed:
                    raise Refused(f"{error}; {sockets}/postgres.log says why") from None
                time.sleep(1)

    def _make(self, cluster: Path) -> None:
        cluster.parent.mkdir(parents=True, exist_ok=True)
        _give(cluster.parent)
        words = cluster.parent / "password"  # a private TMPDIR would be closed to the server's user
        try:
            write_private(words, self.password)
            _give(words)
            options = ("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8")
            own = (f"--pgdata={cluster}", f"--username={USER}", f"--pwfile={words}")
            self._call("initdb", *own, *options)
        finally:
            words.unlink(missing_ok=True)

    def _call(self, program: str, *arguments: str) -> None:
        """Run a program of the server as its user. Its output is a file: the server keeps it open."""
        with tempfile.TemporaryFile("w+") as log:
            command = [f"{self.binaries}/{program}", *arguments]
            code = subprocess.run(command, stdout=log, stderr=log, cwd="/", **_as_user()).returncode
            if code:
                log.seek(0)
                raise Refused(f"{program} failed: {last_line(log.read())}")

    def _query(self, text: str, *where: str) -> str:
        options = ("--tuples-only", "--no-align", f"--command={text}")
        return self._client("psql", *options, *where).strip()

    def _client(self, program: str, *arguments: str) -> str:
        path = shutil.which(program, path=self.binaries)
        if not path:
            right = "install PostgreSQL's clients: apt-get install postgresql-client"
            raise Refused(f"{program} is not installed; {right}")
        command = [path, *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise Refused(f"{program} failed: {last_line(done.stderr)}")
        return done.stdout


@dataclass(frozen=True)
class Sqlite:
    """A database in one file, with the methods of `PostgreSQL`."""

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

    def tables(self) -> int:
        if not self.path.exists():
            return 0
        with sqlite3.connect(self.path) as database:
            count = "SELECT count(*) FROM sqlite_master WHERE type = 'table'"
            return int(database.execute(count).fetchone()[0])


Database = PostgreSQL | Sqlite


def chosen(folder: Folder, settings: Settings, kept: Secrets) -> Database:
    """Return the server's database. Raises Refused if it is not available."""
    if settings.database == "sqlite":
        return Sqlite(folder.sqlite)
    if settings.database == "system":
        cluster = folder.path / "postgres" / "data"
        host = quote(str(cluster.parent), safe="/")
        url = f"postgresql+psycopg2://{USER}@/{DATABASE}?host={host}"
        return PostgreSQL(url, kept.database_password, _binaries(cluster), cluster)
    parts = urlsplit(settings.database)
    if not parts.scheme.startswith("postgresql"):
        right = "write system, sqlite or postgresql://user@host/database"
        raise Refused(f"--database {settings.database}: {right}")
    if parts.password:
        reason = "a password in the address ends in process lists"
        raise Refused(f"--database: {reason}; leave it out and set PGPASSWORD")
    url = settings.database.replace("postgresql://", "postgresql+psycopg2://", 1)
    return PostgreSQL(url, os.environ.get("PGPASSWORD", ""))


def _binaries(cluster: Path) -> Path:
    """Return the folder of the newest PostgreSQL's programs; of a made cluster, its version's."""
    in_path = shutil.which("initdb")
    programs = list(DEBIAN.glob("*/bin/initdb")) or ([Path(in_path)] if in_path else [])
    if not programs:
        right = "apt-get install postgresql, or --database sqlite"
        raise Refused(f"PostgreSQL is not installed: {right}")
    folders = {_version(initdb): initdb.parent for initdb in programs}
    made_by = cluster / "PG_VERSION"
    version = int(made_by.read_text()) if made_by.exists() else max(folders)
    if version not in folders:
        installed = ", ".join(map(str, sorted(folders)))
        right = f"install {version}, or restore a copy into a new --folder"
        raise Refused(f"{cluster} is of PostgreSQL {version}, here is {installed}; {right}")
    return folders[version]


def _version(initdb: Path) -> int:
    done = subprocess.run([str(initdb), "--version"], capture_output=True, text=True)
    match = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    if not match:
        raise Refused(f"{initdb} does not run: {last_line(done.stderr)}")
    return int(match[1])


def _as_user() -> dict[str, Any]:
    """Return arguments of Popen that give up root, as whom PostgreSQL does not run."""
    if os.getuid():
        return {}
    if not account.known("postgres"):
        right = "make one, or start as another user"
        raise Refused(f"root cannot run PostgreSQL without a user postgres; {right}")
    return {"user": "postgres", "group": "postgres", "extra_groups": []}


def _give(path: Path) -> None:
    if os.getuid() == 0:
        shutil.chown(path, "postgres", "postgres")

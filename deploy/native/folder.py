"""The server's folder: its secrets, its settings, what it has written; all of it readable by its owner alone."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

SECRET_BYTES = 24


class Refused(Exception):
    """What cannot be done, in one line that says what would be right."""


@dataclass(frozen=True)
class Settings:
    """How the server was set up. database: `system`, `embedded`, `sqlite` or a URL without a password.

    user: whom the server runs as where root starts it.
    proxies: addresses whose X-Forwarded-For is believed, commas between, none where users come themselves.
    """

    host: str = "127.0.0.1"
    port: int = 5000
    database: str = "system"
    artifacts: str = ""
    allowed_hosts: tuple[str, ...] = ()
    workers: int = 2
    user: str = "evenhand"
    proxies: str = ""

    @property
    def uri(self) -> str:
        return f"http://{'127.0.0.1' if self.host == '0.0.0.0' else self.host}:{self.port}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """What a Host header may say: names with ports."""
        own = {f"localhost:{self.port}", f"127.0.0.1:{self.port}", f"{self.host}:{self.port}"}
        return tuple(sorted({*own, *self.allowed_hosts}))


@dataclass(frozen=True)
class Secrets:
    """Drawn once. The administrator may change the password later; this file then still says the first one."""

    admin_password: str = field(default_factory=lambda: secrets.token_urlsafe(SECRET_BYTES))
    database_password: str = field(default_factory=lambda: secrets.token_urlsafe(SECRET_BYTES))
    session_key: str = field(default_factory=lambda: secrets.token_hex(SECRET_BYTES))


class Folder:
    """Paths of one server's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.secrets_file = path / "secrets.json"
        self.settings_file = path / "settings.json"
        self.auth_file = path / "auth.ini"
        self.log = path / "server.log"
        self.pid_file = path / "server.pid"
        self.artifacts = path / "artifacts"
        self.backups = path / "backups"
        # SQLite writes beside its file, and the server's user writes nowhere else.
        self.sqlite = path / "sqlite" / "mlflow.db"
        # A copy of Python, if root's is closed to the server's user.
        self.python = path / "python"
        # Exists until a copy is completely restored.
        self.restoring = path / "restoring"

    @property
    def is_set_up(self) -> bool:
        if self.restoring.exists():
            raise Refused(f"a copy was not wholly restored into {self.path}; restore it again, there or into a new --folder")
        return self.settings_file.exists() and self.secrets_file.exists()

    def set_up(self, settings: Settings, kept: Secrets | None = None) -> None:
        """Writes settings and secrets. Raises Refused where the folder cannot be written."""
        try:
            # The server of PostgreSQL runs as another user where this one is root, and must pass through.
            self.path.mkdir(parents=True, exist_ok=True, mode=0o711)
            self.artifacts.mkdir(exist_ok=True, mode=0o700)
            self.sqlite.parent.mkdir(exist_ok=True, mode=0o700)
            write_private(self.settings_file, json.dumps(asdict(settings), indent=1))
            if kept or not self.secrets_file.exists():
                write_private(self.secrets_file, json.dumps(asdict(kept or Secrets()), indent=1))
        except OSError as error:
            raise Refused(f"{self.path} cannot be written: {error.strerror}; choose another with --folder") from None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """One start, stop or restore at a time. Raises Refused where another is at work."""
        if not self.path.exists():
            yield
            return
        with locked(self.path / "at-work.lock") as alone:
            if not alone:
                raise Refused(f"another start, stop or restore is at work in {self.path}; wait for its end")
            yield

    def settings(self) -> Settings:
        """Settings of the server. Raises Refused where none is set up."""
        if not self.is_set_up:
            raise Refused(f"there is no server in {self.path}; start one: python -m deploy.native start --folder {self.path}")
        values = json.loads(self.settings_file.read_text())
        return Settings(**{**values, "allowed_hosts": tuple(values["allowed_hosts"])})

    def secrets(self) -> Secrets:
        return Secrets(**json.loads(self.secrets_file.read_text()))


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Whether this process alone has it; whoever dies with a lock gives it back."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def write_private(path: Path, text: str) -> None:
    """Readable and writable by the owner alone, from the first byte on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    os.replace(temporary, path)

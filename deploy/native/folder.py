"""Folder of a server: secrets, settings and data, which only its owner can read."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tracking.errors import ErrorCode, UsageError

SECRET_BYTES = 24


@dataclass(frozen=True)
class Settings:
    """Options with which the server was set up.

    Attributes:
        database: `system`, or a URL without a password.
        allowed_hosts: Names with ports by which users call the server, separated by commas.
        proxies: Addresses whose X-Forwarded-For is believed, separated by commas.
    """

    host: str = "127.0.0.1"
    port: int = 5000
    database: str = "system"
    artifacts: str = ""
    allowed_hosts: str = ""
    workers: int = 2
    proxies: str = ""

    @property
    def uri(self) -> str:
        return f"http://{'127.0.0.1' if self.host == '0.0.0.0' else self.host}:{self.port}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names with ports that a Host header may hold."""
        local = {f"{host}:{self.port}" for host in ("localhost", "127.0.0.1", self.host)}
        return tuple(sorted({*local, *filter(None, self.allowed_hosts.split(","))}))


@dataclass(frozen=True)
class Secrets:
    """Secrets drawn once; the administrator's password may have been changed since."""

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
        # Copy of Python, if root's is closed to the server's user.
        self.python = path / "python"

    @property
    def is_set_up(self) -> bool:
        return self.settings_file.exists()

    def set_up(self, settings: Settings, secrets: Secrets | None = None) -> None:
        """Write settings and secrets."""
        # The server of PostgreSQL runs as another user if this one is root, and passes through.
        self.path.mkdir(parents=True, exist_ok=True, mode=0o711)
        self.artifacts.mkdir(exist_ok=True, mode=0o700)
        if secrets or not self.secrets_file.exists():
            write_private(self.secrets_file, json.dumps(asdict(secrets or Secrets()), indent=1))
        write_private(self.settings_file, json.dumps(asdict(settings), indent=1))

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Allow one start, stop or restore at a time. Raises UsageError if another one runs."""
        if not self.path.exists():
            yield
            return
        with locked(self.path / "at-work.lock") as is_free:
            if not is_free:
                reason = f"another start, stop or restore is running in {self.path}"
                raise UsageError(ErrorCode.IN_USE, f"{reason}; wait for its end")
            yield

    def settings(self) -> Settings:
        """Return the server's settings. Raises UsageError if no server is set up."""
        if not self.is_set_up:
            right = f"start one: python -m deploy.native start --folder {self.path}"
            raise UsageError(ErrorCode.NOT_FOUND, f"there is no server in {self.path}; {right}")
        return Settings(**json.loads(self.settings_file.read_text()))

    def secrets(self) -> Secrets:
        return Secrets(**json.loads(self.secrets_file.read_text()))


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Lock a file for the block, and yield whether it was free; a dead process holds none."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def write_private(path: Path, text: str) -> None:
    """Write a file that only the owner can read, from the first byte on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    os.replace(temporary, path)


def last_line(text: str) -> str:
    """Return the end of a program's errors, for a message."""
    return (text.strip().splitlines() or ["no message"])[-1][:300]

"""The server's folder: its secrets, its settings, what it has written; all of it readable by its owner alone."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

SECRET_BYTES = 24


class Refused(Exception):
    """What cannot be done, in one line that says what would be right."""


@dataclass(frozen=True)
class Settings:
    """How the server was set up. database: `system`, `embedded`, `sqlite` or a URL without a password."""

    host: str = "127.0.0.1"
    port: int = 5000
    database: str = "system"
    artifacts: str = ""
    allowed_hosts: tuple[str, ...] = ()
    workers: int = 2

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


@dataclass(frozen=True)
class Folder:
    """Where everything of one server lies."""

    path: Path

    @property
    def secrets_file(self) -> Path:
        return self.path / "secrets.json"

    @property
    def settings_file(self) -> Path:
        return self.path / "settings.json"

    @property
    def auth_file(self) -> Path:
        return self.path / "auth.ini"

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    @property
    def pid_file(self) -> Path:
        return self.path / "server.pid"

    @property
    def artifacts(self) -> Path:
        return self.path / "artifacts"

    @property
    def backups(self) -> Path:
        return self.path / "backups"

    @property
    def is_set_up(self) -> bool:
        return self.settings_file.exists() and self.secrets_file.exists()

    def set_up(self, settings: Settings, kept: Secrets | None = None) -> None:
        """Writes settings and secrets. Raises Refused where the folder cannot be written."""
        try:
            # The server of PostgreSQL runs as another user where this one is root, and must pass through.
            self.path.mkdir(parents=True, exist_ok=True, mode=0o711)
            self.artifacts.mkdir(exist_ok=True, mode=0o700)
            write_private(self.settings_file, json.dumps(asdict(settings), indent=1))
            if kept or not self.secrets_file.exists():
                write_private(self.secrets_file, json.dumps(asdict(kept or Secrets()), indent=1))
        except OSError as error:
            raise Refused(f"{self.path} cannot be written: {error.strerror}; choose another with --folder") from None

    def settings(self) -> Settings:
        """Raises Refused where nothing was set up."""
        if not self.is_set_up:
            raise Refused(f"there is no server in {self.path}; start one: python -m deploy.native start --folder {self.path}")
        values = json.loads(self.settings_file.read_text())
        return Settings(**{**values, "allowed_hosts": tuple(values["allowed_hosts"])})

    def secrets(self) -> Secrets:
        return Secrets(**json.loads(self.secrets_file.read_text()))


def write_private(path: Path, text: str) -> None:
    """Readable and writable by the owner alone, from the first byte on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    os.replace(temporary, path)

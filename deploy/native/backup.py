"""Copies of a server of one folder, new servers made of them, and upgrades."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deploy import copies
from deploy.copies import ArtifactFolder
from deploy.native import service
from deploy.native.database import Database, chosen
from deploy.native.folder import Folder, Refused, Secrets, Settings, write_private

RESTORED = (
    "postgres",
    "sqlite",
    "artifacts",
    "settings.json",
    "secrets.json",
    "auth.ini",
    "server.log",
    "server.pid",
)


def make(
    folder: Folder, settings: Settings, database: Database, target: Path | None = None
) -> Path:
    """Copy database, artifacts, settings and secrets, and return the copy's folder."""
    final = target or folder.backups / copies.new_name()
    artifacts = None if settings.artifacts else ArtifactFolder(folder.artifacts)
    own = {"settings": asdict(settings), "secrets": asdict(folder.secrets())}
    copies.make(final, database, artifacts, {"mlflow": version("mlflow"), **own})
    return final


def parse(about: dict[str, Any]) -> tuple[Settings, Secrets]:
    """Return settings and secrets of what a copy states. Raises KeyError, TypeError."""
    return Settings.parse(about["settings"]), Secrets(**about["secrets"])


@contextmanager
def restoring(folder: Folder, settings: Settings) -> Iterator[None]:
    """Make a folder that of a server in the block; if that fails, nothing is left of it.

    What a killed restore left is removed first.
    """
    folder.path.mkdir(parents=True, exist_ok=True, mode=0o711)
    with folder.at_work():
        if folder.restoring.exists():
            _undo(folder, folder.restoring.read_text())
        right = "restore into an empty --folder"
        if folder.is_set_up:
            raise Refused(f"{folder.path} holds a server already; {right}")
        if present := [name for name in RESTORED if (folder.path / name).exists()]:
            raise Refused(f"{folder.path} holds {', '.join(present)} already; {right}")
        write_private(folder.restoring, settings.database)
        try:
            yield
        except BaseException:
            _undo(folder, settings.database)
            raise
        folder.restoring.unlink()


def upgrade(folder: Folder, settings: Settings, database: Database) -> None:
    """Bring the database's tables to the installed MLflow. Raises Refused, without a password."""
    for words in (
        ["mlflow", "db", "upgrade", database.url],
        ["mlflow.server.auth", "db", "upgrade", "--url", database.url],
    ):
        service.call(folder, settings, database.environment, *words)


def _undo(folder: Folder, database: str) -> None:
    chosen(folder, Settings(database=database), Secrets()).stop()
    for name in RESTORED:
        path = folder.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    folder.restoring.unlink(missing_ok=True)

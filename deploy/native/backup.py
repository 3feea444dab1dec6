"""Copies of everything, taken while the server works, and back again."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from deploy.native import service
from deploy.native.folder import Folder, Refused, Secrets, Settings, write_private
from deploy.native.postgres import Database

ABOUT, DUMP, SQLITE, ARTIFACTS = "about.json", "database.dump", "database.sqlite", "artifacts.tar"


def make(folder: Folder, settings: Settings, database: Database | None, target: Path | None = None) -> Path:
    """A folder with the database, the artifacts, settings and secrets. The database first: whatever it speaks of is there.

    Files are added by runs and not changed, so those copied after the dump include all that it knows.
    """
    name = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H-%M-%S")
    final = target or folder.backups / name
    if final.exists():
        raise Refused(f"{final} is there already; give another name")
    making = final.with_name(f".{final.name}.unfinished")
    making.mkdir(parents=True, mode=0o700)
    if database:
        database.dump(making / DUMP)
    else:
        with sqlite3.connect(folder.path / "mlflow.db") as source, sqlite3.connect(making / SQLITE) as copy:
            source.backup(copy)
    if not settings.artifacts:
        with tarfile.open(making / ARTIFACTS, "w") as tar:
            tar.add(folder.artifacts, arcname="artifacts")
    digests = {one.name: _digest(one) for one in sorted(making.iterdir())}
    about = {"mlflow": version("mlflow"), "settings": asdict(settings), "secrets": asdict(folder.secrets()), "sha256": digests}
    write_private(making / ABOUT, json.dumps(about, indent=1))
    os.replace(making, final)
    return final


def restore(folder: Folder, source: Path) -> Settings:
    """Settings and secrets into a folder that holds no server yet. Returns the settings."""
    if folder.is_set_up:
        raise Refused(f"{folder.path} holds a server already; restore into an empty --folder")
    try:
        about = json.loads((source / ABOUT).read_text())
    except (OSError, ValueError):
        raise Refused(f"{source} is no backup: it has no readable {ABOUT}") from None
    for name, digest in about["sha256"].items():
        if _digest(source / name) != digest:
            raise Refused(f"{source / name} is damaged: its checksum is not the one written when it was made")
    values = about["settings"]
    settings = Settings(**{**values, "allowed_hosts": tuple(values["allowed_hosts"])})
    folder.set_up(settings, Secrets(**about["secrets"]))
    return settings


def fill(folder: Folder, source: Path, database: Database | None) -> None:
    """The database and the artifacts of a copy, into a folder that `restore` has set up and a database that runs."""
    if database:
        database.restore(source / DUMP)
    else:
        shutil.copy2(source / SQLITE, folder.path / "mlflow.db")
    if (source / ARTIFACTS).exists():
        _unpack(source / ARTIFACTS, folder.path)


def upgrade(folder: Folder, database: Database | None) -> None:
    """The database's tables to those of the MLflow that is installed. Raises Refused, and says nothing of a password."""
    url = service.backend(folder, database)
    environment = database.environment if database else dict(os.environ)
    for what in (["mlflow", "db", "upgrade", url], ["mlflow.server.auth", "db", "upgrade", "--url", url]):
        done = subprocess.run([sys.executable, "-m", *what], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise Refused(f"{' '.join(what[:3])} failed: {(done.stderr.strip().splitlines() or ['?'])[-1][:300]}")


def _unpack(archive: Path, target: Path) -> None:
    """Files and folders alone, and none outside of the target. Debian 12's Python has no `filter="data"` for this yet."""
    with tarfile.open(archive) as tar:
        for member in tar:
            path = target / member.name
            if not path.resolve().is_relative_to(target.resolve()) or not (member.isfile() or member.isdir()):
                raise Refused(f"{archive} holds {member.name}, which is no file of the artifacts")
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif content := tar.extractfile(member):
                with content, path.open("wb") as file:
                    shutil.copyfileobj(content, file)


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None

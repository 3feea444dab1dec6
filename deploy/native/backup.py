"""Copies of everything, taken while the server works, and back again."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path, PurePosixPath

from deploy import copies, readiness
from deploy.copies import ABOUT, ARTIFACTS, DUMP
from deploy.native import postgres, service
from deploy.native.folder import Folder, Refused, Secrets, Settings, write_private
from deploy.native.postgres import Database

SQLITE = "database.sqlite"
RESTORED = ("postgres", "sqlite", "artifacts", "settings.json", "secrets.json", "auth.ini", "server.log", "server.pid")


def make(folder: Folder, settings: Settings, database: Database | None, target: Path | None = None) -> Path:
    """A folder with the database, the artifacts, settings and secrets. The database first: whatever it speaks of is there.

    Files are added by runs and not changed, so those copied after the dump include all that it knows. Raises Refused where
    there is no room for it, and leaves nothing then.
    """
    final = target or folder.backups / copies.new_name()
    with copies.unfinished(final) as making:
        if database:
            database.dump(making / DUMP)
        else:
            with sqlite3.connect(folder.sqlite) as source, sqlite3.connect(making / SQLITE) as copy:
                source.backup(copy)
        if not settings.artifacts:
            _pack(folder.artifacts, making / ARTIFACTS)
        digests = {one.name: copies.digest(one) for one in sorted(making.iterdir())}
        about = {
            "mlflow": version("mlflow"),
            "settings": asdict(settings),
            "secrets": asdict(folder.secrets()),
            "sha256": digests,
        }
        write_private(making / ABOUT, json.dumps(about, indent=1))
    return final


def told(source: Path) -> tuple[Settings, Secrets]:
    """What a copy says of its server, after its files were checked. Raises Refused."""
    try:
        about = json.loads((source / ABOUT).read_text())
        values, digests = about["settings"], dict(about["sha256"])
        settings = Settings(**{**values, "allowed_hosts": tuple(values["allowed_hosts"])})
        kept = Secrets(**about["secrets"])
    except (OSError, ValueError, KeyError, TypeError):
        raise Refused(f"{source} is no backup: it has no readable {ABOUT}") from None
    copies.check(source, digests)
    return settings, kept


@contextmanager
def restoring(folder: Folder, settings: Settings) -> Iterator[None]:
    """A folder becomes a server's in the block, or holds nothing of it afterwards; what a killed restore left goes first."""
    folder.path.mkdir(parents=True, exist_ok=True, mode=0o711)
    with folder.at_work():
        if folder.restoring.exists():
            _undo(folder, folder.restoring.read_text())
        if folder.is_set_up:
            raise Refused(f"{folder.path} holds a server already; restore into an empty --folder")
        if there := [name for name in RESTORED if (folder.path / name).exists()]:
            raise Refused(f"{folder.path} holds {', '.join(there)} already; restore into an empty --folder")
        write_private(folder.restoring, settings.database)
        try:
            yield
        except BaseException:
            _undo(folder, settings.database)
            raise
        folder.restoring.unlink()


def fill(folder: Folder, source: Path, database: Database | None) -> None:
    """The database and the artifacts of a copy, into a folder of a server to be and a database that runs."""
    if database:
        database.restore(source / DUMP)
    else:
        folder.sqlite.parent.mkdir(exist_ok=True, mode=0o700)
        shutil.copy2(source / SQLITE, folder.sqlite)
    if (source / ARTIFACTS).exists():
        _unpack(source / ARTIFACTS, folder.artifacts)


def upgrade(folder: Folder, settings: Settings, database: Database | None) -> None:
    """The database's tables to those of the MLflow that is installed. Raises Refused, and says nothing of a password."""
    url = service.backend(folder, database)
    environment = database.environment if database else dict(os.environ)
    for what in (["mlflow", "db", "upgrade", url], ["mlflow.server.auth", "db", "upgrade", "--url", url]):
        done = service.call(folder, settings, environment, "-m", *what)
        if done.returncode:
            raise Refused(f"{' '.join(what[:3])} failed: {(done.stderr.strip().splitlines() or ['?'])[-1][:300]}")


def _pack(artifacts: Path, archive: Path) -> None:
    """Files come and go meanwhile: what is gone was deleted, and is no part of the copy."""
    with tarfile.open(archive, "w") as tar:
        for parent, _, files in os.walk(artifacts):
            inside = Path("artifacts") / Path(parent).relative_to(artifacts)
            for name in ("", *files):
                if not name.startswith(readiness.PROBE):
                    with suppress(FileNotFoundError):
                        tar.add(Path(parent) / name, arcname=str(inside / name), recursive=False)


def _unpack(archive: Path, target: Path) -> None:
    """Files and folders below artifacts/ alone. Debian 12's Python has no `filter="data"` for this yet."""
    target.mkdir(exist_ok=True, mode=0o700)
    with tarfile.open(archive) as tar:
        for member in tar:
            way = PurePosixPath(member.name)
            if way.parts[:1] != ("artifacts",) or ".." in way.parts or not (member.isfile() or member.isdir()):
                raise Refused(f"{archive} holds {member.name!r}, which is no file of the artifacts")
            path = target.joinpath(*way.parts[1:])
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif content := tar.extractfile(member):
                path.parent.mkdir(parents=True, exist_ok=True)
                with content, path.open("wb") as file:
                    shutil.copyfileobj(content, file)


def _undo(folder: Folder, database: str) -> None:
    made = postgres.chosen(folder, Settings(database=database), Secrets())
    if made and made.cluster and made.cluster.exists():
        made.stop()
    for name in RESTORED:
        path = folder.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    folder.restoring.unlink(missing_ok=True)

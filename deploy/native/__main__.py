"""`python -m deploy.native start|stop|status|backup|restore|upgrade|gc --folder DIR`."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deploy import copies
from deploy.copies import ArtifactFolder
from deploy.native import database as databases
from deploy.native import service
from deploy.native.database import PostgreSQL
from deploy.native.folder import Folder, Secrets, Settings
from tracking import plain
from tracking.errors import ErrorCode, EvenhandError, UsageError

DONE, DOWN, WRONG_CALL = 0, 1, 2
# Folders that a restore fills; settings come last, so that half of it is no server.
RESTORED = ("postgres", "artifacts")


def main(arguments: Sequence[str]) -> int:
    """Run one action, and return the exit code."""
    args = _parser().parse_args(arguments)
    folder = Folder(Path(args.folder).resolve())
    try:
        return int(args.run(folder, args))
    except EvenhandError as error:
        text = str(error)
    except OSError as error:
        right = "call this as its owner, or choose another --folder"
        text = f"{error.filename or folder.path}: {error.strerror or error}; {right}"
    print(f"evenhand server: {plain.line(text)}", file=sys.stderr)
    return WRONG_CALL


def _parser() -> argparse.ArgumentParser:
    about = sys.modules["deploy.native"].__doc__
    parser = argparse.ArgumentParser(prog="python -m deploy.native", description=about)
    actions = parser.add_subparsers(dest="action", required=True)
    for run, text in {
        _start: "set up what is missing, then start in the background",
        _stop: "end the server and its database",
        _status: "report whether it is ready, and its backups",
        _backup: "copy database and artifacts while it works",
        _restore: "make a new server of a backup, and start it",
        _gc: "free for good what was deleted in the UI",
        _upgrade: "make a backup, then bring the database to the installed MLflow",
    }.items():
        action = actions.add_parser(run.__name__[1:], help=text)
        action.set_defaults(run=run)
        action.add_argument("--folder", default="evenhand-server", help="folder of the server")
        if run in (_start, _restore):
            for field in dataclasses.fields(Settings):
                option = f"--{field.name.replace('_', '-')}"
                kind = int if field.type == "int" else str
                action.add_argument(option, type=kind, help=f"default: {field.default or 'none'}")
        if run is _restore:
            action.add_argument("copy", help="folder of the backup")
        if run is _backup:
            copy = "folder of all backups, instead of the server's own"
            action.add_argument("copy", nargs="?", metavar="DIR", help=copy)
            keep = "number of backups that stay there; older ones are deleted"
            action.add_argument("--keep", type=int, help=keep)
    return parser


def _merged(args: argparse.Namespace, before: Settings) -> Settings:
    """Return the settings of a server with those that a call names."""
    values = {field.name: getattr(args, field.name) for field in dataclasses.fields(Settings)}
    overrides = {name: value for name, value in values.items() if value is not None}
    return dataclasses.replace(before, **overrides)


def _start(folder: Folder, args: argparse.Namespace) -> int:
    with folder.exclusive():
        before = folder.settings() if folder.is_set_up else Settings()
        settings = _merged(args, before)
        if folder.is_set_up and settings.database != before.database:
            right = "move by backup and restore --database"
            text = f"this server's database is {before.database}; {right}"
            raise UsageError(ErrorCode.CONFLICT, text)
        if service.is_running(folder):  # before anything is written: status and stop depend on it
            reason = service.problem(folder, before)
            if not reason:
                text = f"a server of {folder.path} is running already at {before.uri}"
                raise UsageError(ErrorCode.IN_USE, f"{text}; stop it first")
            print(f"it was running, and not ready ({reason}): it is started again")
            service.stop(folder)
        folder.set_up(settings)
        _launch(folder, settings)
    return DONE


def _launch(folder: Folder, settings: Settings) -> None:
    service.require_free_port(settings)
    secrets = folder.secrets()
    database = databases.create(folder, settings, secrets)
    database.start()
    service.start(folder, settings, secrets, database)
    artifacts = service.artifacts(folder, settings)
    print(f"MLflow answers at {settings.uri}; its artifacts are in {artifacts}")
    print(f"user admin, password in {folder.secrets_file} (only you can read it)")


def _open(folder: Folder) -> tuple[Settings, PostgreSQL]:
    settings = folder.settings()
    return settings, databases.create(folder, settings, folder.secrets())


def _stop(folder: Folder, _: argparse.Namespace) -> int:
    with folder.exclusive():
        database = _open(folder)[1]
        was_running = service.stop(folder)
        database.stop()
    print("stopped" if was_running else "it was not running")
    return DONE


def _status(folder: Folder, _: argparse.Namespace) -> int:
    settings, database = _open(folder)
    reason = service.problem(folder, settings)
    names = [path.name for path in copies.list_backups(folder.backups)]
    state = ""
    if database.cluster:
        state = "runs" if database.is_running else "is down"
    print(f"server     {f'is not ready: {reason}' if reason else f'is ready at {settings.uri}'}")
    print(f"database   {settings.database} {state}".rstrip())
    print(f"artifacts  {service.artifacts(folder, settings)}")
    print(f"backups    {len(names)}" + (f", the newest {names[-1]}" if names else ""))
    return DOWN if reason else DONE


def _backup(folder: Folder, args: argparse.Namespace) -> int:
    settings, database = _open(folder)
    parent = Path(args.copy).resolve() if args.copy else folder.backups
    _make_backup(folder, settings, database, parent, args.keep)
    print("it holds the secrets too")
    if settings.artifacts:
        print(f"artifacts stay in {settings.artifacts}: keep versions or a second copy there")
    return DONE


def _make_backup(
    folder: Folder, settings: Settings, database: PostgreSQL, parent: Path, keep: int | None = None
) -> None:
    """Copy database, artifacts, settings and secrets."""
    artifacts = None if settings.artifacts else ArtifactFolder(folder.artifacts)
    metadata = {
        "mlflow": version("mlflow"),
        "settings": dataclasses.asdict(settings),
        "secrets": dataclasses.asdict(folder.secrets()),
    }
    copies.create(parent, keep, database, artifacts, metadata)


def parse_metadata(metadata: dict[str, Any]) -> tuple[Settings, Secrets]:
    """Return settings and secrets of a backup's metadata. Raises KeyError, TypeError."""
    return Settings(**metadata["settings"]), Secrets(**metadata["secrets"])


def _restore(folder: Folder, args: argparse.Namespace) -> int:
    source = Path(args.copy).resolve()
    before, secrets = copies.load(source, parse_metadata)
    settings = _merged(args, before)
    if present := [name for name in RESTORED if (folder.path / name).exists()]:
        text = f"{folder.path} holds {', '.join(present)} already; restore into an empty --folder"
        raise UsageError(ErrorCode.EXISTS, text)
    folder.path.mkdir(parents=True, exist_ok=True, mode=0o711)
    with folder.exclusive():
        database = databases.create(folder, settings, secrets)
        folder.artifacts.mkdir(mode=0o700)
        try:
            database.start()
            copies.restore(source, database, ArtifactFolder(folder.artifacts))
            folder.set_up(settings, secrets)
        except BaseException:
            database.stop()
            for name in RESTORED:
                shutil.rmtree(folder.path / name, ignore_errors=True)
            folder.secrets_file.unlink(missing_ok=True)
            raise
        _launch(folder, settings)
    return DONE


def _upgrade(folder: Folder, _: argparse.Namespace) -> int:
    settings, database = _open(folder)
    with folder.exclusive():
        service.stop(folder)
        database.start()
        _make_backup(folder, settings, database, folder.backups)  # prints what to restore
        for words in (
            ["mlflow", "db", "upgrade", database.url],
            ["mlflow.server.auth", "db", "upgrade", "--url", database.url],
        ):
            service.call(folder, database.environment, *words)
        _launch(folder, settings)
    return DONE


def _gc(folder: Folder, _: argparse.Namespace) -> int:
    settings, database = _open(folder)
    print(service.collect(folder, settings, folder.secrets(), database))
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m deploy.native start|run|stop|status|backup|restore|upgrade|gc --folder DIR`."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deploy import copies
from deploy.copies import ArtifactFolder
from deploy.native import database as databases
from deploy.native import service
from deploy.native.database import Database
from deploy.native.folder import DeployError, Folder, Secrets, Settings
from tracking import plain

DONE, DOWN, WRONG_CALL = 0, 1, 2
# Folders that a restore fills; settings come last, so that half of it is no server.
RESTORED = ("postgres", "sqlite", "artifacts")


def main(arguments: Sequence[str]) -> int:
    """Run one action, and return the exit code."""
    args = _parser().parse_args(arguments)
    folder = Folder(Path(args.folder).resolve())
    try:
        return int(args.run(folder, args))
    except DeployError as error:
        _print_error(str(error))
    except PermissionError as error:
        right = f"call this as {_owner(folder.path)}, or choose another --folder"
        _print_error(f"{error.filename} is not yours to read or write: {right}")
    except OSError as error:
        reason = f"{error.filename or folder.path}: {error.strerror or error}"
        _print_error(f"{reason}; choose another --folder")
    return WRONG_CALL


def _print_error(text: str) -> None:
    print(f"evenhand server: {plain.line(text)}", file=sys.stderr)


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except (OSError, KeyError):
        return "the user that the server belongs to"


def _parser() -> argparse.ArgumentParser:
    about = sys.modules["deploy.native"].__doc__
    parser = argparse.ArgumentParser(prog="python -m deploy.native", description=about)
    actions = parser.add_subparsers(dest="action", required=True)
    for run, text in {
        _start: "set up what is missing, then start",
        _run: "start, stay in the foreground, and end when server or database do: for systemd",
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
        if run in (_start, _run, _restore):
            for field in dataclasses.fields(Settings):
                option = f"--{field.name.replace('_', '-')}"
                if field.name == "allowed_hosts":
                    names = "names by which users call the server, with port: host.org:443"
                    action.add_argument(option, nargs="*", help=names)
                else:
                    kind = int if field.type == "int" else str
                    default = str(field.default or "in the folder")
                    action.add_argument(option, type=kind, help=default)
        if run is _restore:
            action.add_argument("copy", help="folder of the backup")
        if run is _backup:
            copy = "new folder of the backup; with --keep, the folder of all backups"
            action.add_argument("copy", nargs="?", metavar="DIR", help=copy)
            keep = "number of backups that stay in the folder of all; older ones are deleted"
            action.add_argument("--keep", type=int, help=keep)
    return parser


def _merged(args: argparse.Namespace, before: Settings) -> Settings:
    """Return the settings of a server with those that a call names."""
    values = {field.name: getattr(args, field.name) for field in dataclasses.fields(Settings)}
    overrides = {name: value for name, value in values.items() if value is not None}
    return Settings.parse(dataclasses.asdict(before) | overrides)


def _start(folder: Folder, args: argparse.Namespace) -> int:
    with folder.exclusive():
        _launch(folder, _prepare(folder, args))
    return DONE


def _run(folder: Folder, args: argparse.Namespace) -> int:
    """Run in the foreground: done if ended from outside, failed if the server ends by itself."""
    # Server and database do not answer for this process: they do not get the address.
    manager = os.environ.pop("NOTIFY_SOCKET", "")
    with folder.exclusive():
        settings = _prepare(folder, args)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(DONE))
    try:
        with folder.exclusive():
            process = _launch(folder, settings)
        _notify(manager, "READY=1")
        reason = service.watch(folder, settings, process)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        _notify(manager, "STOPPING=1")
        _end(folder)
    _print_error(reason)
    return DOWN


def _notify(manager: str, text: str) -> None:
    """Report to the service manager, if there is one (sd_notify)."""
    if manager:
        address = f"\0{manager[1:]}" if manager.startswith("@") else manager
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.sendto(text.encode(), address)


def _prepare(folder: Folder, args: argparse.Namespace) -> Settings:
    """Return and write the settings of a server that may start; what is left of it is ended."""
    before = folder.settings() if folder.is_set_up else Settings()
    settings = _merged(args, before)
    if folder.is_set_up and settings.database != before.database:
        right = "move by backup and restore --database"
        raise DeployError(f"this server's database is {before.database}; {right}")
    if service.is_running(folder):  # before anything is written: status and stop depend on it
        reason = service.problem(folder, before)
        if not reason:
            where = f"a server of {folder.path} is running already at {before.uri}"
            raise DeployError(f"{where}; stop it first")
        print(f"it was running, and not ready ({reason}): it is started again")
        service.stop(folder)
    folder.set_up(settings)
    return settings


def _launch(folder: Folder, settings: Settings) -> subprocess.Popen[bytes]:
    secrets = folder.secrets()
    database = databases.create(folder, settings, secrets)
    database.start()
    if settings.database == "sqlite":
        print("SQLite: for one person. A group's writers would wait for each other: PostgreSQL.")
    process = service.start(folder, settings, secrets, database)
    artifacts = service.artifacts(folder, settings)
    print(f"MLflow answers at {settings.uri}; its artifacts are in {artifacts}")
    print(f"user admin, password in {folder.secrets_file} (only you can read it)", flush=True)
    return process


def _open(folder: Folder) -> tuple[Settings, Database]:
    settings = folder.settings()
    return settings, databases.create(folder, settings, folder.secrets())


def _end(folder: Folder) -> bool:
    _, database = _open(folder)
    was_running = service.stop(folder)
    database.stop()
    return was_running


def _stop(folder: Folder, _: argparse.Namespace) -> int:
    with folder.exclusive():
        print("stopped" if _end(folder) else "it was not running")
    return DONE


def _status(folder: Folder, _: argparse.Namespace) -> int:
    settings, database = _open(folder)
    reason = service.problem(folder, settings)
    names = [path.name for path in copies.list_backups(folder.backups)]
    print(f"server     {f'is not ready: {reason}' if reason else f'is ready at {settings.uri}'}")
    print(f"database   {settings.database} {database.state}".rstrip())
    print(f"artifacts  {service.artifacts(folder, settings)}")
    print(f"backups    {len(names)}" + (f", the newest {names[-1]}" if names else ""))
    return DOWN if reason else DONE


def _backup(folder: Folder, args: argparse.Namespace) -> int:
    if args.keep is not None and args.keep < 1:
        raise DeployError(f"--keep {args.keep}: at least 1 backup stays, the one that is made now")
    settings, database = _open(folder)
    target = Path(args.copy).resolve() if args.copy else folder.backups
    if copies.is_backup(target):
        raise DeployError(f"{target} is a backup itself; choose another folder")
    if args.keep or not args.copy:
        target /= copies.new_name()
    _make_backup(folder, settings, database, target)
    print(f"copied to {target}; it holds the secrets too")
    for path in copies.prune(target.parent, args.keep) if args.keep else []:
        print(f"deleted the old backup {path}")
    if settings.artifacts:
        print(f"artifacts stay in {settings.artifacts}: keep versions or a second copy there")
    return DONE


def _make_backup(folder: Folder, settings: Settings, database: Database, target: Path) -> None:
    """Copy database, artifacts, settings and secrets."""
    artifacts = None if settings.artifacts else ArtifactFolder(folder.artifacts)
    metadata = {
        "mlflow": version("mlflow"),
        "settings": dataclasses.asdict(settings),
        "secrets": dataclasses.asdict(folder.secrets()),
    }
    copies.create(target, database, artifacts, metadata)


def parse_metadata(metadata: dict[str, Any]) -> tuple[Settings, Secrets]:
    """Return settings and secrets of a backup's metadata. Raises KeyError, TypeError."""
    return Settings.parse(metadata["settings"]), Secrets(**metadata["secrets"])


def _restore(folder: Folder, args: argparse.Namespace) -> int:
    source = Path(args.copy).resolve()
    before, secrets = copies.load(source, parse_metadata)
    settings = _merged(args, before)
    if present := [name for name in RESTORED if (folder.path / name).exists()]:
        right = "restore into an empty --folder"
        raise DeployError(f"{folder.path} holds {', '.join(present)} already; {right}")
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
        backup = folder.backups / copies.new_name()
        _make_backup(folder, settings, database, backup)
        print(f"copied to {backup}")
        try:
            for words in (
                ["mlflow", "db", "upgrade", database.url],
                ["mlflow.server.auth", "db", "upgrade", "--url", database.url],
            ):
                service.call(folder, database.environment, *words)
        except DeployError as error:
            right = f"python -m deploy.native restore {backup} --folder NEW"
            raise DeployError(f"{error}; the state before is in {backup}: {right}") from None
        _launch(folder, settings)
    return DONE


def _gc(folder: Folder, _: argparse.Namespace) -> int:
    settings, database = _open(folder)
    print(service.collect(folder, settings, folder.secrets(), database))
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

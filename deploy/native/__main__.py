"""`python -m deploy.native start|run|stop|status|backup|restore|upgrade|gc --folder DIR`."""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from deploy import copies
from deploy.copies import ArtifactFolder
from deploy.native import backup, service, watch
from deploy.native.database import Database, chosen
from deploy.native.folder import Folder, Refused, Settings
from tracking import plain

DONE, DOWN, WRONG_CALL = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    asked = _parser().parse_args(arguments)
    folder = Folder(Path(asked.folder).resolve())
    try:
        return {
            "start": _start,
            "run": _run,
            "stop": _stop,
            "status": _status,
            "backup": _backup,
            "restore": _restore,
            "upgrade": _upgrade,
            "gc": _gc,
        }[asked.action](folder, asked)
    except Refused as error:
        return _refuse(str(error))
    except PermissionError as error:
        return _refuse(f"{error.filename} is not yours to read or write: {_right_user(folder)}")
    except OSError as error:
        return _refuse(f"{error.filename or folder.path}: {error.strerror or error}")


def _refuse(text: str) -> int:
    print(f"evenhand server: {plain.line(text)}", file=sys.stderr)
    return WRONG_CALL


def _right_user(folder: Folder) -> str:
    try:
        owner = folder.path.owner()
    except (OSError, KeyError):
        return "call this as the user that the server belongs to, or choose another --folder"
    return f"{folder.path} belongs to {owner}; call this as {owner}, or choose another --folder"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.native", description=sys.modules["deploy.native"].__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    for name, told in {
        "start": "set up what is missing, then start",
        "run": "start, stay in the foreground, and end when server or database do: for systemd",
        "stop": "end the server and its database",
        "status": "say whether it answers, and how large it is",
        "backup": "copy database and artifacts while it works",
        "restore": "make a new server of a copy, and start it",
        "gc": "free for good what was deleted in the UI",
        "upgrade": "copy, then bring the database to the installed MLflow",
    }.items():
        action = actions.add_parser(name, help=told)
        action.add_argument("--folder", default="evenhand-server", help="where everything of the server lies")
        if name in ("start", "run", "restore"):
            for field in dataclasses.fields(Settings):
                option = f"--{field.name.replace('_', '-')}"
                if field.name == "allowed_hosts":
                    action.add_argument(option, nargs="*", help="names by which users call the server, with port: host.org:443")
                else:
                    action.add_argument(
                        option, type=int if field.type == "int" else str, help=f"{field.default or 'in the folder'}"
                    )
        if name in ("backup", "restore"):
            action.add_argument("copy", nargs="?" if name == "backup" else None, help="the copy's folder")
        if name == "backup":
            action.add_argument("--keep", type=int, help="how many copies to keep in the folder; older ones are deleted")
    return parser


def _wanted(asked: argparse.Namespace, before: Settings) -> Settings:
    given = {field.name: getattr(asked, field.name) for field in dataclasses.fields(Settings)}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items() if value is not None}
    return dataclasses.replace(before, **given)


def _start(folder: Folder, asked: argparse.Namespace) -> int:
    with folder.at_work():
        _launch(folder, _prepared(folder, asked))
    return DONE


def _run(folder: Folder, asked: argparse.Namespace) -> int:
    """In the foreground; server and database end with it. Ended from outside it is done, by itself it has failed."""
    manager, why = watch.Manager.of_this_process(), ""
    with folder.at_work():
        settings = _prepared(folder, asked)
    try:
        with watch.until_asked(manager):
            with folder.at_work():
                process = _launch(folder, settings)
            why = watch.watch(process, lambda: service.problem(folder, settings), manager)
    finally:
        _end(folder, settings)
    if why:
        print(f"evenhand server: {plain.line(why)}", file=sys.stderr)
    return DOWN if why else DONE


def _prepared(folder: Folder, asked: argparse.Namespace) -> Settings:
    """The settings of a server that may be started: written down, and whatever is left of it ended. Raises Refused."""
    before = folder.settings() if folder.is_set_up else Settings()
    settings = _wanted(asked, before)
    if folder.is_set_up and settings.database != before.database:
        raise Refused(f"this server's database is {before.database}; move by backup and restore --database")
    if service.is_running(folder):  # before anything is written: status and stop go by what is
        reason = service.problem(folder, before)
        if not reason:
            raise Refused(f"a server of {folder.path} is running already at {before.uri}; stop it first")
        print(f"it was running, and not ready ({reason}): it is started again")
        service.stop(folder)
    folder.set_up(settings)
    return settings


def _launch(folder: Folder, settings: Settings) -> subprocess.Popen[bytes]:
    kept = folder.secrets()
    database = chosen(folder, settings, kept)
    database.start()
    if settings.database == "sqlite":
        print("SQLite: for one person. A group's writers would wait for each other; take PostgreSQL for that.")
    process = service.start(folder, settings, kept, database)
    print(f"MLflow answers at {settings.uri}; its artifacts are in {service.artifacts(folder, settings)}")
    print(f"user admin, password in {folder.secrets_file} (yours alone to read)", flush=True)
    return process


def _end(folder: Folder, settings: Settings) -> bool:
    ran = service.stop(folder)
    chosen(folder, settings, folder.secrets()).stop()
    return ran


def _stop(folder: Folder, _: argparse.Namespace) -> int:
    settings = folder.settings()
    with folder.at_work():
        print("stopped" if _end(folder, settings) else "it was not running")
    return DONE


def _status(folder: Folder, _: argparse.Namespace) -> int:
    settings, database = _opened(folder)
    reason = service.problem(folder, settings)
    made = copies.finished(folder.backups)
    print(f"server     {f'is not ready: {reason}' if reason else f'is ready at {settings.uri}'}")
    print(f"database   {settings.database} {database.state}".rstrip())
    print(f"artifacts  {service.artifacts(folder, settings)}{'' if settings.artifacts else f', {_size(folder) / 1e6:,.1f} MB'}")
    print(f"copies     {len(made)}" + (f", the newest {made[-1].name}" if made else ""))
    return DOWN if reason else DONE


def _opened(folder: Folder) -> tuple[Settings, Database]:
    settings = folder.settings()
    return settings, chosen(folder, settings, folder.secrets())


def _size(folder: Folder) -> int:
    """Of the artifacts, in bytes, while the server adds and deletes some."""
    sizes = 0
    for parent, _, files in os.walk(folder.artifacts):
        for name in files:
            with suppress(FileNotFoundError):
                sizes += (Path(parent) / name).lstat().st_size
    return sizes


def _backup(folder: Folder, asked: argparse.Namespace) -> int:
    if asked.keep is not None and asked.keep < 1:
        raise Refused(f"--keep {asked.keep}: at least 1 copy stays, the one that is made now")
    settings, database = _opened(folder)
    made = backup.make(folder, settings, database, Path(asked.copy).resolve() if asked.copy else None)
    print(f"copied to {made}; it holds the secrets too")
    for gone in copies.prune(folder.backups, asked.keep) if asked.keep else []:
        print(f"deleted the old copy {gone}")
    if settings.artifacts:
        print(f"artifacts stay in {settings.artifacts}: keep versions or a second copy there")
    return DONE


def _restore(folder: Folder, asked: argparse.Namespace) -> int:
    source = Path(asked.copy).resolve()
    before, kept = copies.load(source, backup.parse)
    settings = _wanted(asked, before)
    with backup.restoring(folder, settings):
        database = chosen(folder, settings, kept)
        database.start()
        copies.restore(source, database, ArtifactFolder(folder.artifacts))
        folder.set_up(settings, kept)
    with folder.at_work():
        _launch(folder, settings)
    return DONE


def _upgrade(folder: Folder, _: argparse.Namespace) -> int:
    settings, database = _opened(folder)
    with folder.at_work():
        service.stop(folder)
        database.start()
        made = backup.make(folder, settings, database)
        print(f"copied to {made}")
        try:
            backup.upgrade(folder, settings, database)
        except Refused as error:
            right = f"python -m deploy.native restore {made} --folder NEW"
            raise Refused(f"{error}; the state before is in {made}: {right}") from None
        _launch(folder, settings)
    return DONE


def _gc(folder: Folder, _: argparse.Namespace) -> int:
    settings, database = _opened(folder)
    print(service.collect(folder, settings, folder.secrets(), database))
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

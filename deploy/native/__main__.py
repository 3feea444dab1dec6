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
    args = _parser().parse_args(arguments)
    folder = Folder(Path(args.folder).resolve())
    try:
        return int(args.run(folder, args))
    except Refused as error:
        _print_error(str(error))
    except PermissionError as error:
        _print_error(f"{error.filename} is not yours to read or write: {_right_user(folder)}")
    except OSError as error:
        reason = f"{error.filename or folder.path}: {error.strerror or error}"
        _print_error(f"{reason}; choose another --folder")
    return WRONG_CALL


def _print_error(text: str) -> None:
    print(f"evenhand server: {plain.line(text)}", file=sys.stderr)


def _right_user(folder: Folder) -> str:
    try:
        owner = folder.path.owner()
    except (OSError, KeyError):
        return "call this as the user that the server belongs to, or choose another --folder"
    return f"{folder.path} belongs to {owner}; call this as {owner}, or choose another --folder"


def _parser() -> argparse.ArgumentParser:
    about = sys.modules["deploy.native"].__doc__
    parser = argparse.ArgumentParser(prog="python -m deploy.native", description=about)
    actions = parser.add_subparsers(dest="action", required=True)
    for run, text in {
        _start: "set up what is missing, then start",
        _run: "start, stay in the foreground, and end when server or database do: for systemd",
        _stop: "end the server and its database",
        _status: "report whether it answers, and how large it is",
        _backup: "copy database and artifacts while it works",
        _restore: "make a new server of a copy, and start it",
        _gc: "free for good what was deleted in the UI",
        _upgrade: "copy, then bring the database to the installed MLflow",
    }.items():
        action = actions.add_parser(run.__name__[1:], help=text)
        action.set_defaults(run=run)
        where = "where everything of the server lies"
        action.add_argument("--folder", default="evenhand-server", help=where)
        if run in (_start, _run, _restore):
            for field in dataclasses.fields(Settings):
                option = f"--{field.name.replace('_', '-')}"
                kind = int if field.type == "int" else str
                default = str(field.default or "in the folder")
                if field.name == "allowed_hosts":
                    names = "names by which users call the server, with port: host.org:443"
                    action.add_argument(option, nargs="*", help=names)
                else:
                    action.add_argument(option, type=kind, help=default)
        if run in (_backup, _restore):
            action.add_argument(
                "copy", nargs="?" if run is _backup else None, help="the copy's folder"
            )
        if run is _backup:
            keep = "how many copies to keep in the folder; older ones are deleted"
            action.add_argument("--keep", type=int, help=keep)
    return parser


def _merged(args: argparse.Namespace, before: Settings) -> Settings:
    """Return the settings of a server with those that a call names."""
    values = {field.name: getattr(args, field.name) for field in dataclasses.fields(Settings)}
    named = {name: value for name, value in values.items() if value is not None}
    return Settings.parse(dataclasses.asdict(before) | named)


def _start(folder: Folder, args: argparse.Namespace) -> int:
    with folder.at_work():
        _launch(folder, _prepared(folder, args))
    return DONE


def _run(folder: Folder, args: argparse.Namespace) -> int:
    """Run in the foreground: done if ended from outside, failed if the server ends by itself."""
    manager, reason = watch.Manager.of_this_process(), ""
    with folder.at_work():
        settings = _prepared(folder, args)
    try:
        with watch.until_asked(manager):
            with folder.at_work():
                process = _launch(folder, settings)
            reason = watch.watch(process, lambda: service.problem(folder, settings), manager)
    finally:
        _end(folder)
    if reason:
        _print_error(reason)
    return DOWN if reason else DONE


def _prepared(folder: Folder, args: argparse.Namespace) -> Settings:
    """Return the settings of a server that may start, written down; what is left of it is ended."""
    before = folder.settings() if folder.is_set_up else Settings()
    settings = _merged(args, before)
    if folder.is_set_up and settings.database != before.database:
        right = "move by backup and restore --database"
        raise Refused(f"this server's database is {before.database}; {right}")
    if service.is_running(folder):  # before anything is written: status and stop go by what is
        reason = service.problem(folder, before)
        if not reason:
            raise Refused(
                f"a server of {folder.path} is running already at {before.uri}; stop it first"
            )
        print(f"it was running, and not ready ({reason}): it is started again")
        service.stop(folder)
    folder.set_up(settings)
    return settings


def _launch(folder: Folder, settings: Settings) -> subprocess.Popen[bytes]:
    kept = folder.secrets()
    database = chosen(folder, settings, kept)
    database.start()
    if settings.database == "sqlite":
        print(
            "SQLite: for one person. A group's writers would wait for each other: take PostgreSQL."
        )
    process = service.start(folder, settings, kept, database)
    artifacts = service.artifacts(folder, settings)
    print(f"MLflow answers at {settings.uri}; its artifacts are in {artifacts}")
    print(f"user admin, password in {folder.secrets_file} (yours alone to read)", flush=True)
    return process


def _opened(folder: Folder) -> tuple[Settings, Database]:
    settings = folder.settings()
    return settings, chosen(folder, settings, folder.secrets())


def _end(folder: Folder) -> bool:
    _, database = _opened(folder)
    ran = service.stop(folder)
    database.stop()
    return ran


def _stop(folder: Folder, _: argparse.Namespace) -> int:
    with folder.at_work():
        print("stopped" if _end(folder) else "it was not running")
    return DONE


def _status(folder: Folder, _: argparse.Namespace) -> int:
    settings, database = _opened(folder)
    reason = service.problem(folder, settings)
    names = [path.name for path in copies.finished(folder.backups)]
    size = "" if settings.artifacts else f", {_size(folder.artifacts) / 1e6:,.1f} MB"
    print(f"server     {f'is not ready: {reason}' if reason else f'is ready at {settings.uri}'}")
    print(f"database   {settings.database} {database.state}".rstrip())
    print(f"artifacts  {service.artifacts(folder, settings)}{size}")
    print(f"copies     {len(names)}" + (f", the newest {names[-1]}" if names else ""))
    return DOWN if reason else DONE


def _size(folder: Path) -> int:
    """Return the size in bytes of files that a server adds and deletes meanwhile."""
    size = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):
                size += (Path(parent) / name).lstat().st_size
    return size


def _backup(folder: Folder, args: argparse.Namespace) -> int:
    if args.keep is not None and args.keep < 1:
        raise Refused(f"--keep {args.keep}: at least 1 copy stays, the one that is made now")
    settings, database = _opened(folder)
    made = backup.make(folder, settings, database, Path(args.copy).resolve() if args.copy else None)
    print(f"copied to {made}; it holds the secrets too")
    for path in copies.prune(folder.backups, args.keep) if args.keep else []:
        print(f"deleted the old copy {path}")
    if settings.artifacts:
        print(f"artifacts stay in {settings.artifacts}: keep versions or a second copy there")
    return DONE


def _restore(folder: Folder, args: argparse.Namespace) -> int:
    source = Path(args.copy).resolve()
    before, kept = copies.load(source, backup.parse)
    settings = _merged(args, before)
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

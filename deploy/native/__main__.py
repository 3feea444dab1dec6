"""`python -m deploy.native start|stop|status|backup|restore|upgrade|gc --folder DIR`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.native import backup, postgres, service
from deploy.native.folder import Folder, Refused, Settings

DONE, DOWN, WRONG_CALL = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    asked = _parser().parse_args(arguments)
    folder = Folder(Path(asked.folder).resolve())
    try:
        return {
            "start": _start,
            "stop": _stop,
            "status": _status,
            "backup": _backup,
            "restore": _restore,
            "upgrade": _upgrade,
            "gc": _gc,
        }[asked.action](folder, asked)
    except Refused as error:
        print(f"evenhand server: {error}", file=sys.stderr)
        return WRONG_CALL


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.native", description=sys.modules["deploy.native"].__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    for name, told in {
        "start": "set up what is missing, then start",
        "stop": "end the server and its database",
        "status": "say whether it answers, and how large it is",
        "backup": "copy database and artifacts while it works",
        "restore": "make a new server of a copy, and start it",
        "gc": "free for good what was deleted in the UI",
        "upgrade": "copy, then bring the database to the installed MLflow",
    }.items():
        action = actions.add_parser(name, help=told)
        action.add_argument("--folder", default="evenhand-server", help="where everything of the server lies")
        if name in ("start", "restore"):
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
    return parser


def _wanted(asked: argparse.Namespace, before: Settings) -> Settings:
    given = {field.name: getattr(asked, field.name) for field in dataclasses.fields(Settings)}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items() if value is not None}
    return dataclasses.replace(before, **given)


def _start(folder: Folder, asked: argparse.Namespace) -> int:
    before = folder.settings() if folder.is_set_up else Settings()
    if service.is_running(folder):  # before anything is written: status and stop go by what is
        raise Refused(f"a server of {folder.path} is running already at {before.uri}; stop it first")
    settings = _wanted(asked, before)
    if folder.is_set_up and settings.database != before.database:
        raise Refused(f"this server's database is {before.database}; move by backup and restore --database")
    folder.set_up(settings)
    return _run(folder, settings)


def _run(folder: Folder, settings: Settings) -> int:
    kept = folder.secrets()
    database = postgres.chosen(folder, settings, kept)
    if database:
        database.start()
    else:
        print("SQLite: for one person. A group's writers would wait for each other; take PostgreSQL for that.")
    service.start(folder, settings, kept, database)
    print(f"MLflow answers at {settings.uri}; its artifacts are in {settings.artifacts or folder.artifacts}")
    print(f"user admin, password in {folder.secrets_file} (yours alone to read)")
    return DONE


def _stop(folder: Folder, _: argparse.Namespace) -> int:
    settings = folder.settings()
    ran = service.stop(folder)
    if database := postgres.chosen(folder, settings, folder.secrets()):
        database.stop()
    print("stopped" if ran else "it was not running")
    return DONE


def _status(folder: Folder, _: argparse.Namespace) -> int:
    settings = folder.settings()
    database = postgres.chosen(folder, settings, folder.secrets())
    answers = service.is_running(folder) and service.healthy(settings)
    size = sum(path.stat().st_size for path in folder.artifacts.rglob("*") if path.is_file())
    copies = sorted(path.name for path in folder.backups.glob("[!.]*")) if folder.backups.exists() else []
    own = "" if not (database and database.cluster) else " runs" if database.is_running else " is down"
    print(f"server     {'answers' if answers else 'does not answer'} at {settings.uri}")
    print(f"database   {settings.database}{own}")
    print(f"artifacts  {settings.artifacts or folder.artifacts}" + ("" if settings.artifacts else f", {size / 1e6:,.1f} MB"))
    print(f"copies     {len(copies)}" + (f", the newest {copies[-1]}" if copies else ""))
    return DONE if answers else DOWN


def _backup(folder: Folder, asked: argparse.Namespace) -> int:
    settings = folder.settings()
    made = backup.make(
        folder, settings, postgres.chosen(folder, settings, folder.secrets()), Path(asked.copy).resolve() if asked.copy else None
    )
    print(f"copied to {made}; it holds the secrets too")
    if settings.artifacts:
        print(f"artifacts stay in {settings.artifacts}: keep versions or a second copy there")
    return DONE


def _restore(folder: Folder, asked: argparse.Namespace) -> int:
    source = Path(asked.copy).resolve()
    settings = backup.restore(folder, source)
    settings = _wanted(asked, settings)
    folder.set_up(settings)
    database = postgres.chosen(folder, settings, folder.secrets())
    if database:
        database.start()
    backup.fill(folder, source, database)
    return _run(folder, settings)


def _upgrade(folder: Folder, _: argparse.Namespace) -> int:
    settings = folder.settings()
    database = postgres.chosen(folder, settings, folder.secrets())
    service.stop(folder)
    if database:
        database.start()
    made = backup.make(folder, settings, database)
    print(f"copied to {made}")
    try:
        backup.upgrade(folder, database)
    except Refused as error:
        raise Refused(f"{error}; the state before is in {made}: python -m deploy.native restore {made} --folder NEW") from None
    return _run(folder, settings)


def _gc(folder: Folder, _: argparse.Namespace) -> int:
    settings = folder.settings()
    print(service.collect(folder, settings, folder.secrets(), postgres.chosen(folder, settings, folder.secrets())))
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Copies of database and bucket: `python -m deploy.compose.backup make|daily|check|list|restore`.

A copy is a folder below BACKUPS; the newest KEEP stay. The secrets are not in it: they are in
secrets/ where `secrets.sh` was called, or in Kubernetes' own Secret.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from deploy import copies
from deploy.compose import services
from deploy.compose.services import secret
from deploy.copies import Bucket
from deploy.native.database import PostgreSQL
from deploy.native.folder import Refused

BACKUPS = Path(os.environ.get("BACKUPS", "/backups"))
KEEP = os.environ.get("KEEP", "14")
DAY_SECONDS, AGAIN_SECONDS = 86_400, 3_600
LATE_SECONDS = 26 * 3_600
DONE, FAILED, WRONG_CALL = 0, 1, 2
ERRORS = (Refused, BotoCoreError, ClientError, OSError)


def main(arguments: Sequence[str]) -> int:
    """Run one action, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.compose.backup", description=__doc__)
    parser.add_argument("action", choices=("make", "daily", "check", "list", "restore"))
    parser.add_argument("name", nargs="?", default="", help="restore: a copy that `list` prints")
    args = parser.parse_args(arguments)
    try:
        match args.action:
            case "make":
                _make()
            case "daily":
                _make_daily()
            case "restore":
                _restore(args.name)
            case "list":
                print("\n".join(_names()) or f"no copy in {BACKUPS}")
            case "check":
                is_late = copies.age_seconds(BACKUPS) > LATE_SECONDS
                print(
                    f"the newest copy is {'older than 26 hours, or missing' if is_late else 'of the last day'}"
                )
                return FAILED if is_late else DONE
    except ERRORS as error:
        _print_error(error)
        return WRONG_CALL
    return DONE


def _make() -> None:
    if not KEEP.isdecimal() or int(KEEP) < 1:
        raise Refused(f"KEEP={KEEP}: write how many copies stay, 1 or more")
    final = BACKUPS / copies.new_name()
    count = copies.make(final, *_sources(), {})
    print(f"copied to {final}: the database and {count} objects", flush=True)
    for path in copies.prune(BACKUPS, int(KEEP)):
        print(f"deleted the old copy {path}", flush=True)


def _make_daily() -> None:
    """Copy a day after the last copy, for ever; after an error again in an hour."""
    while True:
        time.sleep(max(0.0, DAY_SECONDS - copies.age_seconds(BACKUPS)))
        try:
            _make()
        except ERRORS as error:
            _print_error(error)
            time.sleep(AGAIN_SECONDS)


def _restore(name: str) -> None:
    if name not in _names():
        have = ", ".join(_names()) or "none"
        raise Refused(f"there is no copy {name!r} in {BACKUPS}; have {have}")
    copies.load(BACKUPS / name, dict)
    count = copies.restore(BACKUPS / name, *_sources())
    print(f"restored the database and {count} objects of {name}")


def _sources() -> tuple[PostgreSQL, Bucket]:
    database = PostgreSQL(services.DATABASE, secret("database_password"))
    return database, services.open_bucket(secret("store_password"))


def _names() -> list[str]:
    return [path.name for path in copies.finished(BACKUPS)]


def _print_error(error: Exception) -> None:
    print(f"evenhand backup: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

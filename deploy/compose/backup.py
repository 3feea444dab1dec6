"""Backups of database and bucket: `python -m deploy.compose.backup make|restore`.

A backup is a folder below BACKUPS; the newest KEEP stay. The secrets are not in it: they are in
secrets/ where `secrets.sh` was called, or in Kubernetes' own Secret.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from deploy import copies
from deploy.compose.serve import DATABASE, open_bucket, read_secret
from deploy.copies import Bucket
from deploy.native.database import PostgreSQL
from deploy.native.folder import DeployError

BACKUPS = Path(os.environ.get("BACKUPS", "/backups"))
KEEP = os.environ.get("KEEP", "14")
DONE, WRONG_CALL = 0, 2


def main(arguments: Sequence[str]) -> int:
    """Run one action, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.compose.backup", description=__doc__)
    parser.add_argument("action", choices=("make", "restore"))
    parser.add_argument("name", nargs="?", default="", help="restore: name of the backup")
    args = parser.parse_args(arguments)
    try:
        if args.action == "make":
            _make()
        else:
            _restore(args.name)
    except (DeployError, BotoCoreError, ClientError, OSError) as error:
        print(f"evenhand backup: {error}", file=sys.stderr, flush=True)
        return WRONG_CALL
    return DONE


def _make() -> None:
    if not KEEP.isdecimal() or int(KEEP) < 1:
        raise DeployError(f"KEEP={KEEP}: write how many backups stay, 1 or more")
    target = BACKUPS / copies.new_name()
    count = copies.create(target, *_open_services(), {})
    print(f"copied to {target}: the database and {count} objects", flush=True)
    for path in copies.prune(BACKUPS, int(KEEP)):
        print(f"deleted the old backup {path}", flush=True)


def _restore(name: str) -> None:
    names = [path.name for path in copies.list_backups(BACKUPS)]
    if name not in names:
        available = ", ".join(names) or "none"
        raise DeployError(f"there is no backup {name!r} in {BACKUPS}; have {available}")
    copies.load(BACKUPS / name, dict)
    count = copies.restore(BACKUPS / name, *_open_services())
    print(f"restored the database and {count} objects of {name}")


def _open_services() -> tuple[PostgreSQL, Bucket]:
    database = PostgreSQL(DATABASE, read_secret("database_password"))
    return database, open_bucket(read_secret("store_password"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

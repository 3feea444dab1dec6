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
from deploy.native.database import PostgreSQL
from tracking.errors import EvenhandError

BACKUPS = Path(os.environ.get("BACKUPS", "/backups"))
KEEP = os.environ.get("KEEP", "14")
DONE, WRONG_CALL = 0, 2


def main(arguments: Sequence[str]) -> int:
    """Run one action, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.compose.backup", description=__doc__)
    parser.add_argument("action", choices=("make", "restore"))
    parser.add_argument("name", nargs="?", default="", help="restore: name of the backup")
    args = parser.parse_args(arguments)
    source = BACKUPS / Path(args.name).name
    try:
        database = PostgreSQL(DATABASE, read_secret("database_password"))
        bucket = open_bucket(read_secret("store_password"))
        if args.action == "make":
            copies.create(BACKUPS, int(KEEP) if KEEP.isdecimal() else 0, database, bucket, {})
        else:
            copies.load(source, dict)
            count = copies.restore(source, database, bucket)
            print(f"restored the database and {count} files of {source.name}")
    except (EvenhandError, BotoCoreError, ClientError, OSError) as error:
        print(f"evenhand backup: {error}", file=sys.stderr, flush=True)
        return WRONG_CALL
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Copies of the containers' database and bucket: `python -m deploy.compose.backup make|daily|check|list|restore NAME`.

A copy is a folder below BACKUPS with a dump, a tar of the objects, and their checksums; the newest KEEP stay. The secrets are
not in it: they are in secrets/ where `secrets.sh` was called, or in Kubernetes' own Secret.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from deploy import copies, readiness
from deploy.copies import ABOUT, ARTIFACTS, DUMP
from deploy.native.folder import Refused, write_private
from deploy.native.postgres import Database

SECRETS = Path(os.environ.get("SECRETS", "/run/secrets"))
BACKUPS = Path(os.environ.get("BACKUPS", "/backups"))
BUCKET, USER = "evenhand", "evenhand"
KEEP = "14"
DAY_SECONDS = 86_400
LATE_SECONDS = 26 * 3_600
IN_MEMORY_BYTES = 64 * 2**20
DONE, FAILED, WRONG_CALL = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.compose.backup", description=__doc__)
    parser.add_argument("action", choices=("make", "daily", "check", "list", "restore"))
    parser.add_argument("name", nargs="?", help="restore: which copy, as `list` says it")
    asked = parser.parse_args(arguments)
    try:
        return {"make": _make, "daily": _daily, "check": _check, "list": _list, "restore": _restore}[asked.action](asked)
    except (Refused, BotoCoreError, ClientError, OSError) as error:
        return _refuse(error)


def _refuse(error: Exception) -> int:
    print(f"evenhand backup: {error}", file=sys.stderr, flush=True)
    return WRONG_CALL


def _make(_: argparse.Namespace) -> int:
    keep = os.environ.get("KEEP", KEEP)
    if not keep.isdecimal() or int(keep) < 1:
        raise Refused(f"KEEP={keep}: write how many copies stay, 1 or more")
    final = BACKUPS / copies.new_name()
    with copies.unfinished(final) as making:
        _database().dump(making / DUMP)
        objects = _pack(making / ARTIFACTS)
        digests = {one.name: copies.digest(one) for one in sorted(making.iterdir())}
        write_private(making / ABOUT, json.dumps({"objects": objects, "sha256": digests}, indent=1))
    print(f"copied to {final}: the database and {objects} objects", flush=True)
    for gone in copies.prune(BACKUPS, int(keep)):
        print(f"deleted the old copy {gone}", flush=True)
    return DONE


def _daily(asked: argparse.Namespace) -> int:
    """For ever, as a service; a failure is told, and tried again a day after the last copy that went well, or in an hour."""
    while True:
        wait_seconds = DAY_SECONDS - _age_seconds()
        if wait_seconds > 0:
            time.sleep(wait_seconds)
            continue
        try:
            _make(asked)
        except (Refused, BotoCoreError, ClientError, OSError) as error:
            _refuse(error)
            time.sleep(3_600)


def _check(_: argparse.Namespace) -> int:
    """For a health check: whether there is a copy of the last day."""
    late = _age_seconds() > LATE_SECONDS
    print("the newest copy is older than 26 hours, or there is none" if late else "there is a copy of the last day")
    return FAILED if late else DONE


def _list(_: argparse.Namespace) -> int:
    print("\n".join(one.name for one in copies.found(BACKUPS)) or f"no copy in {BACKUPS}")
    return DONE


def _restore(asked: argparse.Namespace) -> int:
    """Into an empty database and an empty bucket, as new volumes are."""
    source = BACKUPS / (asked.name or "")
    if source not in copies.found(BACKUPS):
        have = ", ".join(one.name for one in copies.found(BACKUPS)) or "none"
        raise Refused(f"there is no copy {asked.name!r} in {BACKUPS}; have {have}")
    try:
        digests = dict(json.loads((source / ABOUT).read_text())["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        raise Refused(f"{source} has no readable {ABOUT}") from None
    copies.check(source, digests)
    store, database = _store(), _database()
    if any(True for _ in _objects(store)):
        raise Refused(f"the bucket {BUCKET} holds objects already; restore into a new store")
    if tables := database.tables():
        raise Refused(f"the database holds {tables} tables already; restore into a new one, before the tracking server starts")
    database.restore(source / DUMP)
    print(f"restored the database and {_unpack(store, source / ARTIFACTS)} objects of {asked.name}")
    return DONE


def _age_seconds() -> float:
    """Of the newest copy; without one, for ever ago."""
    names = [one.name for one in copies.found(BACKUPS)]
    if not names:
        return float("inf")
    made = datetime.datetime.strptime(names[-1], "%Y-%m-%dT%H-%M-%S").replace(tzinfo=datetime.UTC)
    return (datetime.datetime.now(datetime.UTC) - made).total_seconds()


def _database() -> Database:
    url = os.environ.get("DATABASE", f"postgresql+psycopg2://{USER}@database/{USER}")
    return Database(url, (SECRETS / "database_password").read_text().strip())


def _store() -> Any:
    words = {"aws_access_key_id": USER, "aws_secret_access_key": (SECRETS / "store_password").read_text().strip()}
    store = boto3.client("s3", endpoint_url=os.environ.get("STORE", "http://store:9000"), region_name="us-east-1", **words)
    if BUCKET not in [one["Name"] for one in store.list_buckets()["Buckets"]]:
        store.create_bucket(Bucket=BUCKET)
    return store


def _objects(store: Any) -> Iterator[str]:
    for page in store.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for one in page.get("Contents", []):
            if not one["Key"].rpartition("/")[2].startswith(readiness.PROBE):
                yield one["Key"]


def _pack(archive: Path) -> int:
    """Objects by name, never as files: a key may be any text. Those that are deleted meanwhile are no part of the copy."""
    store, count = _store(), 0
    with tarfile.open(archive, "w") as tar:
        for key in _objects(store):
            with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES, "w+b", dir=str(archive.parent)) as held:
                try:
                    store.download_fileobj(BUCKET, key, held)
                except ClientError as error:
                    if error.response["Error"]["Code"] in ("404", "NoSuchKey"):
                        continue
                    raise
                member = tarfile.TarInfo(f"artifacts/{key}")
                member.size = held.tell()
                held.seek(0)
                tar.addfile(member, held)
                count += 1
    return count


def _unpack(store: Any, archive: Path) -> int:
    count = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() and member.name.startswith("artifacts/") else None
            if content is None:
                raise Refused(f"{archive} holds {member.name!r}, which is no object of the bucket")
            with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES, "w+b") as held:
                shutil.copyfileobj(content, held)
                held.seek(0)
                store.upload_fileobj(held, BUCKET, member.name.removeprefix("artifacts/"))
            count += 1
    return count


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

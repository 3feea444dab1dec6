"""Readiness of a tracking server: a row of the database and a small file are written and read."""

from __future__ import annotations

import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

CONNECT_SECONDS, STATEMENT_SECONDS, WHOLE_SECONDS = 3, 3, 6
LONGEST_LINE = 300
PROBE = ".evenhand-ready"
TABLE = "evenhand_readiness"
# Run once before the server starts.
CREATE = f"CREATE TABLE IF NOT EXISTS {TABLE} (id INTEGER PRIMARY KEY, written_ns BIGINT NOT NULL)"

_hanging: dict[str, threading.Thread] = {}


def problem(backend_uri: str, artifacts: str) -> str:
    """Return which of the two cannot be written and read and why, in one line, or "".

    It takes a few seconds at most. The line holds no password and no control character.

    Args:
        backend_uri: SQLAlchemy's address of the database, which has the table of `CREATE`.
        artifacts: A folder, file:// or s3://bucket/path; other stores are not checked.
    """
    checks = {
        "the database": partial(_database, backend_uri),
        "the artifacts": partial(_artifacts, artifacts),
    }
    password = unquote(urlsplit(backend_uri).password or "")
    for name, check in checks.items():
        if reason := _run_bounded(f"{name} of {backend_uri} {artifacts}", check):
            text = f"{name} cannot be written and read: {reason}"
            line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
            return (line.replace(password, "…") if password else line)[:LONGEST_LINE]
    return ""


def _run_bounded(name: str, check: Callable[[], None]) -> str:
    """Return the reason of a failure, or "". A disk or a server that hangs holds one thread."""
    late = f"no answer within {WHOLE_SECONDS} s"
    if name in _hanging and _hanging[name].is_alive():
        return late
    reasons: list[str] = []

    def run() -> None:
        try:
            check()
            reasons.append("")
        except Exception as error:  # a driver may raise anything
            reasons.append(str(getattr(error, "orig", None) or error) or type(error).__name__)

    thread = _hanging[name] = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WHOLE_SECONDS)
    return late if thread.is_alive() else reasons[0]


def _database(uri: str) -> None:
    """Write and read a row. A temporary table could be written in a read-only database too."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    options: dict[str, object] = {"timeout": CONNECT_SECONDS}
    if uri.startswith("postgresql"):
        options = {
            "connect_timeout": CONNECT_SECONDS,
            "tcp_user_timeout": STATEMENT_SECONDS * 1_000,
            "options": f"-c statement_timeout={STATEMENT_SECONDS}s "
            f"-c lock_timeout={STATEMENT_SECONDS}s",
        }
    engine = create_engine(uri, poolclass=NullPool, connect_args=options)
    on_conflict = "ON CONFLICT (id) DO UPDATE SET written_ns = :now_ns"
    upsert = text(f"INSERT INTO {TABLE} VALUES (1, :now_ns) {on_conflict} RETURNING written_ns")
    now_ns = time.time_ns()
    with engine.begin() as connection:
        if connection.execute(upsert, {"now_ns": now_ns}).scalar() != now_ns:
            raise RuntimeError("it gives back another row than was written")


def _artifacts(place: str) -> None:
    parts = urlsplit(place)
    if parts.scheme == "s3":
        _bucket(parts.netloc, f"{parts.path.strip('/')}/{PROBE}-{uuid.uuid4().hex}".lstrip("/"))
    elif parts.scheme in ("", "file"):
        _folder(url2pathname(parts.path) if parts.scheme else place)


def _folder(folder: str) -> None:
    content = os.urandom(64)
    try:
        with tempfile.TemporaryFile(prefix=PROBE, dir=folder) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            if file.read() != content:
                raise RuntimeError(f"{folder} gives back another file than was written")
    except OSError as error:
        raise RuntimeError(f"{folder}: {error.strerror}") from None


def _bucket(bucket: str, key: str) -> None:
    import boto3
    from botocore.config import Config

    bounds = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=STATEMENT_SECONDS,
        retries={"total_max_attempts": 1},
    )
    endpoint = os.environ.get("MLFLOW_S3_ENDPOINT_URL") or None
    store = boto3.client("s3", endpoint_url=endpoint, config=bounds)
    content = os.urandom(64)
    store.put_object(Bucket=bucket, Key=key, Body=content)
    answer = store.get_object(Bucket=bucket, Key=key)["Body"].read()
    store.delete_object(Bucket=bucket, Key=key)
    if answer != content:
        raise RuntimeError(f"s3://{bucket} gives back another object than was written")

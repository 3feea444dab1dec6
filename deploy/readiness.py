"""Readiness of a tracking server: a row is written to the database and read, and so is a small file."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

CONNECT_SECONDS, STATEMENT_SECONDS, WHOLE_SECONDS = 3, 3, 6
LONGEST_LINE = 300
PROBE = ".evenhand-ready"  # what backups leave out
TABLE = "evenhand_readiness"
# Run once before the server starts.
CREATE = f"CREATE TABLE IF NOT EXISTS {TABLE} (id INTEGER PRIMARY KEY, written_ns BIGINT NOT NULL)"

_hanging: dict[str, threading.Thread] = {}


def operator_key(session_key: str) -> str:
    """Return what a request to /ready shows to be told why the server is not ready."""
    return hmac.new(session_key.encode(), b"/ready", hashlib.sha256).hexdigest()


def problem(backend_uri: str, artifacts: str) -> str:
    """Return which of the two fails and why, in one line; empty if both can be written and read.

    It takes a few seconds at most. The line holds no password and no control character.

    Args:
        backend_uri: SQLAlchemy's address of the database, which has the table of `CREATE`.
        artifacts: A folder, file:// or s3://bucket/path; other stores are not checked.
    """
    checks = {
        "the database": partial(_database, backend_uri),
        "the artifacts": partial(_artifacts, artifacts),
    }
    for name, check in checks.items():
        if reason := _bounded(f"{name} of {backend_uri} {artifacts}", check):
            return _clean(
                f"{name} cannot be written and read: {reason}",
                unquote(urlsplit(backend_uri).password or ""),
            )
    return ""


def _bounded(name: str, check: Callable[[], None]) -> str:
    """A disk or a server that hangs holds one thread, however often it is asked for."""
    late = f"no answer within {WHOLE_SECONDS} s"
    if name in _hanging and _hanging[name].is_alive():
        return late
    reasons: list[str] = []
    thread = threading.Thread(target=_ask, args=(check, reasons), daemon=True)
    _hanging[name] = thread
    thread.start()
    thread.join(WHOLE_SECONDS)
    return late if thread.is_alive() else reasons[0]


def _ask(check: Callable[[], None], reasons: list[str]) -> None:
    try:
        check()
        reasons.append("")
    except Exception as error:  # whatever a driver raises: it is the answer
        reasons.append(str(getattr(error, "orig", None) or error) or type(error).__name__)


def _database(uri: str) -> None:
    """Write and read a row. A temporary table could be written in a read-only database too."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    connect: dict[str, object] = {"timeout": CONNECT_SECONDS}
    if uri.startswith("postgresql"):
        bounds = f"-c statement_timeout={STATEMENT_SECONDS}s -c lock_timeout={STATEMENT_SECONDS}s"
        connect = {
            "connect_timeout": CONNECT_SECONDS,
            "options": bounds,
            "tcp_user_timeout": STATEMENT_SECONDS * 1_000,
        }
    engine = create_engine(uri, poolclass=NullPool, connect_args=connect)
    written = {"at_ns": time.time_ns()}
    with engine.begin() as connection:
        upsert = f"INSERT INTO {TABLE} VALUES (1, :at_ns) ON CONFLICT (id) DO UPDATE SET written_ns = :at_ns"
        connection.execute(text(upsert), written)
    with engine.connect() as connection:
        if (
            connection.execute(text(f"SELECT written_ns FROM {TABLE} WHERE id = 1")).scalar()
            is None
        ):
            raise RuntimeError("a row that was written is gone")


def _artifacts(place: str) -> None:
    parts = urlsplit(place)
    name = f"{PROBE}-{socket.gethostname()}-{os.getpid()}"
    if parts.scheme == "s3":
        _bucket(parts.netloc, f"{parts.path.strip('/')}/{name}".lstrip("/"))
    elif parts.scheme in ("", "file"):
        _folder(Path(url2pathname(parts.path) if parts.scheme else place), name)


def _folder(folder: Path, name: str) -> None:
    path, content = folder / name, os.urandom(64)
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.read_bytes() != content:
            raise RuntimeError(f"{folder} gives back another file than was written")
    except OSError as error:
        raise RuntimeError(f"{folder}: {error.strerror}") from None
    finally:
        path.unlink(missing_ok=True)


def _bucket(bucket: str, key: str) -> None:
    import boto3
    from botocore.config import Config

    bounds = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=STATEMENT_SECONDS,
        retries={"total_max_attempts": 1},
    )
    store = boto3.client(
        "s3", endpoint_url=os.environ.get("MLFLOW_S3_ENDPOINT_URL") or None, config=bounds
    )
    content = os.urandom(64)
    store.put_object(Bucket=bucket, Key=key, Body=content)
    read = store.get_object(Bucket=bucket, Key=key)["Body"].read()
    store.delete_object(Bucket=bucket, Key=key)
    if read != content:
        raise RuntimeError(f"s3://{bucket} gives back another object than was written")


def _clean(text: str, password: str) -> str:
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return (line.replace(password, "…") if password else line)[:LONGEST_LINE]

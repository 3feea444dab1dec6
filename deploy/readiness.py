"""Whether a tracking server can do its work: a row goes into the database and comes back, and so does a small file."""

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
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

if TYPE_CHECKING:
    from sqlalchemy import Engine

CONNECT_SECONDS, STATEMENT_SECONDS, WHOLE_SECONDS = 3, 3, 6
LONGEST_LINE = 300
PROBE = ".evenhand-ready"  # what backups leave out
TABLE = "evenhand_readiness"

_hanging: dict[str, threading.Thread] = {}


def operator_key(session_key: str) -> str:
    """Return what a request to /ready shows to be told why the server is not ready."""
    return hmac.new(session_key.encode(), b"/ready", hashlib.sha256).hexdigest()


def problem(backend_uri: str, artifacts: str) -> str:
    """One line that says which of the two fails and why; empty where both write and read. Takes a few seconds at most.

    backend_uri: SQLAlchemy's address of the database. artifacts: a folder, file:// or s3://bucket/path; other stores are not
    looked at. The line holds no password and no control character.
    """
    checks = {"the database": partial(_database, backend_uri), "the artifacts": partial(_artifacts, artifacts)}
    for name, check in checks.items():
        if reason := _bounded(f"{name} of {backend_uri} {artifacts}", check):
            return _clean(f"{name} cannot be written and read: {reason}", unquote(urlsplit(backend_uri).password or ""))
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
    """A row of a table of its own: a temporary one would be written where the database is read-only too."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    connect: dict[str, object] = {"timeout": CONNECT_SECONDS}
    if uri.startswith("postgresql"):
        bounds = f"-c statement_timeout={STATEMENT_SECONDS}s -c lock_timeout={STATEMENT_SECONDS}s"
        connect = {"connect_timeout": CONNECT_SECONDS, "options": bounds, "tcp_user_timeout": STATEMENT_SECONDS * 1_000}
    engine = create_engine(uri, poolclass=NullPool, connect_args=connect)
    _make_table(engine)
    written = {"at_ns": time.time_ns()}
    with engine.begin() as one:
        upsert = f"INSERT INTO {TABLE} VALUES (1, :at_ns) ON CONFLICT (id) DO UPDATE SET written_ns = :at_ns"
        one.execute(text(upsert), written)
    with engine.connect() as another:
        if another.execute(text(f"SELECT written_ns FROM {TABLE} WHERE id = 1")).scalar() is None:
            raise RuntimeError("a row that was written is gone")


def _make_table(engine: Engine) -> None:
    from sqlalchemy import inspect, text
    from sqlalchemy.exc import IntegrityError, ProgrammingError

    if inspect(engine).has_table(TABLE):
        return
    try:
        with engine.begin() as one:
            one.execute(text(f"CREATE TABLE IF NOT EXISTS {TABLE} (id INTEGER PRIMARY KEY, written_ns BIGINT NOT NULL)"))
    except (IntegrityError, ProgrammingError):  # another of the server's workers makes it at this moment
        time.sleep(0.1)
        if not inspect(engine).has_table(TABLE):
            raise


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

    bounds = Config(connect_timeout=CONNECT_SECONDS, read_timeout=STATEMENT_SECONDS, retries={"total_max_attempts": 1})
    store = boto3.client("s3", endpoint_url=os.environ.get("MLFLOW_S3_ENDPOINT_URL") or None, config=bounds)
    content = os.urandom(64)
    store.put_object(Bucket=bucket, Key=key, Body=content)
    read = store.get_object(Bucket=bucket, Key=key)["Body"].read()
    store.delete_object(Bucket=bucket, Key=key)
    if read != content:
        raise RuntimeError(f"s3://{bucket} gives back another object than was written")


def _clean(text: str, password: str) -> str:
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return (line.replace(password, "…") if password else line)[:LONGEST_LINE]

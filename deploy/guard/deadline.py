"""Limits of time for what a search asks of the database, on every engine that MLflow makes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE, TEMPORARILY_UNAVAILABLE
from sqlalchemy import Engine, event
from sqlalchemy.engine import Connection, ExceptionContext
from sqlalchemy.exc import OperationalError

# Of one statement, and of all statements of a search: its results come in further ones.
STATEMENT_SECONDS, SEARCH_SECONDS = 5.0, 20.0
# PostgreSQL tries every order of so many joins: of 30 it plans 2.8 s with 8, 0.14 s with 4.
JOINS_TO_REORDER = 4
SQLITE_STEPS = 10_000
POSTGRES_CANCELLED, SQLITE_CANCELLED = "57014", "interrupted"


@dataclass
class Search:
    """Time of a search in the database. failure: why it has no result, in one line."""

    spent_seconds: float = 0.0
    statement_began: float = 0.0
    is_overdue: bool = False
    failure: str = ""

    @property
    def left_seconds(self) -> float:
        """Seconds that the next statement may take."""
        return min(STATEMENT_SECONDS, SEARCH_SECONDS - self.spent_seconds)

    def overdue(self) -> MlflowException:
        """Note that the time is over, and return what MLflow is to answer."""
        self.is_overdue = True
        limits = f"{STATEMENT_SECONDS:.0f} s in a statement or {SEARCH_SECONDS:.0f} s in all"
        self.failure = f"over {limits}"
        return MlflowException(self.failure, INVALID_PARAMETER_VALUE)


_search: ContextVar[Search | None] = ContextVar("search", default=None)


@contextmanager
def limited() -> Iterator[Search]:
    """Limit the statements of a request, in whichever thread it is answered."""
    search = Search()
    token = _search.set(search)
    try:
        yield search
    finally:
        _search.reset(token)


def install() -> None:
    """Listen to every engine of this process, made before or after."""
    event.listen(Engine, "connect", _interrupt_sqlite)
    event.listen(Engine, "before_cursor_execute", _begin)
    event.listen(Engine, "after_cursor_execute", _end)
    event.listen(Engine, "handle_error", _replace)


def _interrupt_sqlite(connection: Any, _: object) -> None:
    if hasattr(connection, "set_progress_handler"):
        connection.set_progress_handler(_is_late, SQLITE_STEPS)


def _is_late() -> bool:
    search = _search.get()
    return bool(search and time.monotonic() - search.statement_began > search.left_seconds)


def _begin(connection: Connection, *_: object) -> None:
    search = _search.get()
    if search is None:
        return
    left = search.left_seconds
    if left <= 0:
        raise search.overdue()
    if connection.dialect.name == "postgresql":
        limits = {
            "statement_timeout": math.ceil(left * 1_000),
            "join_collapse_limit": JOINS_TO_REORDER,
            "from_collapse_limit": JOINS_TO_REORDER,
        }
        with closing(connection.connection.cursor()) as cursor:
            settings = [f"SET LOCAL {name} = {limit}" for name, limit in limits.items()]
            cursor.execute("; ".join(settings))
    search.statement_began = time.monotonic()


def _end(*_: object) -> None:
    if search := _search.get():
        search.spent_seconds += time.monotonic() - search.statement_began


def _replace(context: ExceptionContext) -> MlflowException | None:
    """Return an error without SQL: MLflow would write statement and traceback into the log."""
    search = _search.get()
    if search is None or context.is_pre_ping or context.connection is None:
        return None
    error = context.original_exception
    cancelled = getattr(error, "pgcode", "") == POSTGRES_CANCELLED or str(error) == SQLITE_CANCELLED
    if cancelled:
        return search.overdue()
    search.failure = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    if context.is_disconnect or isinstance(context.sqlalchemy_exception, OperationalError):
        return MlflowException("the database did not answer", TEMPORARILY_UNAVAILABLE)
    return MlflowException(search.failure, INVALID_PARAMETER_VALUE)

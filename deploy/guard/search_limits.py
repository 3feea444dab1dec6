"""Limits of running searches: time in the database, and number at once for each account."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import anyio
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE, TEMPORARILY_UNAVAILABLE
from sqlalchemy import Engine, event
from sqlalchemy.engine import Connection, ExceptionContext
from sqlalchemy.exc import OperationalError

from deploy.guard.refusal import Refusal

# Searches of one account in one worker.
MAX_RUNNING, MAX_WAITING = 1, 32
WAIT_SECONDS, RETRY_SECONDS = 30.0, 5.0
# Of one statement, and of all statements of a search: its results come in further ones.
STATEMENT_SECONDS, SEARCH_SECONDS = 5.0, 20.0
# PostgreSQL tries every order of so many joins: of 30 it plans 2.8 s with 8, 0.14 s with 4.
JOINS_TO_REORDER = 4
POSTGRES_CANCELLED = "57014"


class Turns:
    """Turns of the accounts to search in one worker."""

    def __init__(self) -> None:
        self._semaphores: dict[int, anyio.Semaphore] = {}

    @asynccontextmanager
    async def turn(self, account: int) -> AsyncIterator[None]:
        """Wait for a turn of an account, and give it back after the block.

        Raises:
            Refusal: 429 if too many wait, or none becomes free in time.
        """
        semaphore = self._semaphores.setdefault(account, anyio.Semaphore(MAX_RUNNING))
        refusal = Refusal(429, "other searches of the account wait; try again", RETRY_SECONDS)
        if semaphore.statistics().tasks_waiting >= MAX_WAITING:
            raise refusal
        try:
            with anyio.fail_after(WAIT_SECONDS):
                await semaphore.acquire()
        except TimeoutError:
            raise refusal from None
        try:
            yield
        finally:
            semaphore.release()


@dataclass
class SearchTime:
    """Time of a search in the database; `failure` is the reason for a missing result."""

    spent_seconds: float = 0.0
    statement_began: float = 0.0
    is_overdue: bool = False
    failure: str = ""

    def overdue(self) -> MlflowException:
        """Note that the time is over, and return the error that MLflow answers."""
        self.is_overdue = True
        limits = f"{STATEMENT_SECONDS:.0f} s in a statement or {SEARCH_SECONDS:.0f} s in all"
        self.failure = f"over {limits}"
        return MlflowException(self.failure, INVALID_PARAMETER_VALUE)


_search_time: ContextVar[SearchTime | None] = ContextVar("search_time", default=None)


@contextmanager
def limit_time() -> Iterator[SearchTime]:
    """Limit the statements of a request, in any thread that answers it."""
    search = SearchTime()
    token = _search_time.set(search)
    try:
        yield search
    finally:
        _search_time.reset(token)


def install() -> None:
    """Listen to every engine of this process, made before or after."""
    event.listen(Engine, "before_cursor_execute", _begin)
    event.listen(Engine, "after_cursor_execute", _end)
    event.listen(Engine, "handle_error", _replace)


def _begin(connection: Connection, *_: object) -> None:
    search = _search_time.get()
    if search is None:
        return
    left_seconds = min(STATEMENT_SECONDS, SEARCH_SECONDS - search.spent_seconds)
    if left_seconds <= 0:
        raise search.overdue()
    if connection.dialect.name == "postgresql":
        limits = {
            "statement_timeout": math.ceil(left_seconds * 1_000),
            "join_collapse_limit": JOINS_TO_REORDER,
            "from_collapse_limit": JOINS_TO_REORDER,
        }
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute("; ".join(f"SET LOCAL {name} = {n}" for name, n in limits.items()))
    search.statement_began = time.monotonic()


def _end(*_: object) -> None:
    if search := _search_time.get():
        search.spent_seconds += time.monotonic() - search.statement_began


def _replace(context: ExceptionContext) -> MlflowException | None:
    """Return an error without SQL: MLflow would write statement and traceback into the log."""
    search = _search_time.get()
    if search is None or context.is_pre_ping or context.connection is None:
        return None
    error = context.original_exception
    if getattr(error, "pgcode", "") == POSTGRES_CANCELLED:
        return search.overdue()
    search.failure = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    if context.is_disconnect or isinstance(context.sqlalchemy_exception, OperationalError):
        return MlflowException("the database did not answer", TEMPORARILY_UNAVAILABLE)
    return MlflowException(search.failure, INVALID_PARAMETER_VALUE)

"""Limits of searches: MLflow joins a table for each of their conditions and orders.

A search is bounded in what it asks for, in its time in the database, and in the number that an
account has running at once.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import anyio
from graphql import GraphQLError, parse
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE, TEMPORARILY_UNAVAILABLE
from sqlalchemy import Engine, event
from sqlalchemy.engine import Connection, ExceptionContext
from sqlalchemy.exc import OperationalError
from sqlparse import lexer, tokens

from deploy.guard.refusal import Reason, Refusal
from deploy.guard.routes import Route

GRAPHQL = "/graphql"
LONGEST_FILTER, LONGEST_ORDER = 4_096, 1_000
MAX_CONDITIONS, MAX_ORDERS = 30, 10
# The largest query of MLflow's pages has 120 tokens. Its validator needs 4 s for 1,600.
MAX_TOKENS, MAX_SEARCHES = 500, 1
ID = re.compile(r"[A-Za-z0-9_-]+")
# Comparisons that the lexer calls keywords.
COMPARING = {"IN", "IS"}
# Searches of one account in one worker.
MAX_RUNNING, MAX_WAITING = 1, 32
WAIT_SECONDS, RETRY_SECONDS = 30.0, 5.0
# Of one statement, and of all statements of a search: its results come in further ones.
STATEMENT_SECONDS, SEARCH_SECONDS = 5.0, 20.0
# PostgreSQL tries every order of so many joins: of 30 it plans 2.8 s with 8, 0.14 s with 4.
JOINS_TO_REORDER = 4
POSTGRES_CANCELLED = "57014"


def check(route: Route, message: Mapping[str, Any]) -> None:
    """Raise Refusal for a search that would keep the database or the server busy for long.

    Args:
        route: Route of the request.
        message: Fields of the body or the query, by their names in MLflow's message.
    """
    if route.rule == GRAPHQL:
        _check_graphql(message)
        return
    conditions = count_conditions(message.get("filter")) + len(message.get("datasets", ()))
    orders = message.get("order_by", ())
    _check_size(conditions, len(orders))
    if any(len(str(order)) > LONGEST_ORDER for order in orders):
        raise Refusal(
            Reason.TOO_MANY, f"an entry of order_by has more than {LONGEST_ORDER:,} characters"
        )


def count_conditions(text: object) -> int:
    """Return the largest number of conditions that a filter can have.

    Raises:
        Refusal: The filter is too long.
    """
    if not isinstance(text, str):
        return 0
    if len(text) > LONGEST_FILTER:
        raise Refusal(Reason.TOO_MANY, f"a filter has at most {LONGEST_FILTER:,} characters")
    comparisons = conjunctions = 0
    for kind, word in lexer.tokenize(text):  # type: ignore[no-untyped-call]
        comparisons += kind in tokens.Operator.Comparison or word.upper() in COMPARING
        conjunctions += word.upper() == "AND"
    return max(comparisons, conjunctions + bool(conjunctions))


def _check_size(condition_count: int, order_count: int) -> None:
    if condition_count > MAX_CONDITIONS:
        raise Refusal(
            Reason.TOO_MANY, f"a search has at most {MAX_CONDITIONS} conditions and data sets"
        )
    if order_count > MAX_ORDERS:
        raise Refusal(Reason.TOO_MANY, f"order_by names at most {MAX_ORDERS} columns")


def _check_graphql(message: Mapping[str, Any]) -> None:
    """Bound the text of a query and its variables: any of their strings may become a filter.

    MLflow itself bounds aliases and depth.
    """
    query = message.get("query")
    try:
        document = parse(query if isinstance(query, str) else "", max_tokens=MAX_TOKENS).to_dict()
    except (GraphQLError, RecursionError):
        raise Refusal(
            Reason.INVALID, f"query is no GraphQL, or has more than {MAX_TOKENS} tokens"
        ) from None
    nodes = [node for node in _values(document) if isinstance(node, dict)]
    names = [node["name"]["value"] for node in nodes if node["kind"] == "field"]
    if sum(name.startswith("mlflowSearch") for name in names) > MAX_SEARCHES:
        raise Refusal(Reason.TOO_MANY, f"a query holds at most {MAX_SEARCHES} search")
    lists = [
        [value.get("value") for value in node["values"]]
        for node in nodes
        if node["kind"] == "list_value"
    ]
    values = list(_values(message.get("variables")))
    lists += [value for value in values if isinstance(value, list)]
    values += [node["value"] for node in nodes if node["kind"] == "string_value"]
    # The members of a list may be columns to order by, unless they are ids.
    texts = [["" if value is None else str(value) for value in members] for members in lists]
    orders = [sum(not ID.fullmatch(text) for text in members) for members in texts]
    _check_size(sum(map(count_conditions, values)), max(orders, default=0))


def _values(value: object) -> Iterator[Any]:
    """Yield a value of JSON and those in it, at any depth, which is bounded."""
    yield value
    inner = list(value.values()) if isinstance(value, dict) else value
    for each in inner if isinstance(inner, list) else []:
        yield from _values(each)


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
        refusal = Refusal(
            Reason.WAIT, "other searches of the account wait; try again", RETRY_SECONDS
        )
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


# Of the search that this task, or a thread of it, answers.
_search_time: ContextVar[SearchTime | None] = ContextVar("search_time", default=None)


def limit_time() -> SearchTime:
    """Limit the statements of this task's request, in any thread that answers it."""
    search = SearchTime()
    _search_time.set(search)
    return search


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

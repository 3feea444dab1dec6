"""Bounds of a search: MLflow joins a table for each of its conditions and orders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from graphql import GraphQLError, parse
from graphql.language import (
    DocumentNode,
    FieldNode,
    ListValueNode,
    Node,
    ObjectValueNode,
    SelectionSetNode,
    StringValueNode,
)
from sqlparse import lexer, tokens

from deploy.guard.refusal import Refusal
from deploy.guard.routes import Route

GRAPHQL = "/graphql"
LONGEST_FILTER, LONGEST_ORDER = 4_096, 1_000
MAX_CONDITIONS, MAX_ORDERS = 30, 10
# The largest query of MLflow's pages has 120 tokens. Its validator needs 4 s for 1,600.
MAX_TOKENS, DEEPEST, MAX_ALIASES, MAX_SEARCHES = 500, 10, 10, 1
ID = re.compile(r"[A-Za-z0-9_-]+")
# Comparisons that the lexer calls keywords.
COMPARING = {"IN", "IS"}


def check(route: Route, message: Mapping[str, Any]) -> None:
    """Raise Refusal for a search that would keep the database or the server busy for long.

    Args:
        route: Route of the request.
        message: Fields of the body, or of the query with a list of values each. MLflow knows a
            field as order_by and as orderBy.
    """
    if route.rule == GRAPHQL:
        _check_graphql(message)
        return
    fields: dict[str, list[Any]] = {}
    for name, value in message.items():
        values = value if isinstance(value, list) else [value]
        fields.setdefault(re.sub("[^a-z]", "", name.lower()), []).extend(values)
    filters = [*fields.get("filter", []), *fields.get("filterstring", [])]
    orders = fields.get("orderby", [])
    data_sets = fields.get("datasets", [])
    _check_size(sum(map(count_conditions, filters)) + len(data_sets), len(orders))
    if any(len(str(order)) > LONGEST_ORDER for order in orders):
        raise Refusal(400, f"an entry of order_by has more than {LONGEST_ORDER:,} characters")


def count_conditions(text: object) -> int:
    """Return the largest number of conditions that a filter can have.

    Raises:
        Refusal: The filter is too long.
    """
    if not isinstance(text, str):
        return 0
    if len(text) > LONGEST_FILTER:
        raise Refusal(400, f"a filter has at most {LONGEST_FILTER:,} characters")
    comparisons = conjunctions = 0
    for kind, word in lexer.tokenize(text):  # type: ignore[no-untyped-call]
        comparisons += kind in tokens.Operator.Comparison or word.upper() in COMPARING
        conjunctions += word.upper() == "AND"
    return max(comparisons, conjunctions + bool(conjunctions))


def _check_size(condition_count: int, order_count: int) -> None:
    if condition_count > MAX_CONDITIONS:
        raise Refusal(400, f"a search has at most {MAX_CONDITIONS} conditions and data sets")
    if order_count > MAX_ORDERS:
        raise Refusal(400, f"order_by names at most {MAX_ORDERS} columns")


def _check_graphql(message: Mapping[str, Any]) -> None:
    """Bound the text of a query and its variables: any of their strings may become a filter."""
    query = message.get("query")
    try:
        document = parse(query if isinstance(query, str) else "", max_tokens=MAX_TOKENS)
    except (GraphQLError, RecursionError):
        reason = f"query is no GraphQL, or has more than {MAX_TOKENS} tokens"
        raise Refusal(400, reason) from None
    nodes = list(_nodes(document))
    fields = [node for node in nodes if isinstance(node, FieldNode)]
    if sum(field.name.value.startswith("mlflowSearch") for field in fields) > MAX_SEARCHES:
        raise Refusal(400, f"a query holds at most {MAX_SEARCHES} search")
    if sum(field.alias is not None for field in fields) > MAX_ALIASES:
        raise Refusal(400, f"a query has at most {MAX_ALIASES} aliases")
    lists = [
        [getattr(value, "value", None) for value in node.values]
        for node in nodes
        if isinstance(node, ListValueNode)
    ]
    values = list(_values(message.get("variables")))
    lists += [value for value in values if isinstance(value, list)]
    values += [node.value for node in nodes if isinstance(node, StringValueNode)]
    # The members of a list may be columns to order by, unless they are ids.
    orders = [sum(not _is_id(value) for value in members) for members in lists]
    _check_size(sum(map(count_conditions, values)), max(orders, default=0))


def _nodes(document: DocumentNode) -> Iterator[Node]:
    """Yield the nodes of a query. Raises Refusal for a deep one."""
    waiting: list[tuple[Node, int]] = [(document, 0)]
    while waiting:
        node, depth = waiting.pop()
        yield node
        depth += isinstance(node, SelectionSetNode | ListValueNode | ObjectValueNode)
        if depth > DEEPEST:
            raise Refusal(400, f"a query is nested deeper than {DEEPEST}")
        for key in node.keys:
            inner = getattr(node, key, None)
            children = inner if isinstance(inner, list | tuple) else [inner]
            waiting += [(child, depth) for child in children if isinstance(child, Node)]


def _values(variables: object) -> Iterator[Any]:
    """Yield the values of the variables at any depth, which is bounded."""
    yield variables
    inner = list(variables.values()) if isinstance(variables, dict) else variables
    for value in inner if isinstance(inner, list) else []:
        yield from _values(value)


def _is_id(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and bool(ID.fullmatch(value)))

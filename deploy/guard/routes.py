"""Routes of MLflow that are offered, by `routes.toml`, matched as MLflow itself matches."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from werkzeug.exceptions import HTTPException
from werkzeug.routing import Map, RequestRedirect, Rule

CLASSIFIED = Path(__file__).with_name("routes.toml")
API, PREFIXES = "{api}", ("/api", "/ajax-api")
OPEN, READ, SEARCH, WRITE, UPLOAD = "open", "read", "search", "write", "upload"
ACCOUNT, ADMINISTER, REFUSED = "account", "administer", "refused"
FIELDS = "fields"
READY = "/ready"
ARTIFACTS = "{api}/2.0/mlflow-artifacts/artifacts"
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Route:
    """Route of a request.

    Attributes:
        kind: Class in `routes.toml`.
        rule: Rule in `routes.toml`.
        named: Values of the variables in the path.
        method: HTTP method in `routes.toml`.
    """

    kind: str
    rule: str
    named: Mapping[str, str]
    method: str = "GET"


class Routes:
    """Classified routes; `match` knows no other."""

    def __init__(self, classes: Mapping[str, Iterable[str]]) -> None:
        rules = []
        for kind, lines in classes.items():
            for method, rule in (line.split(" ", 1) for line in lines):
                for prefix in PREFIXES if rule.startswith(API) else ("",):
                    path = rule.replace(API, prefix)
                    rules.append(Rule(path, methods=[method], endpoint=(kind, rule, method)))
        self._map = Map(rules, merge_slashes=False, redirect_defaults=False).bind("")

    def match(self, method: str, path: str) -> Route | None:
        """Return the route of a request, None if there is none of this method and path."""
        # The map and MLflow might read these in two ways.
        if path.startswith("//") or CONTROL.search(path):
            return None
        try:
            (kind, rule, listed_method), named = self._map.match(path, method)
        except (RequestRedirect, HTTPException):
            return None
        return Route(kind, rule, {name: str(text) for name, text in named.items()}, listed_method)


@lru_cache(1)
def classes() -> dict[str, list[str]]:
    """Return the lines `METHOD rule` of each kind; the refused ones, for any reason, are one."""
    table: dict[str, Any] = tomllib.loads(CLASSIFIED.read_text())
    refused = [line for lines in table.pop(REFUSED).values() for line in lines]
    del table[FIELDS]
    return {**table, REFUSED: refused}


@lru_cache(1)
def listed_fields() -> dict[str, frozenset[str]]:
    """Return the fields of each message that an offered route accepts, by its full name."""
    table = tomllib.loads(CLASSIFIED.read_text())[FIELDS]
    return {message: frozenset(fields) for message, fields in table.items()}


def line(method: str, rule: str) -> str:
    """Return a route of MLflow as `routes.toml` writes it."""
    for prefix in PREFIXES:
        if rule.startswith(f"{prefix}/"):
            return f"{method} {API}{rule.removeprefix(prefix)}"
    return f"{method} {rule}"

"""Which routes of MLflow are offered, and to whom: `routes.toml`, matched as MLflow itself matches."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from werkzeug.exceptions import HTTPException
from werkzeug.routing import Map, RequestRedirect, Rule

CLASSIFIED = Path(__file__).with_name("routes.toml")
API, PREFIXES = "{api}", ("/api", "/ajax-api")
OPEN, READ, SEARCH, WRITE, UPLOAD = "open", "read", "search", "write", "upload"
ACCOUNT, ADMINISTER, REFUSED = "account", "administer", "refused"
READY = "/ready"
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Route:
    """What a request asks for. method and rule: as `routes.toml` has them; named: what stands in its path."""

    kind: str
    rule: str
    named: Mapping[str, str]
    method: str = "GET"


class Routes:
    """The classified routes. `match` knows no other."""

    def __init__(self, classes: Mapping[str, Iterable[str]]) -> None:
        rules = [
            rule for kind, lines in classes.items() for line in lines for rule in _rules(kind, line)
        ]
        self._map = Map(rules, merge_slashes=False, redirect_defaults=False).bind("")

    def match(self, method: str, path: str) -> Route | None:
        """The route of a request, None where there is none of this method and path."""
        if path.startswith("//") or CONTROL.search(
            path
        ):  # what the map and MLflow might read in two ways
            return None
        try:
            (kind, text), named = self._map.match(path, method)
        except (RequestRedirect, HTTPException):
            return None
        listed, rule = text.split(" ", 1)
        return Route(kind, rule, {name: str(part) for name, part in named.items()}, listed)


def classes(path: Path = CLASSIFIED) -> dict[str, list[str]]:
    """Kind → lines `METHOD rule`; what is refused, for whatever reason, is one kind."""
    read: dict[str, Any] = tomllib.loads(path.read_text())
    refused = [line for lines in read.pop(REFUSED).values() for line in lines]
    return {**read, REFUSED: refused}


def line(method: str, rule: str) -> str:
    """A route of MLflow as `routes.toml` writes it."""
    for prefix in PREFIXES:
        if rule.startswith(f"{prefix}/"):
            return f"{method} {API}{rule.removeprefix(prefix)}"
    return f"{method} {rule}"


def _rules(kind: str, text: str) -> Iterator[Rule]:
    method, rule = text.split(" ", 1)
    for prefix in PREFIXES if rule.startswith(API) else ("",):
        yield Rule(rule.replace(API, prefix), methods=[method], endpoint=(kind, text))

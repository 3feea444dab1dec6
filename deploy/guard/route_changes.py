"""`python -m deploy.guard.route_changes`: what of the installed MLflow `routes.toml` does not know.

A newer MLflow has other routes and fields. The guard refuses those that are not in `routes.toml`.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy import authentication

SAME, FAILED, DIFFERENT = 0, 1, 3
REFUSED = "refused"  # as `routes` has it, which needs packages of MLflow
# Messages, and their fields.
Fields = Mapping[str, Collection[str]]


def main() -> int:
    """Print a line for each difference, and return the exit code."""
    warnings.simplefilter("ignore")
    logging.disable()
    try:
        from deploy.guard import routes

        version, existing = installed()
    except Exception as error:  # there is no MLflow with accounts, or a newer one lacks anything
        reason = f"{error or type(error).__name__}".splitlines()[0]
        print(f"{sys.executable} lists no routes: {reason}", file=sys.stderr)
        return FAILED
    differences = list(changes(routes.classes(), routes.listed_fields(), existing))
    print(*differences, sep="\n", end="\n" if differences else "")
    count = f"{len(differences)} differences" if differences else "no difference"
    print(f"MLflow {version}: {len(existing)} routes, {count} from routes.toml")
    return DIFFERENT if differences else SAME


def changes(
    classes: Mapping[str, Sequence[str]], listed: Fields, existing: Mapping[str, Fields]
) -> Iterator[str]:
    """Yield the differences of an MLflow from `routes.toml`, a line each.

    Args:
        classes: Routes of each kind in `routes.toml`.
        listed: Messages in `routes.toml`.
        existing: Routes of the MLflow, with the message that each one's handler reads, and those
            in it.
    """
    kinds = {route: kind for kind, lines in classes.items() for route in lines}
    for route in sorted(existing.keys() - kinds.keys()):
        yield f"added    {route}: refused, because it is not in routes.toml"
    for route in sorted(kinds.keys() - existing.keys()):
        yield f"removed  {route}: {kinds[route]} in routes.toml"
    messages: dict[str, Collection[str]] = {}
    for route, fields in existing.items():
        if kinds.get(route, REFUSED) != REFUSED:
            messages |= fields
    for message in sorted(listed.keys() | messages.keys()):
        before, after = set(listed.get(message, ())), set(messages.get(message, ()))
        if before != after:
            texts = [f"+{name}" for name in sorted(after - before)]
            texts += [f"-{name}" for name in sorted(before - after)]
            yield f"changed  {message}: refused with a new field; {' '.join(texts)}"


def installed() -> tuple[str, dict[str, Fields]]:
    """Return the version of this interpreter's MLflow, and its routes with their messages.

    It sets variables that MLflow reads when it is imported: call it once in a process.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings, store = Path(folder, "auth.ini"), f"sqlite:///{folder}/store.db"
        authentication.write_settings(settings, store)
        os.environ |= authentication.environment(settings, store, "only for this list", "a key")
        from fastapi.routing import iter_route_contexts
        from mlflow.server import app
        from mlflow.version import VERSION
        from starlette.routing import Mount

        from deploy.guard import backend, routes

        native = [route for route in backend.application().routes if not isinstance(route, Mount)]
    pairs = [(rule.rule, rule.methods) for rule in app.url_map.iter_rules()]
    for route in iter_route_contexts(native):
        path = re.sub(r"\{(\w+):path\}", r"<path:\1>", route.path or "")
        pairs.append((path.replace("{", "<").replace("}", ">"), route.methods))
    lines = {
        routes.line(method, path)
        for path, methods in pairs
        for method in methods or ()
        if method not in ("HEAD", "OPTIONS")
    }
    messages = backend.messages()
    return VERSION, {
        line: dict(_fields(messages[line].DESCRIPTOR)) if line in messages else {} for line in lines
    }


def _fields(message: Any, outer: tuple[Any, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield the names of a message and of those in it, each with its fields."""
    yield message.full_name, sorted(field.name for field in message.fields)
    for field in message.fields:
        if field.message_type not in (None, message, *outer):
            yield from _fields(field.message_type, (message, *outer))


if __name__ == "__main__":
    sys.exit(main())

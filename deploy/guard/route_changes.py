"""`python -m deploy.guard.route_changes`: what of an MLflow `routes.toml` does not know.

A newer MLflow has other routes and fields. The guard refuses those that are not in `routes.toml`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy import authentication
from deploy.guard import routes

ROOT = Path(__file__).resolve().parents[2]
SAME, FAILED, DIFFERENT = 0, 1, 3
LIST_SECONDS = 120
# Messages, and their fields.
Fields = Mapping[str, Collection[str]]


class ListingFailed(Exception):
    """An interpreter could not list its MLflow's routes."""


def main(arguments: Sequence[str]) -> int:
    """Print a line for each difference, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.guard.route_changes")
    text = "interpreter whose MLflow is compared, by default this one"
    parser.add_argument("--python", default=sys.executable, help=text)
    args = parser.parse_args(arguments)
    try:
        version, existing = installed(args.python)
    except ListingFailed as error:
        print(error, file=sys.stderr)
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
        if kinds.get(route, routes.REFUSED) != routes.REFUSED:
            messages |= fields
    for message in sorted(listed.keys() | messages.keys()):
        before, after = set(listed.get(message, ())), set(messages.get(message, ()))
        if before != after:
            texts = [f"+{name}" for name in sorted(after - before)]
            texts += [f"-{name}" for name in sorted(before - after)]
            yield f"changed  {message}: refused with a new field; {' '.join(texts)}"


def installed(python: str) -> tuple[str, dict[str, Fields]]:
    """Return the version of an interpreter's MLflow, and its routes with their messages.

    Raises:
        ListingFailed: It has no MLflow with accounts, or one that the guard does not understand.
    """
    code = "import sys; from deploy.guard import route_changes as c; c.print_installed(sys.argv[1])"
    variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ.get("PATH", "")}
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [python, "-W", "ignore", "-c", code, folder],
                env=variables,
                capture_output=True,
                text=True,
                timeout=LIST_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ListingFailed(f"{python} lists no routes: {error}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ListingFailed(f"{python} lists no routes: {lines[-1]}")
    listing = json.loads(done.stdout.splitlines()[-1])
    return listing["version"], listing["routes"]


def print_installed(folder: str) -> None:
    """Print version and routes of this interpreter's MLflow as JSON, with a database in a folder.

    It sets variables that MLflow reads when it is imported: call it once in a process.
    """
    settings, store = Path(folder, "auth.ini"), f"sqlite:///{folder}/store.db"
    authentication.write_settings(settings, store)
    os.environ |= authentication.environment(settings, store, "only for this list", "a key")
    from fastapi.routing import iter_route_contexts
    from mlflow.server import app
    from mlflow.version import VERSION
    from starlette.routing import Mount

    from deploy.guard import backend

    application = backend.application()
    pairs = [(rule.rule, rule.methods) for rule in app.url_map.iter_rules()]
    native = [route for route in application.routes if not isinstance(route, Mount)]
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
    fields = {
        line: dict(_fields(messages[line].DESCRIPTOR)) if line in messages else {} for line in lines
    }
    print(json.dumps({"version": VERSION, "routes": fields}))


def _fields(message: Any, outer: tuple[Any, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield the names of a message and of those in it, each with its fields."""
    yield message.full_name, sorted(field.name for field in message.fields)
    for field in message.fields:
        if field.message_type not in (None, message, *outer):
            yield from _fields(field.message_type, (message, *outer))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m deploy.guard.route_changes`: routes of an MLflow that `routes.toml` does not know.

A newer MLflow has other routes. The guard refuses those that are not in `routes.toml`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy import authentication
from deploy.guard import routes

ROOT = Path(__file__).resolve().parents[2]
SAME, FAILED, DIFFERENT = 0, 1, 3
LIST_SECONDS = 120
# Routes, and the fields of the message that each one's handler reads.
Fields = Mapping[str, Sequence[str]]


class ListingFailed(Exception):
    """An interpreter could not list its MLflow's routes."""


def main(arguments: Sequence[str]) -> int:
    """Print a line for each difference, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.guard.route_changes")
    text = "interpreter whose MLflow is compared, by default this one"
    parser.add_argument("--python", default=sys.executable, help=text)
    args = parser.parse_args(arguments)
    try:
        version, fields = installed(args.python)
        before = fields if args.python == sys.executable else installed(sys.executable)[1]
    except ListingFailed as error:
        print(error, file=sys.stderr)
        return FAILED
    differences = list(changes(routes.classes(), before, fields))
    print(*differences, sep="\n", end="\n" if differences else "")
    count = f"{len(differences)} differences" if differences else "no difference"
    print(f"MLflow {version}: {len(fields)} routes, {count} from routes.toml")
    return DIFFERENT if differences else SAME


def changes(classes: Mapping[str, Sequence[str]], before: Fields, after: Fields) -> Iterator[str]:
    """Yield the differences of an MLflow's routes, a line each.

    Args:
        classes: Routes of each kind in `routes.toml`.
        before: Routes of the MLflow that `routes.toml` was written for, with their fields.
        after: Routes of the MLflow that is compared.
    """
    kinds = {route: kind for kind, lines in classes.items() for route in lines}
    for route in sorted(after.keys() - kinds.keys()):
        yield f"added    {route}: refused, because it is not in routes.toml"
    for route in sorted(kinds.keys() - after.keys()):
        yield f"removed  {route}: {kinds[route]} in routes.toml"
    for route in sorted(before.keys() & after.keys() & kinds.keys()):
        new = sorted(set(after[route]) - set(before[route]))
        gone = sorted(set(before[route]) - set(after[route]))
        if kinds[route] != routes.REFUSED and (new or gone):
            texts = [f"+{name}" for name in new] + [f"-{name}" for name in gone]
            yield f"changed  {route}: {kinds[route]}, fields {' '.join(texts)}"


def installed(python: str) -> tuple[str, Fields]:
    """Return the version of an interpreter's MLflow, and its routes with their fields.

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
        line: sorted(_fields(messages[line].DESCRIPTOR)) if line in messages else []
        for line in lines
    }
    print(json.dumps({"version": VERSION, "routes": fields}))


def _fields(message: Any, outer: tuple[Any, ...] = ()) -> Iterator[str]:
    """Yield the names of a message's fields, those of messages in it after a dot."""
    for field in message.fields:
        yield field.name
        inner = field.message_type
        if inner is not None and inner not in (message, *outer):
            yield from (f"{field.name}.{name}" for name in _fields(inner, (message, *outer)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

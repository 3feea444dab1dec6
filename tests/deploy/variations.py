"""Variations of field names in requests, read by the guard and by MLflow's own functions.

`python -m tests.deploy.variations NUMBER` prints that for NUMBER of each class and offered route.
"""

from __future__ import annotations

import io
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any
from unittest import mock
from urllib.parse import quote, urlencode

from flask import Request
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from mlflow.server import app, handlers

from deploy.guard import backend, content, routes
from deploy.guard.refusal import Reason, Refusal
from deploy.guard.routes import WRITE, Route

MINE, HERS = "MINE", "HERS"
IDS = {"run_id", "run_uuid", "source_run_id", "model_id", "experiment_id"}
SPACES = (" ", "\t", "\n", "\r", "\x0b", "\xa0", "\u200b", "\u2028", "\ufeff", "\u3000")
# Letters, and others that look like them, or become them when a text is normalised or lowered.
LOOK_ALIKES = {
    "a": "аａɑ", "c": "сｃϲ", "d": "ԁｄ", "e": "еｅ", "i": "іｉı", "k": "\u212aｋ", "m": "ｍм",
    "n": "ｎո", "o": "оｏο", "p": "рｐρ", "r": "ｒг", "s": "ѕｓ\u017f", "t": "ｔт", "u": "ｕս",
    "x": "хｘ", "y": "уｙ", "_": "＿‿ˍ", "l": "ӏｌ1", "g": "ɡｇ", "v": "ｖѵ", "h": "һｈ",
}  # fmt: skip
Rename = Callable[[str, random.Random], str]


def _inserted(name: str, rng: random.Random, text: str) -> str:
    place = rng.randrange(len(name) + 1)
    return name[:place] + text + name[place:]


def _look_alike(name: str, rng: random.Random) -> str:
    letter = rng.choice(name)
    other = rng.choice(LOOK_ALIKES[letter]) if letter in LOOK_ALIKES else f"{letter}\u0301"
    return name.replace(letter, other, 1)


CLASSES: dict[str, Rename] = {
    "NUL": lambda name, rng: rng.choice(
        (f"{name}\0", f"{name}\0x", f"{name}\0_id", f"{name}\0\0", _inserted(name, rng, "\0"))
    ),
    "whitespace": lambda name, rng: _inserted(
        name, rng, rng.choice(SPACES) * rng.choice((1, 1, 2))
    ),
    "case": lambda name, rng: "".join(rng.choice((letter.upper(), letter)) for letter in name),
    "escapes": lambda name, _: name,  # written in another way
    "duplicates": lambda name, _: name,
    "look-alikes": _look_alike,
    "camelCase": lambda name, rng: re.sub(
        "_([a-z])", lambda match: match[rng.choice((0, 1, 1))].upper(), name
    ),
}


def _written(name: str, rng: random.Random, *, is_query: bool, is_escaped: bool) -> str:
    escapes = ("%{:02x}", "%{:02X}") if is_query else (r"\u{:04x}", r"\u{:04X}")
    if is_escaped:
        choices = ([letter, rng.choice(escapes).format(ord(letter))] for letter in name)
        name = "".join(map(rng.choice, choices))
        return name if is_query else f'"{name}"'
    return quote(name) if is_query else json.dumps(name, ensure_ascii=rng.random() < 0.5)


def slots(request: str, *, is_query: bool) -> list[tuple[str, str, str, str]]:
    """Return for each field of a request what stands before it, its name, value, and the rest."""
    results = []
    for match in re.finditer(r"(\w+)=" if is_query else r'"(\w+)": ', request):
        if is_query:
            end = (request + "&").index("&", match.end())
        else:
            _, end = json.JSONDecoder().raw_decode(request, match.end())
        value = request[match.end() : end]
        results.append((request[: match.start()], match[1], value, request[end:]))
    return results


@cache  # routes share requests
def variations(request: str, kind: str, number: int, *, is_query: bool) -> tuple[bytes, ...]:
    """Return a request with one field under a second name as well, or under another name."""
    rng, fields = random.Random(f"{kind} {request}"), slots(request, is_query=is_query)
    joint, sign = ("&", "=") if is_query else (", ", ": ")
    texts = []
    for _ in range(number):
        before, name, value, behind = rng.choice(fields)
        is_escaped, renamed = kind == "escapes", CLASSES[kind](name, rng)
        other = _written(renamed, rng, is_query=is_query, is_escaped=is_escaped) + sign
        other += value.replace(MINE, HERS) if rng.random() < 0.8 else value
        local = _written(name, rng, is_query=is_query, is_escaped=False) + sign + value
        pairs = rng.choice(([local, other], [other, local], [other], [local, other, other]))
        texts.append(f"{before}{joint.join(pairs)}{behind}".encode())
    return tuple(texts)


# Objects of routes whose handlers parse no message.
OBJECTS: dict[str, dict[str, Any]] = {
    "/graphql": {
        "operationName": "MlflowGetRunQuery",
        "query": "query q($d: MlflowGetRunInput!) { mlflowGetRun(input: $d) { run { tag } } }",
        "variables": {"d": {"runId": MINE, "inner": [{"name": MINE}]}},
    },
    "": {
        "username": MINE, "password": MINE, "current_password": MINE, "is_admin": True,
        "name": MINE, "role_id": 1, "description": MINE, "resource_type": MINE,
        "resource_pattern": MINE, "resource_id": MINE, "permission": MINE, "workspace": MINE,
        "id": 1,
    },
}  # fmt: skip
QUERIES = ("run_id", "run_uuid", "path", "username", "allow_deleted")


def _example(descriptor: Any) -> dict[str, Any]:
    """Return an object with every field of a message."""
    results = dict[str, Any]()
    for field in descriptor.fields:
        if field.message_type:
            value: Any = _example(field.message_type)
        elif field.enum_type:
            value = field.enum_type.values[0].name
        elif field.type == field.TYPE_BOOL:
            value = True
        else:
            value = f"{MINE}_{field.name}" if field.type == field.TYPE_STRING else 7
        results[field.name] = [value] if field.is_repeated else value
    for item in descriptor.oneofs:
        for field in item.fields[1:]:
            del results[field.name]
    return results


def offered() -> Iterator[tuple[Route, type[Message] | None, str]]:
    """Yield every offered route with its message, and a valid request of it."""
    for kind in (routes.READ, routes.SEARCH, routes.WRITE, routes.ACCOUNT, routes.ADMINISTER):
        for line in routes.classes()[kind]:
            method, rule = line.split(" ", 1)
            message = backend.messages().get(line)
            example = _example(message.DESCRIPTOR) if message else {}
            if method == "GET":
                example = example or dict.fromkeys(QUERIES, MINE)
                request = urlencode({key: _first(value) for key, value in example.items()})
            else:
                request = json.dumps(example or OBJECTS.get(rule, OBJECTS[""]))
            yield Route(kind, rule, {}, method), message, request


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def authorised(route: Route, request: bytes) -> tuple[dict[str, Any], bytes]:
    """Return what the guard reads from a request, and what it sends on."""
    if route.method == "GET":
        return content.read_query(route, request, is_allowed=True)
    return content.read_body(route, request)


def handed_over(method: str, sent: bytes, message: Any) -> Any:
    """Return what a handler of MLflow gets from a query or a body, by its own functions."""
    is_query = method == "GET"
    environ = {"REQUEST_METHOD": method, "QUERY_STRING": sent.decode() if is_query else ""}
    if not is_query:
        environ |= {"CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(sent))}
    request = Request({**environ, "wsgi.input": io.BytesIO(b"" if is_query else sent)})
    if message is None:
        return request.args.to_dict(flat=False) if is_query else request.get_json(force=True)
    parsed = handlers._get_request_message(message(), request)
    return MessageToDict(parsed, preserving_proto_field_name=True, unquote_int64_if_possible=True)


def ids(read: Any) -> set[str]:
    """Return the ids that a handler would write to, wherever they stand in what it reads."""
    if isinstance(read, list):
        return {item for inner in read for item in ids(inner)}
    if not isinstance(read, dict):
        return set()
    local = {str(read[name]) for name in IDS & read.keys()}
    return local | {item for inner in read.values() for item in ids(inner)}


def check(number: int) -> dict[str, Any]:
    """Return how many variations were refused, and of how many was read what was authorised."""
    counts, wrong = Counter[str](), list[str]()
    for route, message, request in offered():
        for kind in CLASSES:
            for text in variations(request, kind, number, is_query=route.method == "GET"):
                try:
                    fields, sent = authorised(route, text)
                except Refusal as refusal:
                    counts[f"{kind}: {refusal.status}"] += 1
                    continue
                read = handed_over(route.method, sent, message)
                is_equal = read == fields
                if is_equal and route.kind == WRITE and not route.rule.endswith("/log-inputs"):
                    is_equal = ids(read) <= {item for _, item in content.ids(route, fields)}
                counts[f"{kind}: {'equal' if is_equal else 'different'}"] += 1
                if not is_equal and len(wrong) < 20:
                    wrong.append(f"{route.rule} {text!r}: {fields} is not {read}")
    return {"counts": dict(sorted(counts.items())), "wrong": wrong}


def refused_messages() -> list[str]:
    """Return the messages of which requests are refused if their fields are not listed.

    Such fields are like those that a later MLflow adds.
    """
    results, listed = set[str](), routes.listed_fields()
    requests = [
        (route, re.sub(f"{MINE}_\\w+", MINE, request).encode())
        for route, message, request in offered()
        if message
    ]
    for name in listed:
        shorter = {**listed, name: frozenset[str]()}
        with mock.patch.object(backend, "listed_fields", lambda shorter=shorter: shorter):
            for route, request in requests:
                try:
                    authorised(route, request)
                except Refusal as refusal:
                    if refusal.reason == Reason.NOT_OFFERED:
                        results.add(name)
    return sorted(results)


class _Parsing(Exception):
    """Start of a handler's work, after which there is no need for the rest."""


def parsed_by_handlers() -> dict[str, str]:
    """Run the handlers of offered routes until they parse a message, and return its name."""

    def stop(message: Any = None, *_: object, **__: object) -> None:
        raise _Parsing(message.DESCRIPTOR.full_name if message else "")

    lines = {f"{route.method} {route.rule}" for route, *_ in offered() if "/mlflow/" in route.rule}
    names = dict[str, str]()
    for rule in app.url_map.iter_rules():
        for method in rule.methods - {"HEAD", "OPTIONS"}:
            with (
                app.test_request_context("/", method=method, json=None if method == "GET" else {}),
                mock.patch.object(handlers, "_get_request_message", stop),
                mock.patch.object(handlers, "_get_tracking_store", stop),
                suppress(Exception),
            ):
                if (line := routes.line(method, rule.rule)) in lines:
                    try:
                        app.view_functions[rule.endpoint](**dict.fromkeys(rule.arguments, "x"))
                    except _Parsing as parsing:
                        names[line] = str(parsing)
    return names


if __name__ == "__main__":
    listed = {line: message.DESCRIPTOR.full_name for line, message in backend.messages().items()}
    parsed = {"parsed": parsed_by_handlers(), "known": listed}
    print(json.dumps({**check(int(sys.argv[1])), **parsed, "refused": refused_messages()}))

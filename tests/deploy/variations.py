"""Variations of field names in requests, read by the guard and by MLflow's own functions.

`python -m tests.deploy.variations NUMBER` prints that for NUMBER of each class and offered route.
"""

from __future__ import annotations

import io
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock
from urllib.parse import quote, urlencode

from flask import Request
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from mlflow.protos.service_pb2 import SearchDatasets
from mlflow.server import app, handlers

from deploy.guard import backend, content, routes
from deploy.guard.refusal import Refusal
from deploy.guard.routes import WRITE, Route

MINE, HERS = "MINE", "HERS"
NEW = "other_run_id"
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


def _nul(name: str, rng: random.Random) -> str:
    rest = rng.choice(("", "x", "\0", "_id", "\0\0", "Id"))
    return f"{name}\0{rest}" if rng.random() < 0.7 else _inserted(name, rng, "\0")


def _look_alike(name: str, rng: random.Random) -> str:
    places = [place for place, letter in enumerate(name) if letter in LOOK_ALIKES]
    if not places or rng.random() < 0.1:
        return _inserted(name, rng, "\u0301")
    place = rng.choice(places)
    return name[:place] + rng.choice(LOOK_ALIKES[name[place]]) + name[place + 1 :]


def _camel(name: str, rng: random.Random) -> str:
    first, *parts = name.split("_")
    joined = first + "".join(
        part.capitalize() if rng.random() < 0.7 else f"_{part}" for part in parts
    )
    return joined.capitalize() if rng.random() < 0.2 else joined


CLASSES: dict[str, Rename] = {
    "NUL": _nul,
    "whitespace": lambda name, rng: _inserted(
        name, rng, rng.choice(SPACES) * rng.choice((1, 1, 2))
    ),
    "case": lambda name, rng: "".join(rng.choice((letter.upper(), letter)) for letter in name),
    "escapes": lambda name, _: name,  # written in another way
    "duplicates": lambda name, _: name,
    "look-alikes": _look_alike,
    "camelCase": _camel,
}


def _json_name(name: str, rng: random.Random, *, escaped: bool) -> str:
    if not escaped:
        return json.dumps(name, ensure_ascii=rng.random() < 0.5)
    letters = (
        f"\\u{ord(item):04{rng.choice('xX')}}" if rng.random() < 0.5 else item for item in name
    )
    return f'"{"".join(letters)}"'


def _query_name(name: str, rng: random.Random, *, escaped: bool) -> str:
    if not escaped:
        return quote(name)
    return "".join(
        f"%{ord(item):02{rng.choice('xX')}}" if rng.random() < 0.5 else item for item in name
    )


@dataclass(frozen=True)
class Slot:
    """Place of a field in a request's text: what stands before it, behind it, and its own value."""

    before: str
    name: str
    value: str
    behind: str


@dataclass(frozen=True)
class Template:
    """Valid request of a route, cut at each of its fields."""

    slots: tuple[Slot, ...]
    is_query: bool

    @cache  # noqa: B019  # routes share templates, and the process ends with its check
    def variations(self, kind: str, number: int) -> tuple[bytes, ...]:
        """Return the request with one field under a second name as well, or under another name."""
        rng = random.Random(f"{kind} {self.slots[0]}")
        joint, sign, write = ("&", "=", _query_name) if self.is_query else (", ", ": ", _json_name)
        texts = []
        for _ in range(number):
            slot = rng.choice(self.slots)
            renamed = CLASSES[kind](slot.name, rng)
            other = write(renamed, rng, escaped=kind == "escapes") + sign
            other += slot.value.replace(MINE, HERS) if rng.random() < 0.8 else slot.value
            local = write(slot.name, rng, escaped=False) + sign + slot.value
            pairs = rng.choice(([local, other], [other, local], [other], [local, other, other]))
            texts.append(f"{slot.before}{joint.join(pairs)}{slot.behind}".encode())
        return tuple(texts)


def _slots(value: Any, before: str = "", behind: str = "") -> Iterator[Slot]:
    """Yield the fields of an object, and of those in it."""
    pairs = list(value.items())
    texts = [f"{json.dumps(name)}: {json.dumps(inner)}" for name, inner in pairs]
    for place, (name, inner) in enumerate(pairs):
        around = before + "{" + "".join(f"{text}, " for text in texts[:place])
        rest = "".join(f", {text}" for text in texts[place + 1 :]) + "}" + behind
        yield Slot(around, name, json.dumps(inner), rest)
        opened = f"{around}{json.dumps(name)}: "
        if isinstance(inner, dict):
            yield from _slots(inner, opened, rest)
        elif isinstance(inner, list) and isinstance(inner[0], dict):
            yield from _slots(inner[0], f"{opened}[", f"]{rest}")


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


def template(method: str, rule: str, message: Any) -> Template:
    """Return the valid request of a route whose handler parses a message, if it does."""
    example = _example(message.DESCRIPTOR) if message else {}
    if method != "GET":
        return Template(tuple(_slots(example or OBJECTS.get(rule, OBJECTS[""]))), is_query=False)
    flat = {name: value[0] if isinstance(value, list) else value for name, value in example.items()}
    flat = flat or dict.fromkeys(QUERIES, MINE)
    texts = [(name, quote(str(value))) for name, value in flat.items()]
    slots = []
    for place, (name, text) in enumerate(texts):
        before = "".join(f"{item}={value}&" for item, value in texts[:place])
        behind = "".join(f"&{item}={value}" for item, value in texts[place + 1 :])
        slots.append(Slot(before, name, text, behind))
    return Template(tuple(slots), is_query=True)


def offered() -> Iterator[tuple[str, str, str, Any]]:
    """Yield kind, method, rule and message of every offered route that takes a body or a query."""
    parsed = {
        routes.line(method, path): request
        for path, request, methods in handlers.get_endpoints(lambda request: request)
        for method in methods
        if isinstance(request, type)
    }
    parsed[f"POST {routes.API}/2.0/mlflow/experiments/search-datasets"] = SearchDatasets
    for kind in (routes.READ, routes.SEARCH, routes.WRITE, routes.ACCOUNT, routes.ADMINISTER):
        for line in routes.classes()[kind]:
            method, rule = line.split(" ", 1)
            yield kind, method, rule, parsed.get(line)


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
    counts, wrong, at_all = Counter[str](), list[str](), 0
    for kind, method, rule, message in offered():
        valid = template(method, rule, message)
        route = Route(kind, rule, {}, method)
        seen = dict[bytes, Any]()
        at_all += 1
        for variation in CLASSES:
            for text in valid.variations(variation, number):
                try:
                    if valid.is_query:
                        authorised, sent = content.read_query(route, text, is_allowed=True)
                    else:
                        authorised, sent = content.read_body(route, text)
                except Refusal as refusal:
                    counts[f"{variation}: {refusal.status}"] += 1
                    continue
                if sent not in seen:
                    seen[sent] = handed_over(method, sent, message)
                is_equal = seen[sent] == authorised
                if is_equal and kind == WRITE and not rule.endswith("/log-inputs"):
                    is_equal = ids(seen[sent]) <= {
                        item for _, item in content.ids(route, authorised)
                    }
                counts[f"{variation}: {'equal' if is_equal else 'different'}"] += 1
                if not is_equal and len(wrong) < 20:
                    wrong.append(f"{method} {rule} {text!r}: {authorised} is not {seen[sent]}")
    return {"routes": at_all, "counts": dict(sorted(counts.items())), "wrong": wrong}


def newer(message: type[Message]) -> type[Message]:
    """Return the class of a message as of an MLflow whose messages have one more field each."""
    pool, added = DescriptorPool(), set[str]()

    def add(file: Any) -> None:
        if file.name in added:
            return
        added.add(file.name)
        for dependency in file.dependencies:
            add(dependency)
        copied = FileDescriptorProto()
        file.CopyToProto(copied)
        waiting = [] if file.package == "google.protobuf" else list(copied.message_type)
        while waiting:
            item = waiting.pop()
            if not item.options.map_entry:
                item.field.add(name=NEW, number=20_000, label=1, type=9)
            waiting += item.nested_type
        pool.AddSerializedFile(copied.SerializeToString())

    add(message.DESCRIPTOR.file)
    return GetMessageClass(pool.FindMessageTypeByName(message.DESCRIPTOR.full_name))


def new_fields() -> dict[str, list[str]]:
    """Return the answers to requests that use a new field, which names another team's run."""
    results: dict[str, list[str]] = {}
    messages_before = dict(backend.messages())
    with mock.patch.object(backend, "messages") as messages:
        for kind, method, rule, message in offered():
            if message is None:
                continue
            line = f"{method} {rule}"
            messages.return_value = {line: newer(messages_before[line])}
            route, answers = Route(kind, rule, {}, method), results.setdefault(line, [])
            bodies: list[Any] = [{NEW: HERS}]
            bodies += [
                {field.name: [{NEW: HERS}] if field.is_repeated else {NEW: HERS}}
                for field in message.DESCRIPTOR.fields
                if field.message_type and method != "GET"
            ]
            for body in bodies:
                try:
                    if method == "GET":
                        content.read_query(route, urlencode(body).encode(), is_allowed=True)
                    else:
                        content.read_body(route, json.dumps(body).encode())
                    answers.append("accepted")
                except Refusal as refusal:
                    answers.append(refusal.reason)
    return results


class _Parsing(Exception):
    """Start of a handler's work, after which there is no need for the rest."""


def parsed_by_handlers() -> dict[str, str]:
    """Run the handlers of offered routes until they parse a message, and return its name."""

    def stop(message: Any = None, *_: object, **__: object) -> None:
        raise _Parsing(message.DESCRIPTOR.full_name if message else "")

    lines = {f"{method} {rule}" for _, method, rule, _ in offered()}
    names = dict[str, str]()
    for rule in app.url_map.iter_rules():
        for method in rule.methods - {"HEAD", "OPTIONS"}:
            line = routes.line(method, rule.rule)
            if line not in lines or "/mlflow/" not in line:
                continue
            body = {} if method == "GET" else {"json": {}}
            with (
                app.test_request_context("/", method=method, **body),
                mock.patch.object(handlers, "_get_request_message", stop),
                mock.patch.object(handlers, "_get_tracking_store", stop),
                suppress(Exception),
            ):
                try:
                    app.view_functions[rule.endpoint](**dict.fromkeys(rule.arguments, "x"))
                except _Parsing as parsing:
                    names[line] = str(parsing)
    return names


if __name__ == "__main__":
    listed = {line: message.DESCRIPTOR.full_name for line, message in backend.messages().items()}
    parsed = {"parsed": parsed_by_handlers(), "known": listed}
    print(json.dumps({**check(int(sys.argv[1])), **parsed, "new": new_fields()}))

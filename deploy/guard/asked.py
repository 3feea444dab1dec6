"""What a request names: each thing once and under one name, and no place of files but the server's own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlencode

from deploy.guard import inside
from deploy.guard.refusal import Refusal
from deploy.guard.routes import UPLOAD, WRITE, Route

# Names of fields. protobuf reads a name up to its first NUL. No message of an offered route has a
# map, whose keys would be data.
FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
# What no text of a database holds.
NO_TEXT = re.compile(r"[\x00\ud800-\udfff]")
# Two names of MLflow's for one thing.
SAME = {"run_uuid": "run_id"}
# What a query may name several times: lists.
LISTS = {
    "run_ids",
    "experiment_ids",
    "order_by",
    "trace_ids",
    "metric_keys",
    "datasets_names",
    "stages",
}
LISTS_OF = {"run_id": ("/metrics/get-history-bulk", "/metrics/get-history-bulk-interval")}
RUN, MODEL, EXPERIMENT = "run_id", "model_id", "experiment_id"
IDS = {RUN: RUN, "source_run_id": RUN, MODEL: MODEL, EXPERIMENT: EXPERIMENT}
LOCATIONS = {"artifact_location", "artifact_uri", "artifact_path_root", "storage_location"}
# A prompt is a registered model with a tag, and with permissions of its own that a team does not have.
OWN_TAGS = {"mlflow.artifactlocation", "mlflow.trace.archivelocation", "mlflow.prompt.is_prompt"}
SOURCE = re.compile(
    r"models:/m-[A-Za-z0-9]+|runs:/[0-9a-f]{32}/[^?#%\\]+|mlflow-artifacts:/[^?#%\\]+"
)
SOURCES = {
    MODEL: re.compile(r"models:/(m-[A-Za-z0-9]+)"),
    RUN: re.compile(r"runs:/([0-9a-f]{32})/.*"),
    EXPERIMENT: re.compile(r"mlflow-artifacts:/([0-9]+)/.*"),
}
VERSION = re.compile(r"models:/([A-Za-z0-9][^/?#%\\]*)/[0-9]+")
DEEPEST, MAX_NAMES, MAX_IDS = 32, 20_000, 100
LONGEST_PART_BYTES, MAX_PARTS = 255, 64


def read_query(route: Route, query: bytes, *, may_have_one: bool) -> tuple[dict[str, Any], bytes]:
    """Return what MLflow's handler reads from a query, and the query as it is sent on.

    What it reads are the fields of its message, or lists of texts where it parses no message.
    Raises Refusal for what is named twice, in the path as well or under two names, and differs.
    """
    if query and not may_have_one:
        raise Refusal(400, "this request says what it wants in its body; it takes no query")
    try:
        entries = parse_qsl(
            query.decode(), keep_blank_values=True, strict_parsing=bool(query), errors="strict"
        )
    except ValueError:
        raise Refusal(
            400, "the query cannot be read; write name=value&name=value, encoded as UTF-8"
        ) from None
    seen: dict[str, str] = dict(route.named)
    for name, text in entries:
        one = check_field(name)
        if name in LISTS or route.rule.endswith(LISTS_OF.get(name, ("\0",))):
            continue
        if seen.setdefault(one, text) != text:
            raise Refusal(400, f"{one} is named twice and differs; name one")
    read = inside.message_of_query(route, entries)
    if read is None:
        read = {}
        for name, text in entries:
            read.setdefault(name, []).append(text)
    check_entries(read)
    return read, urlencode(entries).encode()


def read_body(route: Route, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Return what MLflow's handler reads from a body, and the body as it is sent on.

    What it reads are the fields of its message, or the object where it parses no message. Only they
    are sent on, under their own names: permissions are decided on what the handler gets.
    Raises Refusal for anything else, and for what comes twice or contradicts the path.
    """
    if not body:
        return {}, b""
    try:
        sent = json.loads(body.decode(), object_pairs_hook=_Objects(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is no JSON object in UTF-8") from None
    if not isinstance(sent, dict):
        raise Refusal(400, "the body is no JSON object")
    message = inside.message_of_body(route, sent)
    if message is None and route.kind == WRITE:
        raise Refusal(403, "this server does not know what that would write")
    read = sent if message is None else message
    check_entries(read)
    if route.rule == "/graphql" and not isinstance(read.get("query"), str):
        raise Refusal(400, "query is a text in GraphQL")
    for name, text in route.named.items():
        own = check_field(name)
        if any(value != text for key, value in read.items() if check_field(key) == own):
            raise Refusal(400, f"{name} is {text} in the path and another in the body; name one")
    try:
        return read, json.dumps(read, allow_nan=False).encode()
    except ValueError:
        raise Refusal(400, "a number is larger than any float64; write at most 1.8e308") from None


def check_type(content_type: str) -> None:
    """Raise Refusal for a body that says that it is something other than JSON."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise Refusal(400, "the body is JSON; send it with Content-Type: application/json")


def check_entries(body: Any) -> None:
    """Raises Refusal for a place of files: where files go is the server's to say."""
    for name, value in entries(body):
        for text in value if isinstance(value, list) else (value,):
            if isinstance(text, str) and NO_TEXT.search(text):
                raise Refusal(400, f"{name} holds a NUL or half of a character; leave it out")
        if check_field(name) in LOCATIONS and value:
            raise Refusal(400, f"{name}: files go where the server keeps them; leave it out")
        if name == "key" and isinstance(value, str) and value.strip().lower() in OWN_TAGS:
            raise Refusal(400, f"tag {value.strip()} is the server's own")


def check_source(body: Mapping[str, Any]) -> str:
    """The registered model that a version is a copy of, if it is. Raises Refusal for files that are not the server's."""
    source = body.get("source")
    if isinstance(source, str) and (copied := VERSION.fullmatch(source)):
        return copied[1]
    parts = str(source).split("/")
    if (
        not isinstance(source, str)
        or not SOURCE.fullmatch(source)
        or {".", ".."} & set(parts)
        or "//" in source
    ):
        raise Refusal(
            400,
            "source is models:/ID, models:/NAME/VERSION, runs:/ID/PATH or mlflow-artifacts:/PATH",
        )
    return ""


def ids(route: Route, body: Any) -> set[tuple[str, str]]:
    """All that a request names, as (run_id, model_id or experiment_id, id), in its path or anywhere in its body.

    Raises Refusal for what is no id, and for more of them than any use has.
    """
    used = route.rule.endswith("/runs/log-inputs")  # models that a run has read: named, not changed
    found = {(IDS[name], text) for name, text in route.named.items() if name in IDS}
    for name, value in entries(body):
        kind = IDS.get(check_field(name))
        if kind and value not in (None, "") and not (used and kind == MODEL):
            found.add((kind, _id(name, value)))
        elif name == "source" and isinstance(value, str):
            found |= {
                (of, match[1]) for of, form in SOURCES.items() if (match := form.fullmatch(value))
            }
    if len(found) > MAX_IDS:
        raise Refusal(400, f"a request names at most {MAX_IDS} runs, models and experiments")
    return found


def _id(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).isprintable():
        raise Refusal(400, f"{name} is no id")
    return str(value)


def entries(value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every name with its value, however deep. Raises Refusal beyond any use."""
    if depth > DEEPEST:
        raise Refusal(400, f"the body is nested deeper than {DEEPEST}")
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name, inner
            yield from entries(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, (dict, list)):
                yield from entries(inner, depth + 1)


def check_path(route: Route) -> None:
    """Raises Refusal for a path of files that could lead elsewhere than it says, or that no disk has."""
    if (text := route.named.get("artifact_path")) is None:
        return
    parts = text.removesuffix("/").split("/")
    if {"", ".", ".."} & set(parts) or re.search(r"\\|%[0-9A-Fa-f]{2}|[\x00-\x1f\x7f]", text):
        raise Refusal(
            400,
            f"{ascii(text)[:200]} is no path of a file: parts with / between, without . .. \\ or %-codes",
        )
    if len(parts) > MAX_PARTS or any(
        len(part.encode(errors="replace")) > LONGEST_PART_BYTES for part in parts
    ):
        raise Refusal(400, f"a path has at most {MAX_PARTS} parts of {LONGEST_PART_BYTES} bytes")
    if route.kind == UPLOAD and len(parts) < 2:
        raise Refusal(400, "a file lies below an experiment: EXPERIMENT/RUN/artifacts/NAME")


class _Objects:
    """Makes the objects of one body, and counts their names."""

    def __init__(self) -> None:
        self._names = 0

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._names += len(pairs)
        if self._names > MAX_NAMES:
            raise Refusal(400, f"the body has more than {MAX_NAMES:,} names")
        found, meant = dict(pairs), dict[str, Any]()
        for name, value in pairs:
            if meant.setdefault(check_field(name), value) != value:
                raise Refusal(400, f"{check_field(name)} is named twice and differs; name one")
        if len(found) < len(pairs):
            raise Refusal(400, "the body has one name twice; name each thing once")
        return found


def check_field(name: str) -> str:
    """Return the one name for a field of several. Raises Refusal for what is no field's name."""
    if not FIELD.fullmatch(name):
        told = "at most 100 letters, digits and _, a letter first"
        raise Refusal(400, f"{ascii(name)[:100]} is no field's name: {told}")
    return _canonical(name)


def _no_constant(text: str) -> NoReturn:
    """Refuse what is no JSON: MLflow reads a metric that is NaN as 0, and "NaN" as itself."""
    raise Refusal(400, f'{text} is no JSON; write "{text}"')


@lru_cache(10_000)
def _canonical(name: str) -> str:
    """MLflow's messages know each field as run_id and as runId."""
    snake = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()
    return SAME.get(snake, snake)

"""Content of a request: each thing is named once, and files lie in the server's artifacts only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlencode

from deploy.guard import backend
from deploy.guard.refusal import Reason, Refusal
from deploy.guard.routes import ARTIFACTS, WRITE, Route

# Names of fields. protobuf reads a name up to its first NUL. No message of an offered route has a
# map, whose keys would be data.
FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
# Characters that no text of a database holds.
INVALID_TEXT = re.compile(r"[\x00\ud800-\udfff]")
# Two names of MLflow's for one thing.
SYNONYMS = {"run_uuid": "run_id"}
# Lists: a query may name them several times.
LISTS = {
    "run_ids",
    "experiment_ids",
    "order_by",
    "trace_ids",
    "metric_keys",
    "datasets_names",
    "stages",
}
RUN_LISTS = ("/metrics/get-history-bulk", "/metrics/get-history-bulk-interval")
RUN, MODEL, EXPERIMENT = "run_id", "model_id", "experiment_id"
IDS = {RUN: RUN, "source_run_id": RUN, MODEL: MODEL, EXPERIMENT: EXPERIMENT}
# Address that the UI shows as a link.
WEB = re.compile(r"https?://[!-~]+")
LOCATIONS = {"artifact_location", "artifact_uri", "artifact_path_root", "storage_location"}
# A prompt is a registered model with a tag, and with permissions that a team does not have.
SERVER_TAGS = {"mlflow.artifactlocation", "mlflow.trace.archivelocation", "mlflow.prompt.is_prompt"}
# As MLflow lays out the files of a run and of a logged model, below the id of their experiment.
ARTIFACT = re.compile(r"[0-9]+/(?:[0-9a-f]{32}|models/m-[0-9a-f]{32})/artifacts(/.+)?")
SOURCE = re.compile(
    rf"models:/m-[A-Za-z0-9]+|runs:/[0-9a-f]{{32}}/.+|mlflow-artifacts:/{ARTIFACT.pattern}"
)
SOURCE_IDS = {
    MODEL: re.compile(r"models:/(m-[A-Za-z0-9]+)"),
    RUN: re.compile(r"runs:/([0-9a-f]{32})/.*"),
    EXPERIMENT: re.compile(r"mlflow-artifacts:/([0-9]+)/.*"),
}
VERSION = re.compile(r"models:/([A-Za-z0-9][^/?#%\\]*)/[0-9]+")
DEEPEST, MAX_NAMES, MAX_IDS = 32, 20_000, 100
LONGEST_PART_BYTES, MAX_PARTS = 255, 64


def read_query(route: Route, query: bytes, *, is_allowed: bool) -> tuple[dict[str, Any], bytes]:
    """Return what MLflow's handler reads from a query, and the query as it is sent on.

    These are the fields of its message, or lists of texts if it parses no message.

    Raises:
        Refusal: A thing is named twice, also in the path or by a synonym, and differs.
    """
    if query and not is_allowed:
        raise Refusal(Reason.INVALID, "this request takes a body and no query")
    try:
        entries = parse_qsl(
            query.decode(), keep_blank_values=True, strict_parsing=bool(query), errors="strict"
        )
    except ValueError:
        raise Refusal(
            Reason.INVALID,
            "the query cannot be read; write name=value&name=value, encoded as UTF-8",
        ) from None
    values: dict[str, str] = dict(route.named)
    for name, text in entries:
        field = check_field(name)
        is_list = name in LISTS or (name == RUN and route.rule.endswith(RUN_LISTS))
        if not is_list and values.setdefault(field, text) != text:
            raise Refusal(Reason.AMBIGUOUS, f"{field} is named twice and differs; name one")
    message = backend.message_of_query(route, entries)
    if message is None:
        message = {}
        for name, text in entries:
            message.setdefault(name, []).append(text)
    check_entries(message)
    if route.rule == ARTIFACTS:
        check_path(str(message.get("path", "")))
    return message, urlencode(entries).encode()


def read_body(route: Route, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Return what MLflow's handler reads from a body, and the body as it is sent on.

    These are the fields of its message, or the object if it parses no message. Only they are sent
    on, under their own names: permissions are decided on what the handler gets.

    Raises:
        Refusal: It is no such body, or a thing comes twice or contradicts the path.
    """
    if not body:
        return {}, b""
    try:
        values = json.loads(
            body.decode(), object_pairs_hook=_ObjectReader(), parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError):
        raise Refusal(Reason.INVALID, "the body is no JSON object in UTF-8") from None
    if not isinstance(values, dict):
        raise Refusal(Reason.INVALID, "the body is no JSON object")
    message = backend.message_of_body(route, values)
    if message is None:
        if route.kind == WRITE:
            raise Refusal(Reason.NOT_OFFERED, "this server does not know the message of this write")
        message = values
    check_entries(message)
    if route.rule == "/graphql" and not isinstance(message.get("query"), str):
        raise Refusal(Reason.INVALID, "query is a text in GraphQL")
    for name, text in route.named.items():
        field = check_field(name)
        if any(value != text for key, value in message.items() if check_field(key) == field):
            raise Refusal(
                Reason.AMBIGUOUS, f"{name} is {text} in the path and another in the body; name one"
            )
    try:
        return message, json.dumps(message, allow_nan=False).encode()
    except ValueError:
        raise Refusal(
            Reason.INVALID, "a number is larger than any float64; write at most 1.8e308"
        ) from None


def check_entries(body: Any) -> None:
    """Raise Refusal for a location of files, a link, tag or text that the server does not take."""
    for name, value in entries(body):
        for text in value if isinstance(value, list) else (value,):
            if isinstance(text, str) and INVALID_TEXT.search(text):
                raise Refusal(
                    Reason.INVALID, f"{name} holds a NUL or half of a character; leave it out"
                )
        if check_field(name) in LOCATIONS and value:
            raise Refusal(
                Reason.INVALID, f"{name}: the server chooses where files lie; leave it out"
            )
        if check_field(name) == "run_link" and value and not WEB.fullmatch(str(value)):
            raise Refusal(Reason.INVALID, f"{name} is an address: https://HOST/PATH")
        if name == "key" and isinstance(value, str) and value.strip().lower() in SERVER_TAGS:
            raise Refusal(Reason.INVALID, f"only the server sets the tag {value.strip()}")


def check_source(body: Mapping[str, Any]) -> str:
    """Return the registered model that a version is a copy of, or "".

    Raises:
        Refusal: The source is no file of the server's.
    """
    source = str(body.get("source"))
    if match := VERSION.fullmatch(source):
        return match[1]
    leads_elsewhere = {".", ".."} & set(source.split("/")) or re.search(r"//|[?#%\\]", source)
    if leads_elsewhere or not SOURCE.fullmatch(source):
        raise Refusal(
            Reason.INVALID,
            "source is "
            "models:/ID, models:/NAME/VERSION, runs:/ID/PATH or mlflow-artifacts:/ARTIFACT",
        )
    return ""


def ids(route: Route, body: Any) -> set[tuple[str, str]]:
    """Return the things that a request names, in its path or anywhere in its body.

    Each is (run_id, model_id or experiment_id, id).

    Raises:
        Refusal: One is no id, or there are too many.
    """
    # Models that a run has read are named and not changed.
    ignored = MODEL if route.rule.endswith("/runs/log-inputs") else ""
    things = {(IDS[name], text) for name, text in route.named.items() if name in IDS}
    for name, value in entries(body):
        kind = IDS.get(check_field(name))
        if kind and value not in (None, "") and kind != ignored:
            is_id = isinstance(value, str | int) and not isinstance(value, bool)
            if not is_id or not str(value).isprintable():
                raise Refusal(Reason.INVALID, f"{name} is no id")
            things.add((kind, str(value)))
        elif name == "source" and isinstance(value, str):
            matches = {kind: form.fullmatch(value) for kind, form in SOURCE_IDS.items()}
            things |= {(kind, match[1]) for kind, match in matches.items() if match}
    if len(things) > MAX_IDS:
        raise Refusal(
            Reason.TOO_MANY, f"a request names at most {MAX_IDS} runs, models and experiments"
        )
    return things


def entries(value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield each name with its value, at any depth. Raises Refusal for deep nesting."""
    if depth > DEEPEST:
        raise Refusal(Reason.TOO_MANY, f"the body is nested deeper than {DEEPEST}")
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name, inner
            yield from entries(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, (dict, list)):
                yield from entries(inner, depth + 1)


def check_path(path: str, *, is_upload: bool = False) -> None:
    """Raise Refusal for a path of no artifact: it may lead elsewhere, or no disk has it."""
    parts = path.removesuffix("/").split("/")
    if {"", ".", ".."} & set(parts) or re.search(r"\\|%[0-9A-Fa-f]{2}|[\x00-\x1f\x7f]", path):
        raise Refusal(
            Reason.INVALID,
            f"{ascii(path)[:200]} is no path of a file: "
            "parts with / between, without . .. \\ or %-codes",
        )
    longest = max(len(part.encode(errors="replace")) for part in parts)
    if len(parts) > MAX_PARTS or longest > LONGEST_PART_BYTES:
        raise Refusal(
            Reason.INVALID, f"a path has at most {MAX_PARTS} parts of {LONGEST_PART_BYTES} bytes"
        )
    match = ARTIFACT.fullmatch(path.removesuffix("/"))
    if match is None or (is_upload and not match[1]):
        raise Refusal(
            Reason.INVALID,
            f"{ascii(path)[:200]} is no artifact: write "
            "EXPERIMENT/RUN/artifacts/NAME or EXPERIMENT/models/MODEL/artifacts/NAME",
        )


class _ObjectReader:
    """Reader of the objects of one body, which counts their names."""

    def __init__(self) -> None:
        self._names = 0

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._names += len(pairs)
        if self._names > MAX_NAMES:
            raise Refusal(Reason.TOO_MANY, f"the body has more than {MAX_NAMES:,} names")
        values, fields = dict(pairs), dict[str, Any]()
        for name, value in pairs:
            if fields.setdefault(check_field(name), value) != value:
                raise Refusal(
                    Reason.AMBIGUOUS, f"{check_field(name)} is named twice and differs; name one"
                )
        if len(values) < len(pairs):
            raise Refusal(Reason.AMBIGUOUS, "the body has one name twice; name each thing once")
        return values


@lru_cache(10_000)
def check_field(name: str) -> str:
    """Return the canonical name of a field: MLflow's messages know run_id and runId as one.

    Raises:
        Refusal: It is no field's name.
    """
    if not FIELD.fullmatch(name):
        raise Refusal(
            Reason.INVALID,
            f"{ascii(name)[:100]} is no field's name: "
            "at most 100 letters, digits and _, a letter first",
        )
    snake = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()
    return SYNONYMS.get(snake, snake)


def _refuse_constant(text: str) -> NoReturn:
    """Refuse NaN and Infinity: MLflow reads a metric that is NaN as 0, and "NaN" as itself."""
    raise Refusal(Reason.INVALID, f'{text} is no JSON; write "{text}"')

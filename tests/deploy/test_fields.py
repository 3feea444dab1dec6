"""Requests with two readings: what the guard authorises is what MLflow's handler reads."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Callable

import pytest

from tests.deploy.group import API, Group, Team, send

JSON, CHUNKED = "Content-Type: application/json", "Transfer-Encoding: chunked"
FORM = "Content-Type: application/x-www-form-urlencoded"
TAG = '{"run_id": "MY_RUN", "key": "a", "value": "b"}'
# Headers and bodies for MLflow's set-tag.
BODIES: dict[str, tuple[list[str], bytes]] = {
    "a mark of order": ([JSON], b"\xef\xbb\xbf" + TAG.encode()),
    "UTF-16": ([f"{JSON}; charset=utf-16"], TAG.encode("utf-16")),
    "UTF-32 without a mark": ([JSON], TAG.encode("utf-32-be")),
    "a form": ([FORM], b"run_id=HER_RUN&key=a&value=b"),
    "JSON that says that it is a form": ([FORM], TAG.encode()),
    "JSON that says that it is text": (["Content-Type: text/plain"], TAG.encode()),
    "JSON that does not say what it is": ([], TAG.encode()),
    "two types": ([JSON, "Content-Type: text/plain"], TAG.encode()),
    "two lengths": ([JSON, "Content-Length: 3", "Content-Length: 9"], TAG.encode()),
    "a length and chunks": ([JSON, "Content-Length: 5", CHUNKED], b"0\r\n\r\n"),
    "chunks and a length": ([JSON, CHUNKED, "Content-Length: 5"], b"0\r\n\r\n"),
    "a list of an id": ([JSON], TAG.replace('"MY_RUN"', '["HER_RUN"]').encode()),
    "an object for an id": ([JSON], TAG.replace('"MY_RUN"', '{"run_id": "HER_RUN"}').encode()),
    "NaN": ([JSON], TAG.replace('"b"', "NaN").encode()),
    "NUL in a value": ([JSON], TAG.replace('"b"', '"\\u0000"').encode()),
    "half of a pair": ([JSON], TAG.replace('"b"', '"\\ud800"').encode()),
    "an old name and a new one": ([JSON], TAG.replace("{", '{"run_uuid": "HER_RUN", ').encode()),
    "JSON in JSON": ([JSON], json.dumps(TAG).encode()),
    "an extension": ([JSON], TAG.replace("{", '{"[mlflow.run_id]": "HER_RUN", ').encode()),
    "twice": ([JSON], TAG.replace("{", '{"run_id": "HER_RUN", ').encode()),
    "two names": ([JSON], TAG.replace("{", '{"runUuid": "HER_RUN", ').encode()),
    "a list": ([JSON], f"[{TAG}]".encode()),
    "deep": ([JSON], b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    "not so deep": ([JSON], b'{"a":' * 40 + b"1" + b"}" * 40),
    "no JSON": ([JSON], b"run_id=HER_RUN&key=b"),
}
LINES = {
    **dict.fromkeys([f"GET {API}/runs/get{it}" for it in ("%0A", "%0D", ";x", "%00", "%3Fx")], 403),
    f"GET {API}/runs/get?run_id=MY_RUN&run_id%00=HER_RUN": 400,
    f"GET {API}/runs/get?run_id=MY_RUN&run_id+=HER_RUN": 400,
    f"GET {API}/runs/get?run_id=MY_RUN&run_id%E2%80%8B=HER_RUN": 400,
    f"GET {API}/runs/get?run_id=MY_RUN&%72un_id=HER_RUN": 400,
    f"GET {API}/runs/get?run_id=MY_RUN&runId=HER_RUN": 400,
    f"GET {API}/runs/get?run_id=MY_RUN&run_id[]=HER_RUN": 400,
    f"GET {API}/runs/get?run_id=MY_RUN%00": 400,
    f"GET {API}/runs/get?run_id=%C0%80MY_RUN": 400,
    f"GET {API}/runs/get?run_id=MY_RUN&run_id=HER_RUN": 400,
    f"GET {API}/runs/get?run_id=MY_RUN&run_uuid=HER_RUN": 400,
    f"GET {API}/runs/get?run_id=%ff": 400,
    f"GET {API}/runs/get?run_id": 400,
    "GET /ajax-api/2.0/mlflow/metrics/get-history-bulk?run_id=MY_RUN&run_id=HER_RUN&metric_key=m": (
        200
    ),
}
REQUESTS = {
    **{name: (f"POST {API}/runs/set-tag", *sent, 400) for name, sent in BODIES.items()},
    **{line: (line, [], b"", status) for line, status in LINES.items()},
    **{
        f"{line} with a length and chunks": (
            line,
            ["Content-Length: 5", CHUNKED],
            b"0\r\n\r\n",
            400,
        )
        for line in ("PUT MY_FILE", f"GET {API}/runs/get", "GET /ready", "GET /health")
    },
}


@pytest.mark.parametrize(
    ("line", "headers", "body", "status"), REQUESTS.values(), ids=REQUESTS.keys()
)
def test_request_with_two_readings_is_refused(
    group: Group,
    hers: Team,
    his: Team,
    fill: Callable[[str], str],
    line: str,
    headers: list[str],
    body: bytes,
    status: int,
) -> None:
    def stored() -> list[str]:
        addresses = f"runs/get?run_id={hers.run}", f"runs/get?run_id={his.run}", his.file
        return [group.ask("bob", "GET", address).text for address in addresses]

    before = stored()
    sent = fill(body.decode("latin-1")).encode("latin-1")
    words = ("bob", group.password("bob"))
    assert send(group, fill(line), *headers, body=sent, words=words)[0] == status
    assert stored() == before


def test_header_with_underscore_is_dropped(group: Group, fill: Callable[[str], str]) -> None:
    """WSGI would make one name of both."""
    account = b64encode(f"alice:{group.password('alice')}".encode()).decode()
    forged = ["Content_Type: text/plain", "Content_Length: 3", "Transfer_Encoding: chunked"]
    forged += [f"X_MLflow_Authorization: Basic {account}", "X_MLflow_Workspace: none"]
    request, words = (group, f"POST {API}/runs/set-tag", JSON), ("bob", group.password("bob"))
    for run, status in {"MY_RUN": 200, "HER_RUN": 403}.items():
        body = fill(TAG.replace("MY_RUN", run)).encode()
        assert send(*request, *forged, body=body, words=words)[0] == status


def test_body_in_chunks_is_read(group: Group, fill: Callable[[str], str]) -> None:
    sent, words = fill(TAG).encode(), ("bob", group.password("bob"))
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(sent), sent)
    line = f"POST {API}/runs/set-tag"
    assert send(group, line, JSON, CHUNKED, body=body, words=words)[0] == 200


def test_nul_in_graphql_variables_is_refused(group: Group, hers: Team, his: Team) -> None:
    query = "query q($data: MlflowGetRunInput!) { mlflowGetRun(input: $data) "
    query += "{ run { info { runUuid } } } }"
    sent = {"query": query, "operationName": "q", "variables": {"data": {"runId": his.run}}}
    answer = group.post("bob", "/graphql", **sent)
    assert answer["data"]["mlflowGetRun"]["run"]["info"]["runUuid"] == his.run
    forged = {**sent, "variables": {"data": {"runId": his.run, "runId\0": hers.run}}}
    no_texts = [{"query": query} for query in (None, 5, {})]
    group.check(*(("bob", "POST", "/graphql", wrong, 400) for wrong in (forged, *no_texts)))


def test_spellings_of_clients_are_accepted(group: Group, his: Team) -> None:
    """Send camelCase, numbers as texts, NaN, and fields that this MLflow does not have."""
    metrics = [
        {"key": "read", "value": "NaN", "timestamp": "5", "step": 1},
        {"key": "read", "value": 1e300, "timestamp": 9007199254740993, "step": "2", "later": [{}]},
        {"key": "read", "value": "-Infinity", "timestamp": 7.0, "step": 3},
    ]
    more = {"params": [], "tags": None, "unknown": {"a": 1}}
    group.post("bob", "runs/log-batch", runId=his.run, metrics=metrics, **more)
    path = f"metrics/get-history?run_id={his.run}&metric_key=read"
    history = group.ask("bob", "GET", path).json()["metrics"]
    read = {int(metric["step"]): (metric["value"], int(metric["timestamp"])) for metric in history}
    assert read == {1: ("NaN", 5), 2: (1e300, 9007199254740993), 3: (-sys.float_info.max, 7)}


@pytest.mark.parametrize(
    "value",
    [
        "1" * 400,
        "-" + "1" * 400,
        "1" * 5_000,
        "{}",
        "[]",
        '{"a": 1}',
        "[1]",
        "1e999",
        "NaN",
        '"x"',
        '""',
    ],
    ids=lambda value: value[:8],
)
def test_metric_without_a_number_is_refused(group: Group, his: Team, value: str) -> None:
    metric = f'{{"key": "refused", "timestamp": 1, "step": 0, "value": {value}}}'
    bodies = {
        "runs/log-metric": metric.replace("{", f'{{"run_id": "{his.run}", ', 1),
        "runs/log-batch": f'{{"run_id": "{his.run}", "metrics": [{metric}]}}',
    }
    headers = {"Content-Type": "application/json"}
    for path, body in bodies.items():
        answer = group.ask("bob", "POST", path, data=body, headers=headers)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error_code"] == "INVALID_PARAMETER_VALUE"
    assert "refused" not in group.ask("bob", "GET", f"runs/get?run_id={his.run}").text

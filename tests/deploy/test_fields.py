"""Field names of requests, attacked: what the guard authorises is what MLflow's handler reads."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from typing import Any

import pytest

from deploy.guard import routes
from deploy.guard.refusal import Reason
from tests.deploy.group import API, Group, Team, ask, raw


@pytest.fixture(scope="module", autouse=True)
def registered(hers: Team, his: Team) -> None:
    for team, name in ((hers, "vision.kept"), (his, "speech.mine"), (his, "speech.second")):
        if team.tries("GET", f"{API}/registered-models/get?name={name}")[0] != 200:
            team.post("registered-models/create", name=name)


def state(hers: Team, his: Team) -> dict[str, Any]:
    """Return everything that an attack would change."""
    addresses = {
        "run": f"{API}/runs/get?run_id={hers.run}",
        "experiment": f"{API}/experiments/get?experiment_id={hers.experiment}",
        "logged model": f"{API}/logged-models/{hers.model}",
        "registered model": f"{API}/registered-models/get?name=vision.kept",
        "his experiment": f"{API}/experiments/get?experiment_id={his.experiment}",
        "his registered model": f"{API}/registered-models/get?name=speech.mine",
        "his run": f"{API}/runs/get?run_id={his.run}",
        "experiments": f"{API}/experiments/search?max_results=1000",
        "history": f"{API}/metrics/get-history?run_id={hers.run}&metric_key=forged",
    }
    answers = {
        name: hers.group.ask("alice", "GET", address).json() for name, address in addresses.items()
    }
    for experiment in ("0", hers.experiment):
        sent = {"experiment_ids": [experiment], "run_view_type": "ALL"}
        answer = hers.group.ask("alice", "POST", f"{API}/runs/search", json=sent)
        answers[f"runs of {experiment}"] = answer.json()
    return answers


def tags(*teams: Team) -> list[Any]:
    runs = (team.tries("GET", f"{API}/runs/get?run_id={team.run}")[1] for team in teams)
    return [json.loads(run)["run"]["data"] for run in runs]


METRIC = '"key": "forged", "value": 9, "timestamp": 1, "step": 0'
# ␀ stands for the escape \u0000 behind a field's name.
ATTACKS = {
    "a tag on a run": (
        "POST runs/set-tag",
        '{"run_id": "MY_RUN", "run_id␀": "HER_RUN", "key": "a", "value": "b"}',
    ),
    "a metric": (
        "POST runs/log-metric",
        f'{{"run_id": "MY_RUN", "run_id␀": "HER_RUN", {METRIC}}}',
    ),
    "a metric under an old name": (
        "POST runs/log-metric",
        f'{{"run_id": "MY_RUN", "run_uuid␀": "HER_RUN", {METRIC}}}',
    ),
    "metrics": (
        "POST runs/log-batch",
        f'{{"run_id": "MY_RUN", "run_id␀x": "HER_RUN", "metrics": [{{{METRIC}}}]}}',
    ),
    "a metric of a model, deep in a batch": (
        "POST runs/log-batch",
        f'{{"run_id": "MY_RUN", "metrics": [{{{METRIC}, "model_id␀": "HER_MODEL"}}]}}',
    ),
    "the end of a run": (
        "POST runs/update",
        '{"run_id": "MY_RUN", "run_id␀": "HER_RUN", "status": "KILLED"}',
    ),
    "the removal of a run": ("POST runs/delete", '{"run_id": "MY_RUN", "run_id␀": "HER_RUN"}'),
    "an experiment renamed into a team": (
        "POST experiments/update",
        '{"experiment_id": "MINE", "new_name": "speech/captioning", "new_name␀": "vision/stolen"}',
    ),
    "a team's experiment renamed": (
        "POST experiments/update",
        '{"experiment_id": "MINE", "experiment_id␀": "HERS", "new_name": "speech/stolen"}',
    ),
    "a team's experiment deleted": (
        "POST experiments/delete",
        '{"experiment_id": "MINE", "experiment_id␀": "HERS"}',
    ),
    "a run in Default": ("POST runs/create", '{"experiment_id": "MINE", "experiment_id␀": "0"}'),
    "a run in a team's experiment": (
        "POST runs/create",
        '{"experiment_id": "MINE", "experiment_id␀": "HERS"}',
    ),
    "a registered model deleted": (
        "DELETE registered-models/delete",
        '{"name": "speech.second", "name␀": "vision.kept"}',
    ),
    "a registered model renamed into a team": (
        "POST registered-models/rename",
        '{"name": "speech.second", "new_name": "speech.third", "new_name␀": "vision.stolen"}',
    ),
    "a place of files": (
        "POST experiments/create",
        '{"name": "speech/elsewhere", "artifact_location␀": "/etc"}',
    ),
    "a version's source": (
        "POST model-versions/create",
        '{"name": "speech.mine", "source": "runs:/MY_RUN/m", "source␀": "file:///etc"}',
    ),
    "a reserved tag of a model": (
        "POST registered-models/set-tag",
        '{"name": "speech.mine", "key": "a", "key␀": "mlflow.prompt.is_prompt", "value": "true"}',
    ),
    "a reserved tag of an experiment": (
        "POST experiments/set-experiment-tag",
        '{"experiment_id": "MINE", "key": "a", "key␀": "mlflow.artifactLocation", "value": "/etc"}',
    ),
    "a reserved tag of a run, deep in a batch": (
        "POST runs/log-batch",
        '{"run_id": "MY_RUN", "tags": '
        '[{"key": "a", "key␀": "mlflow.artifactLocation", "value": "/etc"}]}',
    ),
    "a logged model from a team's run": (
        "POST logged-models",
        '{"experiment_id": "MINE", "name": "m", "source_run_id␀": "HER_RUN"}',
    ),
    "a logged model ended": (
        "PATCH logged-models/MY_MODEL",
        '{"model_id": "MY_MODEL", "model_id␀": "HER_MODEL", '
        '"status": "LOGGED_MODEL_UPLOAD_FAILED"}',
    ),
}


def filled(text: str, hers: Team, his: Team) -> str:
    ids = {"MY_MODEL": his.model, "HER_MODEL": hers.model, "MY_RUN": his.run, "HER_RUN": hers.run}
    ids |= {"HERS": hers.experiment, "MINE": his.experiment}
    return re.sub("|".join(ids), lambda name: ids[name[0]], text)


def test_nul_in_a_field_name_reaches_no_other_team(group: Group, hers: Team, his: Team) -> None:
    before, answers = state(hers, his), dict[str, tuple[int, str]]()
    words = ("bob", group.password("bob"))
    for name, (route, body) in ATTACKS.items():
        method, path = filled(route, hers, his).split(" ")
        sent = filled(body, hers, his).replace("␀", "\\u0000").encode()
        assert json.loads(sent), "an escape, so that any parser of JSON reads it"
        status, text = ask(group, words, method, f"{API}/{path}", sent)
        answers[name] = (status, json.loads(text).get("reason", ""))
    assert answers == dict.fromkeys(ATTACKS, (400, Reason.INVALID))
    assert state(hers, his) == before


JSON = "Content-Type: application/json"
TAG = '{"run_id": "MY_RUN", "key": "a", "value": "b"}'
TWO_READINGS: dict[str, tuple[str, bytes]] = {
    "a mark of order": (JSON, b"\xef\xbb\xbf" + TAG.encode()),
    "UTF-16": (f"{JSON}; charset=utf-16", TAG.encode("utf-16")),
    "UTF-32 without a mark": (JSON, TAG.encode("utf-32-be")),
    "a form": ("Content-Type: application/x-www-form-urlencoded", b"run_id=HER_RUN&key=a&value=b"),
    "JSON that says that it is a form": (
        "Content-Type: application/x-www-form-urlencoded",
        TAG.encode(),
    ),
    "JSON that says that it is text": ("Content-Type: text/plain", TAG.encode()),
    "JSON that does not say what it is": ("X-Nothing: 1", TAG.encode()),
    "two types": (f"{JSON}\nContent-Type: text/plain", TAG.encode()),
    "two lengths": (f"{JSON}\nContent-Length: 3", TAG.encode()),
    "a list of an id": (JSON, TAG.replace('"MY_RUN"', '["HER_RUN"]').encode()),
    "an object for an id": (JSON, TAG.replace('"MY_RUN"', '{"run_id": "HER_RUN"}').encode()),
    "NaN": (JSON, TAG.replace('"b"', "NaN").encode()),
    "NUL in a value": (JSON, TAG.replace('"b"', '"\\u0000"').encode()),
    "half of a pair": (JSON, TAG.replace('"b"', '"\\ud800"').encode()),
    "an old name and a new one": (JSON, TAG.replace("{", '{"run_uuid": "HER_RUN", ').encode()),
    "JSON in JSON": (JSON, json.dumps(TAG).encode()),
    "an extension": (JSON, TAG.replace("{", '{"[mlflow.run_id]": "HER_RUN", ').encode()),
    "twice": (JSON, TAG.replace("{", '{"run_id": "HER_RUN", ').encode()),
    "two names": (JSON, TAG.replace("{", '{"runUuid": "HER_RUN", ').encode()),
    "a list": (JSON, f"[{TAG}]".encode()),
    "deep": (JSON, b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    "not so deep": (JSON, b'{"a":' * 40 + b"1" + b"}" * 40),
    "no JSON": (JSON, b"run_id=HER_RUN&key=b"),
}


def test_ambiguous_body_is_refused(group: Group, hers: Team, his: Team) -> None:
    before, statuses = tags(hers, his), dict[str, int]()
    for name, (headers, body) in TWO_READINGS.items():
        sent = body.replace(b"MY_RUN", his.run.encode()).replace(b"HER_RUN", hers.run.encode())
        head = f"POST {API}/runs/set-tag\n{headers}\nContent-Length: {len(sent)}"
        statuses[name] = raw(group, head, sent)
    assert statuses == dict.fromkeys(TWO_READINGS, 400)
    assert tags(hers, his) == before


def test_header_with_underscore_is_dropped(group: Group, hers: Team, his: Team) -> None:
    """WSGI would make one name of both."""
    words = b64encode(f"alice:{group.password('alice')}".encode()).decode()
    sent = TAG.replace("MY_RUN", his.run).encode()
    forged = "Content_Type: text/plain\nContent_Length: 3\nTransfer_Encoding: chunked"
    head = f"POST {API}/runs/set-tag\n{JSON}\nContent-Length: {len(sent)}\n{forged}"
    assert raw(group, head, sent) == 200
    account = f"X_MLflow_Authorization: Basic {words}\nX_MLflow_Workspace: none"
    other = sent.replace(his.run.encode(), hers.run.encode())
    assert raw(group, f"{head}\n{account}", other) == 403


@pytest.mark.parametrize(
    "path", ["runs/get%0A", "runs/get%0D", "runs/get;x", "runs/get%00", "runs/get%3Fx"]
)
def test_ambiguous_path_is_refused(group: Group, his: Team, path: str) -> None:
    assert raw(group, f"GET {API}/{path}?run_id={his.run}", b"") == 403


@pytest.mark.parametrize(
    "query",
    [
        "run_id=MY_RUN&run_id%00=HER_RUN",
        "run_id=MY_RUN&run_id+=HER_RUN",
        "run_id=MY_RUN&run_id%E2%80%8B=HER_RUN",
        "run_id=MY_RUN&%72un_id=HER_RUN",
        "run_id=MY_RUN&runId=HER_RUN",
        "run_id=MY_RUN&run_id[]=HER_RUN",
        "run_id=MY_RUN%00",
        "run_id=%C0%80MY_RUN",
        "run_id=MY_RUN&run_id=HER_RUN",
        "run_id=MY_RUN&run_uuid=HER_RUN",
        "run_id=%ff",
        "run_id",
    ],
)
def test_ambiguous_query_is_refused(group: Group, hers: Team, his: Team, query: str) -> None:
    sent = query.replace("MY_RUN", his.run).replace("HER_RUN", hers.run)
    assert raw(group, f"GET {API}/runs/get?{sent}", b"") == 400
    several = f"run_id={hers.run}&run_id={his.run}&metric_key=m"
    assert raw(group, f"GET /ajax-api/2.0/mlflow/metrics/get-history-bulk?{several}", b"") == 200


def test_nul_in_graphql_variables_is_refused(hers: Team, his: Team) -> None:
    query = "query q($data: MlflowGetRunInput!) { mlflowGetRun(input: $data) "
    query += "{ run { info { runUuid } } } }"
    sent = {"query": query, "operationName": "q", "variables": {"data": {"runId": his.run}}}
    status, text = his.tries("POST", "/graphql", sent)
    assert status == 200
    assert json.loads(text)["data"]["mlflowGetRun"]["run"]["info"]["runUuid"] == his.run
    sent["variables"] = {"data": {"runId": his.run, "runId\0": hers.run}}
    assert his.tries("POST", "/graphql", sent)[0] == 400
    for query_of_no_text in (None, 5, {}):
        assert his.tries("POST", "/graphql", {"query": query_of_no_text})[0] == 400


def test_spellings_of_clients_are_accepted(his: Team) -> None:
    """Send camelCase, numbers as texts, NaN, and fields that this MLflow does not have."""
    metrics = [
        {"key": "read", "value": "NaN", "timestamp": "5", "step": 1},
        {"key": "read", "value": 1e300, "timestamp": 9007199254740993, "step": "2", "later": [{}]},
        {"key": "read", "value": "-Infinity", "timestamp": 7.0, "step": 3},
    ]
    his.post(
        "runs/log-batch", runId=his.run, metrics=metrics, params=[], tags=None, unknown={"a": 1}
    )
    address = f"{API}/metrics/get-history?run_id={his.run}&metric_key=read"
    history = json.loads(his.tries("GET", address)[1])["metrics"]
    read = {int(metric["step"]): (metric["value"], int(metric["timestamp"])) for metric in history}
    assert read == {1: ("NaN", 5), 2: (1e300, 9007199254740993), 3: (-sys.float_info.max, 7)}


# What ended in 500, or was accepted


@pytest.mark.parametrize("first", ["Content-Length", "Transfer-Encoding"])
@pytest.mark.parametrize(
    "address",
    [f"POST {API}/runs/set-tag", "PUT FILE", f"GET {API}/runs/get", "GET /ready", "GET /health"],
)
def test_body_with_length_and_chunks_is_refused(
    group: Group, his: Team, address: str, first: str
) -> None:
    sent = TAG.replace("MY_RUN", his.run).encode() if "set-tag" in address else b""
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(sent), sent) if sent else b"0\r\n\r\n"
    both = [f"Content-Length: {len(chunks)}", "Transfer-Encoding: chunked"]
    headers = "\n".join(both if first in both[0] else reversed(both))
    path = address.replace("FILE", his.file)
    assert raw(group, f"{path}\n{JSON}\n{headers}", chunks) == 400
    if sent:
        assert raw(group, f"{path}\n{JSON}\nTransfer-Encoding: chunked", chunks) == 200
    assert his.group.ask("bob", "GET", his.file).content == b"kept"


@pytest.mark.parametrize(
    "below", ["folder", "folder/", "new/", "folder/file/x", "folder/file/x/y", "."]
)
def test_upload_keeps_folders_and_files_apart(group: Group, his: Team, below: str) -> None:
    place = his.file.removesuffix("/note.txt")
    his.group.ask("bob", "PUT", f"{place}/folder/file", data=b"kept").raise_for_status()
    for prefix in routes.PREFIXES:
        address = f"{place.replace('/api', prefix, 1)}/{below}".removesuffix("/.")
        assert raw(group, f"PUT {address}\nContent-Length: 1", b"x") == 400
    assert his.group.ask("bob", "GET", f"{place}/folder/file").content == b"kept"
    listed = his.group.ask("bob", "GET", f"{API}/artifacts/list", params={"run_id": his.run}).json()
    assert {entry["path"] for entry in listed["files"]} == {"folder", "note.txt"}


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
    words = ("bob", group.password("bob"))
    metric = f'{{"key": "refused", "timestamp": 1, "step": 0, "value": {value}}}'
    bodies = {
        "runs/log-metric": metric.replace("{", f'{{"run_id": "{his.run}", ', 1),
        "runs/log-batch": f'{{"run_id": "{his.run}", "metrics": [{metric}]}}',
    }
    for path, body in bodies.items():
        status, text = ask(group, words, "POST", f"{API}/{path}", body.encode())
        assert status == 400, text
        assert json.loads(text)["error_code"] == "INVALID_PARAMETER_VALUE"
    data = his.group.ask("bob", "GET", f"{API}/runs/get?run_id={his.run}").json()["run"]["data"]
    assert "refused" not in {metric["key"] for metric in data.get("metrics", [])}

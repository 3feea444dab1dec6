"""Field names of requests, attacked: what the guard authorises is what MLflow's handler reads."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.deploy.group import Group
from tests.deploy.test_guard import API, Team, ask


@pytest.fixture(scope="module")
def hers(group: Group) -> Team:
    team = Team(group, "alice", "vision")
    if team.tries("GET", f"{API}/registered-models/get?name=vision.kept")[0] != 200:
        team.post("registered-models/create", name="vision.kept")
    return team


@pytest.fixture(scope="module")
def his(group: Group) -> Team:
    team = Team(group, "bob", "speech")
    for name in ("speech.mine", "speech.second"):
        if team.tries("GET", f"{API}/registered-models/get?name={name}")[0] != 200:
            team.post("registered-models/create", name=name)
    return team


def state(hers: Team, his: Team) -> dict[str, Any]:
    """What an attack of his would change."""
    alice = hers.group
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
    seen = {what: alice.ask("alice", "GET", address).json() for what, address in addresses.items()}
    for what, experiment in (("Default's runs", "0"), ("her runs", hers.experiment)):
        sent = {"experiment_ids": [experiment], "run_view_type": "ALL"}
        seen[what] = alice.ask("alice", "POST", f"{API}/runs/search", json=sent).json()
    return seen


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
        '{"run_id": "MY_RUN", "tags": [{"key": "a", "key␀": "mlflow.artifactLocation", "value": "/etc"}]}',
    ),
    "a logged model from a team's run": (
        "POST logged-models",
        '{"experiment_id": "MINE", "name": "m", "source_run_id␀": "HER_RUN"}',
    ),
    "a logged model ended": (
        "PATCH logged-models/MY_MODEL",
        '{"model_id": "MY_MODEL", "model_id␀": "HER_MODEL", "status": "LOGGED_MODEL_UPLOAD_FAILED"}',
    ),
}


def filled(text: str, hers: Team, his: Team) -> str:
    ids = {"MY_MODEL": his.model, "HER_MODEL": hers.model, "MY_RUN": his.run, "HER_RUN": hers.run}
    ids |= {"HERS": hers.experiment, "MINE": his.experiment}
    return re.sub("|".join(ids), lambda name: ids[name[0]], text)


@pytest.mark.parametrize(("route", "body"), ATTACKS.values(), ids=ATTACKS.keys())
def test_a_nul_in_a_field_name_reaches_nothing_of_another_team(
    group: Group, hers: Team, his: Team, route: str, body: str
) -> None:
    before = state(hers, his)
    method, path = filled(route, hers, his).split(" ")
    sent = filled(body, hers, his).replace("␀", "\\u0000").encode()
    assert json.loads(sent), "an escape, so that any parser of JSON reads it"
    status, text = ask(group, ("bob", group.password("bob")), method, f"{API}/{path}", sent)
    assert state(hers, his) == before
    assert status == 400, text
    assert json.loads(text)["error_code"] == "INVALID_PARAMETER_VALUE"

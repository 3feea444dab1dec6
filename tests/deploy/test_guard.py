"""Guard in front of MLflow, attacked on a running server: routes, teams, paths, names, floods."""

from __future__ import annotations

import json
import re
import socket
import statistics
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import mlflow
import psutil
import pytest

from deploy.guard import routes
from deploy.guard.refusal import Reason
from deploy.guard.route_changes import FAILED, SAME, changes
from tests.conftest import ROOT, wait_for
from tests.deploy.group import API, Group, Team, ask

ADDRESSES = count(10)


def check(group: Group, *steps: tuple[str, str, str, object, int]) -> None:
    """Send requests of (user, method, path, JSON), and compare their statuses."""
    for user, method, path, sent, status in steps:
        answer = group.ask(user, method, f"{API}/{path}", json=sent)
        assert answer.status_code == status, (user, path, sent, answer.text)


def address() -> str:
    """Return an unused address: wrong passwords make others at the same address wait."""
    return f"127.0.{next(ADDRESSES)}.1"


def addresses_of(kinds: list[str]) -> Iterator[tuple[str, str]]:
    """Yield method and address of the routes of some kinds, under each prefix."""
    for kind in kinds:
        for line in routes.classes()[kind]:
            method, rule = line.split(" ", 1)
            path = re.sub(r"<[^>]+>", "x", rule)
            for prefix in routes.PREFIXES if routes.API in path else ("",):
                yield method, path.replace(routes.API, prefix)


# Which routes there are


def route_changes(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.guard.route_changes", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


def test_every_route_of_mlflow_is_classified() -> None:
    """After an upgrade of MLflow: classify new routes in routes.toml, remove old ones."""
    done = route_changes()
    assert (done.returncode, done.stderr) == (SAME, ""), done.stdout
    assert f"MLflow {mlflow.__version__}: " in done.stdout


def test_interpreter_without_mlflow_is_refused_in_one_line(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    for python in (tmp_path / "bin" / "python", tmp_path / "nothing"):
        done = route_changes("--python", str(python))
        assert (done.returncode, done.stdout) == (FAILED, "")
        assert len(done.stderr.splitlines()) == 1


def test_changed_routes_and_fields_are_listed() -> None:
    """Give the newer MLflow a route and a field, and take a route and a field away."""
    classes = routes.classes()
    listed = {"Create": ["run_id", "tags"], "Tag": ["key"]}
    create, delete = "POST {api}/2.0/mlflow/runs/create", "POST {api}/2.0/mlflow/runs/delete"
    older = {line: dict[str, list[str]]() for lines in classes.values() for line in lines}
    older[create] = listed
    newer = {**older, create: {"Create": ["parent", "run_id"], "Tag": ["key"]}, "GET /new": {}}
    newer["POST /v1/traces"] = {"Traces": ["experiment"]}  # refused
    del newer[delete]
    assert list(changes(classes, listed, older)) == []
    assert [line.split(":")[0] for line in changes(classes, listed, newer)] == [
        "added    GET /new",
        f"removed  {delete}",
        "changed  Create",
    ]
    (changed,) = (line for line in changes(classes, listed, newer) if line.startswith("changed"))
    assert changed.endswith("; +parent -tags")


def test_traces_workspaces_and_language_models_are_refused() -> None:
    """Offered are only the lists of traces, which the UI requests; they are empty."""
    kinds = {line: kind for kind, lines in routes.classes().items() for line in lines}
    parts = "traces|trace|workspaces|gateway|jobs|webhooks|mcp-servers|scorers|assistant"
    named = re.compile(rf"/(v1|mlflow|3\.0)/({parts})\b")
    matching = {line for line in kinds if named.search(line)}
    assert len(matching) > 100
    assert {line: kinds[line] for line in matching if kinds[line] != routes.REFUSED} == {
        "GET {api}/2.0/mlflow/traces": routes.SEARCH,
        "GET {api}/2.0/mlflow/traces/<request_id>/info": routes.READ,
        "GET {api}/3.0/mlflow/traces/<trace_id>": routes.READ,
        "POST {api}/3.0/mlflow/traces/search": routes.SEARCH,
    }


TRACED = """
import sys, mlflow
mlflow.set_experiment("vision/captioning")
with mlflow.start_run() as run, mlflow.start_span("step"):
    mlflow.log_metric("m", 1)
mlflow.flush_trace_async_logging()
print(run.info.run_id)
"""


@pytest.mark.slow
def test_run_with_traces_finishes_without_them(group: Group, hers: Team) -> None:
    command = [sys.executable, "-W", "ignore", "-c", TRACED]
    done = subprocess.run(
        command, env=group.environment("alice"), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "PERMISSION_DENIED" in done.stderr
    query = {"run_id": done.stdout.split()[-1]}
    answer = group.ask("alice", "GET", f"{API}/runs/get", params=query).json()
    assert answer["run"]["info"]["status"] == "FINISHED"
    sent = {"locations": [{"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {}}]}
    sent["locations"][0]["mlflow_experiment"] = {"experiment_id": hers.experiment}
    traces = group.ask("alice", "POST", "/api/3.0/mlflow/traces/search", json=sent)
    assert (traces.status_code, traces.json()) == (200, {})


def test_unclassified_routes_are_refused(group: Group) -> None:
    unknown = (
        f"{API}/runs/invent",
        "/ajax-api/9.0/mlflow/anything",
        f"/{quote('http://127.0.0.1/')}",
    )
    for path in (*unknown, "//api/2.0/mlflow/runs/get", f"{API}/runs/get/"):
        assert ask(group, ("admin", group.password("admin")), "GET", path)[0] == 403


def test_refused_routes_are_refused_to_administrators(group: Group) -> None:
    """Refuse the assistant, which runs commands of a provider that its user chooses."""
    refused = list(addresses_of([routes.REFUSED]))
    answers = {line: group.ask("admin", *line, json={}) for line in refused}
    assert len(answers) > 250
    assert ("PUT", "/ajax-api/3.0/mlflow/assistant/config") in answers
    reasons = {line: (answer.status_code, answer.text) for line, answer in answers.items()}
    assert {line: text for line, text in reasons.items() if text[0] != 403} == {}
    texts = {text for line, (_, text) in reasons.items() if line[0] != "HEAD"}
    assert {json.loads(text)["reason"] for text in texts} == {Reason.NOT_OFFERED}
    assert group.ask("alice", *refused[0], json={}).status_code == 403


def test_without_a_password_only_health_and_ready_are_open(group: Group) -> None:
    closed = [kind for kind in routes.classes() if kind != routes.OPEN]
    results = {
        (method, path): ask(group, None, method, path)[0] for method, path in addresses_of(closed)
    }
    assert len(results) > 500
    assert {line: status for line, status in results.items() if status != 401} == {}
    assert ask(group, None, "GET", "/health") == (200, "OK")
    assert ask(group, None, "GET", "/ready") == (200, "ready\n")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "localhost.evil.example:80"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1234"},
        {"Origin": "http://127.0.0.1:9"},
    ],
)
def test_forged_hosts_and_origins_are_refused(group: Group, headers: dict[str, str]) -> None:
    sent = {"experiment_ids": ["0"]}
    answer = group.ask("alice", "POST", f"{API}/runs/search", json=sent, headers=headers)
    assert answer.status_code == 403


# Whose things are whose


def test_synonyms_reach_no_file_of_another_team(hers: Team, his: Team) -> None:
    for query in (
        f"run_id={his.run}&run_uuid={hers.run}",
        f"run_uuid={hers.run}",
        f"run_id={his.run}&run_id={hers.run}",
    ):
        for prefix in routes.PREFIXES:
            path = f"{prefix}/2.0/mlflow/upload-artifact?{query}&path=note.txt"
            assert his.group.ask("bob", "POST", path, data=b"his").status_code in (400, 403)
    for method in ("PUT", "DELETE"):
        body = {"data": b"his"} if method == "PUT" else {}
        assert his.group.ask("bob", method, hers.file, **body).status_code == 403
    assert his.group.ask("bob", "GET", hers.file).content == b"kept"


POINT = {"key": "m", "value": 1, "timestamp": 1}
PASSWORD = "long enough password"


WRITES: list[tuple[str, str, dict[str, Any]]] = [
    (
        "PATCH",
        "logged-models/MY_MODEL",
        {"model_id": "HER_MODEL", "status": "LOGGED_MODEL_READY"},
    ),
    (
        "PATCH",
        "logged-models/MY_MODEL",
        {"modelId": "HER_MODEL", "status": "LOGGED_MODEL_READY"},
    ),
    (
        "PATCH",
        "logged-models/MY_MODEL/tags",
        {"model_id": "HER_MODEL", "tags": [{"key": "a", "value": "b"}]},
    ),
    (
        "POST",
        "logged-models",
        {"experiment_id": "MINE", "name": "m", "source_run_id": "HER_RUN"},
    ),
    ("POST", "model-versions/create", {"name": "speech.m", "source": "models:/HER_MODEL"}),
    (
        "POST",
        "model-versions/create",
        {"name": "speech.m", "source": "runs:/MY_RUN/m", "model_id": "HER_MODEL"},
    ),
    (
        "POST",
        "model-versions/create",
        {"name": "speech.m", "source": "mlflow-artifacts:/HERS/x/artifacts/m"},
    ),
    (
        "POST",
        "model-versions/create",
        {"name": "speech.m", "source": "models:/vision.captioner/1"},
    ),
    (
        "POST",
        "registered-models/set-tag",
        {"name": "vision.captioner", "key": "a", "value": "b"},
    ),
    ("POST", "runs/log-metric", {"run_id": "MY_RUN", "run_uuid": "HER_RUN", **POINT}),
    ("POST", "runs/log-metric", {"run_id": "MY_RUN", "runId": "HER_RUN", **POINT}),
    ("POST", "runs/log-metric", {"run_id": "MY_RUN", **POINT, "model_id": "HER_MODEL"}),
    (
        "POST",
        "runs/log-batch",
        {"run_id": "MY_RUN", "metrics": [{**POINT, "step": 0, "model_id": "HER_MODEL"}]},
    ),
    ("POST", "runs/log-batch", {"run_id": "HER_RUN", "params": [{"key": "a", "value": "b"}]}),
    ("POST", "runs/set-tag", {"run_id": "HER_RUN", "key": "team", "value": "speech"}),
    ("POST", "runs/set-tag?run_id=HER_RUN", {"run_id": "MY_RUN", "key": "a", "value": "b"}),
    ("POST", "runs/set-tag", {"run_id": ["HER_RUN"], "key": "a", "value": "b"}),
    (
        "POST",
        "runs/outputs",
        {"run_id": "MY_RUN", "models": [{"model_id": "HER_MODEL", "step": 0}]},
    ),
    ("POST", "runs/create", {"experiment_id": "HERS"}),
    ("POST", "runs/update", {"run_id": "HER_RUN", "status": "FINISHED"}),
    ("POST", "runs/delete", {"run_id": "HER_RUN"}),
    ("POST", "experiments/delete", {"experiment_id": "HERS"}),
    (
        "POST",
        "experiments/set-experiment-tag",
        {"experiment_id": "HERS", "key": "mlflow.note.content", "value": "x"},
    ),
    ("POST", "users/create", {"username": "eve", "password": PASSWORD}),
    ("PATCH", "users/update-password", {"username": "alice", "password": PASSWORD}),
    ("PATCH", "users/update-admin", {"username": "bob", "is_admin": True}),
]


def test_writes_to_another_team_are_refused(hers: Team, his: Team) -> None:
    ids = {"MY_MODEL": his.model, "HER_MODEL": hers.model, "MY_RUN": his.run, "HER_RUN": hers.run}
    ids |= {"HERS": hers.experiment, "MINE": his.experiment}
    local = [f"{API}/logged-models/{hers.model}", f"{API}/runs/get?run_id={hers.run}"]
    local += [f"{API}/experiments/get?experiment_id={hers.experiment}", f"{API}/users/current"]

    def filled(text: str) -> str:
        return re.sub("|".join(ids), lambda match: ids[match[0]], text)

    before = [hers.group.ask("alice", "GET", place).text for place in local]
    for method, path, sent in WRITES:
        body = json.loads(filled(json.dumps(sent)))
        status, text = his.tries(method, filled(f"{API}/{path}"), body)
        assert status in (400, 403), (path, sent, text)
    assert [hers.group.ask("alice", "GET", place).text for place in local] == before


def test_team_writes_its_things(group: Group, hers: Team) -> None:
    metric = {"key": "m", "value": 1.0, "timestamp": 1, "step": 0, "model_id": hers.model}
    batch = {"run_id": hers.run, "metrics": [metric], "tags": [{"key": "a", "value": "b"}]}
    ready = {"model_id": hers.model, "status": "LOGGED_MODEL_READY"}
    version = {"source": f"models:/{hers.model}", "model_id": hers.model}
    inputs = {"run_id": hers.run, "models": [{"model_id": hers.model}]}
    check(
        group,
        ("alice", "POST", "runs/log-batch", batch, 200),
        ("alice", "PATCH", f"logged-models/{hers.model}", ready, 200),
        ("alice", "POST", "registered-models/create", {"name": "vision.captioner"}, 200),
        ("alice", "POST", "model-versions/create", {"name": "vision.captioner", **version}, 200),
        ("alice", "POST", "runs/log-inputs", inputs, 200),
    )


def test_link_of_a_version_leads_to_the_web(group: Group, hers: Team) -> None:
    links = {"javascript:alert(1)": 400, " JavaScript:x": 400, "data:text/html,x": 400}
    links |= {"https://a b": 400, "https://example.org/#/runs/1": 200}
    source = {"source": f"models:/{hers.model}", "model_id": hers.model}
    version = {"name": "vision.linked", **source}
    check(group, ("alice", "POST", "registered-models/create", {"name": "vision.linked"}, 200))
    for field in ("run_link", "runLink"):
        for link, code in links.items():
            sent = {**version, field: link}
            check(group, ("alice", "POST", "model-versions/create", sent, code))


# Where files lie


@pytest.mark.parametrize(
    "source",
    [
        "/etc",
        "file:///etc",
        "mlflow-artifacts:/1/../../etc",
        "mlflow-artifacts:/store.db",
        "mlflow-artifacts:/.evenhand/accounts",
        "http://127.0.0.1/x",
        "dbfs:/x",
        "runs:/x",
        "models:/a",
    ],
)
def test_locations_outside_the_artifacts_are_refused(group: Group, hers: Team, source: str) -> None:
    tag = {"experiment_id": hers.experiment, "key": "mlflow.artifactLocation", "value": source}
    places = [{name: source} for name in ("artifact_location", "artifactLocation")]
    creations = [
        (user, "POST", "experiments/create", {"name": "vision/elsewhere", **place}, 400)
        for user in ("alice", "admin")
        for place in places
    ]
    check(
        group,
        *creations,
        ("alice", "POST", "model-versions/create", {"name": "vision.m", "source": source}, 400),
        ("alice", "POST", "experiments/set-experiment-tag", tag, 400),
    )


@pytest.mark.parametrize(
    "path",
    [
        "../../../../../../etc/passwd",
        "..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
        "..%252f..%252fetc%252fpasswd",
        "%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "%2fetc%2fpasswd",
        "/etc/passwd",
        "file:///etc/passwd",
        "..\\..\\..\\etc\\passwd",
        "a/../../../secrets.json",
        "..%2f..%2f..%2f..%2f..%2fsecrets.json",
        "a//b",
        "a/./b",
        "a\\b",
        "a%00b",
        "a%250ab",
        "a" * 300,
        "a/" * 70 + "a",
    ],
)
def test_paths_lead_to_no_other_file(group: Group, hers: Team, path: str) -> None:
    words, secrets = ("alice", group.password("alice")), group.folder / "secrets.json"
    artifacts, before = "/api/2.0/mlflow-artifacts/artifacts", secrets.read_bytes()
    inside = f"{artifacts}/{hers.experiment}/{hers.run}/artifacts"
    for method in ("GET", "PUT", "DELETE"):
        body = b"x" if method == "PUT" else b""
        status, _ = ask(group, words, method, f"{inside}/{path}", body)
        assert status in (400, 403), method
    for place in (f"{artifacts}/{path}", f"/get-artifact?run_id={hers.run}&path={path}"):
        status, text = ask(group, words, "GET", place)
        assert status >= 400, place
        assert "root:" not in text
    assert secrets.read_bytes() == before
    listed = group.ask(
        "alice", "GET", f"{API}/artifacts/list", params={"run_id": hers.run, "path": path}
    )
    assert "passwd" not in listed.text or listed.status_code >= 400


OTHER_PATHS = [
    "",
    "store.db",
    ".evenhand",
    ".evenhand/accounts/alice.env",
    "EXPERIMENT",
    "EXPERIMENT/store.db",
    "EXPERIMENT/RUN",
    "EXPERIMENT/RUN/store.db",
    "EXPERIMENT/models/store.db",
    "EXPERIMENT/models/RUN/artifacts/store.db",
    "EXPERIMENT/x/artifacts/store.db",
    "x/RUN/artifacts/store.db",
    "EXPERIMENT/RUN/artifactsstore.db",
]


@pytest.mark.parametrize("form", OTHER_PATHS)
def test_files_in_other_places_are_neither_listed_nor_sent(
    group: Group, hers: Team, form: str
) -> None:
    """Ask for files below the folder of artifacts that are no run's or model's."""
    path = form.replace("EXPERIMENT", hers.experiment).replace("RUN", hers.run)
    artifacts = "/api/2.0/mlflow-artifacts/artifacts"
    place = group.folder / "artifacts" / path
    if is_file := bool(place.suffix) and place.parent.exists():
        place.write_text("secret")
    answers = [group.ask("alice", "GET", artifacts, params={"path": path})]
    if path:
        methods = {"GET": {}, "PUT": {"data": b"x"}, "DELETE": {}}
        answers += [
            group.ask("alice", method, f"{artifacts}/{path}", **body)
            for method, body in methods.items()
        ]
    reasons = {(answer.status_code, answer.json()["reason"]) for answer in answers}
    assert reasons == {(400, Reason.INVALID)}
    if is_file:
        assert place.read_text() == "secret"


# Whose a name is


@pytest.mark.parametrize(
    "name",
    [
        "speech/mine",
        "speech /x",
        " speech/x",
        "speech/x ",
        "ѕpeech/x",
        "ｓpeech/x",
        "speech\u200b/x",
        "Speech/x",
        "vision",
        "future/captioning",
        "mine",
        "vision/",
        "vision//x",
        "vision/ x",
        "vision/x\n",
        "vision/\u202ex",
        "/vision/x",
        "vision/a  b",
        "vision\x00/x",
        "vision/" + "x" * 250,
        "",
        "vision/ﬁt",
    ],
    ids=ascii,
)
def test_names_of_other_teams_and_look_alikes_are_refused(
    group: Group, hers: Team, name: str
) -> None:
    assert hers.tries("POST", f"{API}/experiments/create", {"name": name})[0] in (400, 403)
    named = {"experiment_name": "vision/grid"}
    grid = group.ask("alice", "GET", f"{API}/experiments/get-by-name", params=named).json()
    renamed = {"experiment_id": grid["experiment"]["experiment_id"], "new_name": name}
    assert hers.tries("POST", f"{API}/experiments/update", renamed)[0] in (400, 403)
    model = {"name": name.replace("/", ".")}
    assert hers.tries("POST", f"{API}/registered-models/create", model)[0] in (400, 403)


def test_team_owns_what_its_members_create(group: Group) -> None:
    done = group.admin(action="add_user", user="anna", team="vision")
    assert done.returncode == 0, done.stderr
    name = {"name": "vision/my study"}
    made = group.ask("anna", "POST", f"{API}/experiments/create", json=name).json()
    tag = {"experiment_id": made["experiment_id"], "key": "a", "value": "b"}
    model, renamed = {"name": "vision.anna"}, {"name": "vision.anna2"}
    prompt = {"name": "vision.p", "tags": [{"key": "mlflow.prompt.is_prompt", "value": "true"}]}
    rename = {**model, "new_name": "vision.anna2"}
    check(
        group,
        ("alice", "POST", "experiments/set-experiment-tag", tag, 200),
        ("anna", "POST", "registered-models/create", model, 200),
        ("alice", "POST", "registered-models/set-tag", {**tag, **model}, 200),
        ("anna", "POST", "registered-models/rename", rename, 200),
        ("alice", "POST", "registered-models/set-tag", {**tag, **renamed}, 200),
        ("anna", "POST", "registered-models/create", model, 200),
        ("anna", "POST", "registered-models/create", prompt, 400),
    )
    assert group.admin(action="leave", user="anna", team="vision").returncode == 0
    check(
        group,
        ("anna", "POST", "registered-models/set-tag", {**tag, **renamed}, 403),
        ("anna", "DELETE", "registered-models/delete", model, 403),
        ("anna", "POST", "experiments/set-experiment-tag", tag, 403),
        ("anna", "POST", "experiments/create", {"name": "vision/again"}, 403),
        ("anna", "POST", "experiments/create", {"name": "anna/x"}, 403),
    )


def test_add_team_refuses_a_strangers_experiment(group: Group) -> None:
    name = {"name": "future/captioning"}
    made = group.ask("admin", "POST", f"{API}/experiments/create", json=name).json()
    grant = {"username": "carol", "resource_type": "experiment", "permission": "MANAGE"}
    grant["resource_id"] = made["experiment_id"]
    permissions = "/api/3.0/mlflow/users/permissions"
    group.ask("admin", "POST", f"{permissions}/grant", json=grant).raise_for_status()
    refused = group.admin(action="add_team", team="future")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
    assert "future/captioning is carol's" in refused.stderr
    assert "future" not in group.admin(action="list").stdout.replace("future/captioning", "")


def test_members_delete_no_runs_in_the_experiments_of_add_team(group: Group, hers: Team) -> None:
    """A team's own grant limits what its name permits; another team's opens one experiment."""
    made = hers.post("experiments/create", name="vision/granted")
    run = hers.post("runs/create", **made)["run"]["info"]
    grant = {"action": "grant", "team": "text", "experiment": "vision/granted"}
    assert group.admin(**grant, permission="EDIT").returncode == 0
    tag = {"run_id": run["run_id"], "key": "a", "value": "b"}
    check(
        group,
        ("alice", "POST", "runs/delete", {"run_id": hers.run}, 403),
        ("carol", "POST", "runs/set-tag", tag, 200),
        ("carol", "POST", "runs/delete", {"run_id": run["run_id"]}, 403),
        ("bob", "POST", "runs/set-tag", tag, 403),
        ("alice", "POST", "runs/delete", {"run_id": run["run_id"]}, 200),
    )


def test_default_is_read_only(group: Group, hers: Team) -> None:
    status, text = hers.tries("POST", f"{API}/runs/create", {"experiment_id": "0"})
    assert status == 403
    assert "MLFLOW_EXPERIMENT_NAME=vision/launches" in text
    file = f"/api/2.0/mlflow-artifacts/artifacts/0/{hers.run}/artifacts/y"
    assert hers.tries("PUT", file)[0] == 403
    check(group, ("alice", "POST", "runs/search", {"experiment_ids": ["0"]}, 200))


@pytest.mark.parametrize(
    "name", ["Vision", "vision ", "ѵision", "__user_1__", "a", "x" * 41, "../x"], ids=ascii
)
def test_names_of_teams_and_users_are_plain(group: Group, name: str) -> None:
    role = {"name": name, "workspace": "default"}
    assert group.ask("admin", "POST", "/api/3.0/mlflow/roles/create", json=role).status_code == 400
    if not re.fullmatch("Vision|x+", name):
        user = {"username": name, "password": "long enough for it"}
        assert group.ask("admin", "POST", f"{API}/users/create", json=user).status_code == 400


def test_ui_addresses_return_files(hers: Team) -> None:
    sent = b"<p>100% sure</p>"
    path = quote("100% sure.html")
    hers.group.ask(
        "alice", "PUT", f"{hers.file.rpartition('/')[0]}/{path}", data=sent
    ).raise_for_status()
    for name in ("run_id", "run_uuid"):
        answer = hers.group.ask("bob", "GET", f"/get-artifact?{name}={hers.run}&path={path}")
        assert (answer.status_code, answer.content) == (200, sent)
    model = f"mlflow-artifacts/artifacts/{hers.experiment}/models/{hers.model}/artifacts/MLmodel"
    hers.group.ask("alice", "PUT", f"/api/2.0/{model}", data=sent).raise_for_status()
    files = f"/ajax-api/2.0/mlflow/logged-models/{hers.model}/artifacts/files"
    files += "?artifact_file_path=MLmodel"
    assert hers.group.ask("bob", "GET", files).content == sent
    for wrong in (
        f"run_id={hers.run}&path=../x",
        f"run_id={'0' * 32}&path=x",
        f"run_id={hers.run}",
        "path=x",
    ):
        assert hers.group.ask("bob", "GET", f"/get-artifact?{wrong}").status_code in (400, 404)


def test_slow_readers_of_a_large_file_cost_no_memory(group: Group, hers: Team) -> None:
    large = f"{hers.file.rpartition('/')[0]}/large.bin"
    group.ask("alice", "PUT", large, data=bytes(64 * 2**20)).raise_for_status()
    before = resident_bytes(group)
    words = b64encode(f"bob:{group.password('bob')}".encode()).decode()
    with ExitStack() as held:
        for _ in range(4):
            reader = held.enter_context(
                socket.create_connection(("127.0.0.1", int(group.uri.rpartition(":")[2])), 10)
            )
            head = f"GET /get-artifact?run_id={hers.run}&path=large.bin HTTP/1.1\r\n"
            head += f"Host: {urlsplit(group.uri).netloc}\r\n"
            reader.sendall(f"{head}Authorization: Basic {words}\r\n\r\n".encode())
        time.sleep(3)
        assert resident_bytes(group) - before < 32 * 2**20


# Floods


def resident_bytes(group: Group) -> int:
    main = psutil.Process(int((group.folder / "server.pid").read_text()))
    return sum(item.memory_info().rss for item in (main, *main.children(recursive=True)))


def test_body_is_not_read_before_the_password(group: Group) -> None:
    before, chunk = resident_bytes(group), b"x" * 2**20
    for words in ("", f"Authorization: Basic {b64encode(b'nobody:guess').decode()}\r\n"):
        with socket.create_connection(
            ("127.0.0.1", int(group.uri.rpartition(":")[2])), 10, (address(), 0)
        ) as connection:
            head = "PUT /api/2.0/mlflow-artifacts/artifacts/0/x HTTP/1.1\r\n"
            head += f"Host: {urlsplit(group.uri).netloc}\r\n"
            connection.sendall(f"{head}{words}Content-Length: {500 * 2**20}\r\n\r\n".encode())
            sent = 0
            try:
                while sent < 500:
                    connection.sendall(chunk)
                    sent += 1
            except OSError:
                pass
            assert sent < 100, "the server went on taking it"
    assert resident_bytes(group) - before < 32 * 2**20


def test_bodies_are_bounded(group: Group) -> None:
    words = ("alice", group.password("alice"))
    before = resident_bytes(group)
    body = b'{"run_id": "' + b"x" * 5 * 2**20 + b'"}'
    assert ask(group, words, "POST", f"{API}/runs/log-batch", body)[0] == 413
    connection = HTTPConnection(urlsplit(group.uri).netloc, timeout=30)
    file = f"/api/2.0/mlflow-artifacts/artifacts/1/{'0' * 32}/artifacts/y"
    connection.putrequest("PUT", file)
    connection.putheader("Authorization", f"Basic {b64encode(':'.join(words).encode()).decode()}")
    connection.putheader("Content-Length", str(3 * 2**30))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    assert resident_bytes(group) - before < 64 * 2**20


COSTLY: dict[str, tuple[str, object]] = {
    "a table for every condition": (
        "runs/search",
        {"filter": " and ".join(f"metrics.a{n} > 1" for n in range(300))},
    ),
    "a long filter": ("runs/search", {"filter": "tags.a = '" + "x" * 5_000 + "'"}),
    "many orders": ("runs/search", {"order_by": [f"metrics.a{n}" for n in range(50)]}),
    "many ids": ("runs/set-tag", {"a": [{"run_id": str(n)} for n in range(3_000)]}),
    "many names": ("runs/set-tag", {f"a{n}": 0 for n in range(100_000)}),
    "a search of a megabyte": ("runs/search", {"experiment_ids": ["1" * 2**20]}),
    "a run that there is not": ("runs/set-tag", {"run_id": "0" * 32, "key": "a", "value": "b"}),
    "a NUL": ("runs/set-tag", {"run_id": "a\0b", "key": "a", "value": "b"}),
}


@pytest.mark.parametrize(("path", "sent"), COSTLY.values(), ids=COSTLY.keys())
def test_costly_requests_are_refused_early(hers: Team, path: str, sent: object) -> None:
    begun = time.monotonic()
    assert hers.tries("POST", f"{API}/{path}", sent)[0] in (400, 404, 413)
    assert time.monotonic() - begun < 5


def test_many_wrong_passwords_at_once_are_counted(group: Group) -> None:
    source = address()

    def guess(number: int) -> int:
        return ask(group, ("alice", f"guess {number}"), "GET", "/", source=source)[0]

    with ThreadPoolExecutor(40) as crowd:
        guesses = list(crowd.map(guess, range(40)))
    assert guesses.count(401) <= 2 * 6, "five are free on each worker, and the one that waits"
    assert set(guesses) <= {401, 429, 503}


def test_right_password_on_many_connections_is_accepted(group: Group) -> None:
    """Log in as a machine's campaigns do, all with one account."""
    words, source = ("newcomer", "long enough for it"), address()
    sent = {"username": words[0], "password": words[1]}
    group.ask("admin", "POST", f"{API}/users/create", json=sent).raise_for_status()

    with ThreadPoolExecutor(24) as crowd:
        request = group, words, "GET", f"{API}/users/current"
        answers = crowd.map(lambda _: ask(*request, source=source), range(24))
        assert {status for status, *_ in answers} == {200}


@pytest.mark.parametrize(
    "words",
    [("a\0b", "c"), ("a" * 300, "c"), ("alice", "\x1b"), ("", "c"), ("alice", "")],
    ids=ascii,
)
def test_malformed_names_and_passwords_are_refused(group: Group, words: tuple[str, str]) -> None:
    assert ask(group, words, "GET", "/", source=address())[0] == 401


def test_flood_of_wrong_passwords_stops_no_user(group: Group) -> None:
    words = ("alice", group.password("alice"))
    results = {ask(group, words, "GET", f"{API}/users/current")[0] for _ in range(4)}
    assert results == {200}, "both workers know her"

    def guess(n: int) -> int:
        return ask(group, (f"nobody{n}", "guess"), "GET", "/", source=address())[0]

    with ThreadPoolExecutor(16) as crowd:
        flood = [crowd.submit(guess, n) for n in range(32)]
        waits = []
        while not all(item.done() for item in flood):
            begun = time.monotonic()
            assert ask(group, words, "GET", f"{API}/users/current")[0] == 200
            waits.append(time.monotonic() - begun)
        assert {item.result() for item in flood} <= {401, 503}
    assert max(waits) < 5, "sixteen guesses at once stopped the server for fifteen seconds"


def test_unknown_names_take_as_long_as_wrong_passwords(group: Group) -> None:
    """Interleave both, so that a busy machine slows both; without the dummy hash it is 10."""
    taken: dict[str, list[float]] = {"bob": [], "nobody": []}
    for n in range(8):
        for user, times in taken.items():
            source, begun = address(), time.perf_counter()
            assert ask(group, (user, f"guess {n}"), "GET", "/", source=source)[0] == 401
            times.append(time.perf_counter() - begun)
    assert 0.5 < statistics.median(taken["bob"]) / statistics.median(taken["nobody"]) < 2


def test_silent_connections_end(group: Group) -> None:
    port, source = int(group.uri.rpartition(":")[2]), address()
    with ExitStack() as held:
        silent = [
            held.enter_context(socket.create_connection(("127.0.0.1", port), 10, (source, 0)))
            for _ in range(300)
        ]
        for item in silent[::2]:
            item.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        assert ask(group, None, "GET", "/health")[0] == 200

        def is_closed(item: socket.socket) -> bool:
            item.setblocking(False)
            try:
                return item.recv(1) == b""
            except BlockingIOError:
                return False
            except OSError:
                return True

        wait_for(lambda: all(is_closed(item) for item in silent), 20)

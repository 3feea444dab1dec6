"""Guard in front of MLflow, attacked on a running server: routes, teams, paths, names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import mlflow
import pytest

from deploy.guard import routes
from deploy.guard.refusal import Reason
from deploy.guard.route_changes import FAILED, SAME, changes
from tests import warm
from tests.conftest import ROOT
from tests.deploy.group import API, FILES, Group, Team, send


def addresses_of(kinds: set[str]) -> Iterator[tuple[str, str]]:
    """Yield method and address of the routes of some kinds, under each prefix."""
    for line in (line for kind in kinds for line in routes.classes()[kind]):
        method, rule = line.split(" ", 1)
        path = re.sub(r"<[^>]+>", "x", rule)
        for prefix in routes.PREFIXES if routes.API in path else ("",):
            yield method, path.replace(routes.API, prefix)


# Which routes there are


ROUTE_CHANGES = ("-m", "deploy.guard.route_changes")


def test_every_route_of_mlflow_is_classified() -> None:
    """After an upgrade of MLflow: classify new routes in routes.toml, remove old ones."""
    done = warm.run((sys.executable, *ROUTE_CHANGES), os.environ, ROOT)
    assert (done.returncode, done.stderr) == (SAME, ""), done.stdout
    assert f"MLflow {mlflow.__version__}: " in done.stdout


def test_interpreter_without_mlflow_is_refused_in_one_line(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    command = [tmp_path / "bin" / "python", *ROUTE_CHANGES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (FAILED, "", 1)


def test_changed_routes_and_fields_are_listed() -> None:
    """Give the newer MLflow a route and a field, and take a route and a field away."""
    create, refused = "POST {api}/2.0/mlflow/runs/create", "POST /v1/traces"
    classes = {routes.WRITE: [create, "POST /old"], routes.REFUSED: [refused]}
    listed = {"Create": ["run_id", "tags"], "Tag": ["key"]}
    older = {create: listed, "POST /old": {}, refused: {}}
    newer = {create: {**listed, "Create": ["parent", "run_id"]}, "GET /new": {}}
    newer[refused] = {"Traces": ["experiment"]}
    assert list(changes(classes, listed, older)) == []
    added, removed, changed = changes(classes, listed, newer)
    assert added.startswith("added    GET /new:")
    assert removed.startswith("removed  POST /old:")
    assert re.fullmatch("changed  Create: .*; [+]parent -tags", changed)


def test_traces_workspaces_and_language_models_are_refused() -> None:
    """Offered are only the lists of traces, which the UI requests; they are empty."""
    parts = "traces|trace|workspaces|gateway|jobs|webhooks|mcp-servers|scorers|assistant"
    named = re.compile(rf"/(v1|mlflow|3\.0)/({parts})\b")
    kinds = {line: kind for kind, lines in routes.classes().items() for line in lines}
    offered = {line for line, kind in kinds.items() if kind != routes.REFUSED}
    assert {line for line in offered if named.search(line)} == {
        "GET {api}/2.0/mlflow/traces",
        "GET {api}/2.0/mlflow/traces/<request_id>/info",
        "GET {api}/3.0/mlflow/traces/<trace_id>",
        "POST {api}/3.0/mlflow/traces/search",
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
    done = subprocess.run(command, env=group.environment("alice"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PERMISSION_DENIED" in done.stderr
    answer = group.ask("alice", "GET", f"runs/get?run_id={done.stdout.split()[-1]}").json()
    assert answer["run"]["info"]["status"] == "FINISHED"
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": hers.experiment}}
    assert group.post("alice", "/api/3.0/mlflow/traces/search", locations=[place]) == {}


UNKNOWN = ["runs/invent", "/ajax-api/9.0/mlflow/anything", f"/{quote('http://127.0.0.1/')}"]
UNKNOWN += ["//api/2.0/mlflow/runs/get", "runs/get/"]


def test_refused_routes_are_refused_to_administrators(group: Group) -> None:
    """Refuse the assistant, which runs commands of a provider that its user chooses."""
    refused = list(addresses_of({routes.REFUSED}))
    assert len(refused) > 250
    assert ("PUT", "/ajax-api/3.0/mlflow/assistant/config") in refused
    for line in (*refused, *(("GET", path) for path in UNKNOWN)):
        answer = group.ask("admin", *line, json={})
        assert answer.status_code == 403, line
        assert line[0] == "HEAD" or answer.json()["reason"] == Reason.NOT_OFFERED
    assert group.ask("alice", *refused[0], json={}).status_code == 403


def test_without_a_password_only_health_and_ready_are_open(group: Group) -> None:
    closed = list(addresses_of(set(routes.classes()) - {routes.OPEN}))
    assert len(closed) > 500
    statuses = {line: send(group, " ".join(line))[0] for line in closed}
    assert {line: status for line, status in statuses.items() if status != 401} == {}
    assert send(group, "GET /health") == (200, "OK")
    assert send(group, "GET /ready") == (200, "ready\n")


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
    answer = group.ask("alice", "POST", "runs/search", json=sent, headers=headers)
    assert answer.status_code == 403


# Whose things are whose


# Method, path and body of requests of a member of another team.
WRITES: list[tuple[str, str, str]] = [
    (
        "PATCH",
        "logged-models/MY_MODEL",
        '{"model_id": "HER_MODEL", "status": "LOGGED_MODEL_READY"}',
    ),
    ("PATCH", "logged-models/MY_MODEL", '{"modelId": "HER_MODEL", "status": "LOGGED_MODEL_READY"}'),
    (
        "PATCH",
        "logged-models/MY_MODEL/tags",
        '{"model_id": "HER_MODEL", "tags": [{"key": "a", "value": "b"}]}',
    ),
    ("POST", "logged-models", '{"experiment_id": "MINE", "name": "m", "source_run_id": "HER_RUN"}'),
    ("POST", "model-versions/create", '{"name": "speech.m", "source": "models:/HER_MODEL"}'),
    (
        "POST",
        "model-versions/create",
        '{"name": "speech.m", "source": "runs:/MY_RUN/m", "model_id": "HER_MODEL"}',
    ),
    (
        "POST",
        "model-versions/create",
        '{"name": "speech.m", "source": "mlflow-artifacts:/HERS/x/artifacts/m"}',
    ),
    (
        "POST",
        "model-versions/create",
        '{"name": "speech.m", "source": "models:/vision.captioner/1"}',
    ),
    ("POST", "registered-models/set-tag", '{"name": "vision.captioner", "key": "a", "value": "b"}'),
    (
        "POST",
        "runs/log-metric",
        '{"run_id": "MY_RUN", "run_uuid": "HER_RUN", "key": "m", "value": 1, "timestamp": 1}',
    ),
    (
        "POST",
        "runs/log-metric",
        '{"run_id": "MY_RUN", "runId": "HER_RUN", "key": "m", "value": 1, "timestamp": 1}',
    ),
    (
        "POST",
        "runs/log-metric",
        '{"run_id": "MY_RUN", "key": "m", "value": 1, "timestamp": 1, "model_id": "HER_MODEL"}',
    ),
    (
        "POST",
        "runs/log-batch",
        '{"run_id": "MY_RUN", "metrics": [{"key": "m", "value": 1, "timestamp": 1, '
        '"step": 0, "model_id": "HER_MODEL"}]}',
    ),
    ("POST", "runs/log-batch", '{"run_id": "HER_RUN", "params": [{"key": "a", "value": "b"}]}'),
    ("POST", "runs/set-tag", '{"run_id": "HER_RUN", "key": "team", "value": "speech"}'),
    ("POST", "runs/set-tag?run_id=HER_RUN", '{"run_id": "MY_RUN", "key": "a", "value": "b"}'),
    ("POST", "runs/set-tag", '{"run_id": ["HER_RUN"], "key": "a", "value": "b"}'),
    (
        "POST",
        "runs/outputs",
        '{"run_id": "MY_RUN", "models": [{"model_id": "HER_MODEL", "step": 0}]}',
    ),
    ("POST", "runs/create", '{"experiment_id": "HERS"}'),
    ("POST", "runs/update", '{"run_id": "HER_RUN", "status": "FINISHED"}'),
    ("POST", "runs/delete", '{"run_id": "HER_RUN"}'),
    ("POST", "experiments/delete", '{"experiment_id": "HERS"}'),
    (
        "POST",
        "experiments/set-experiment-tag",
        '{"experiment_id": "HERS", "key": "mlflow.note.content", "value": "x"}',
    ),
    ("POST", "users/create", '{"username": "eve", "password": "long enough password"}'),
    ("PATCH", "users/update-password", '{"username": "alice", "password": "long enough password"}'),
    ("PATCH", "users/update-admin", '{"username": "bob", "is_admin": true}'),
    ("POST", "upload-artifact?run_id=MY_RUN&run_uuid=HER_RUN&path=note.txt", "x"),
    ("POST", "/ajax-api/2.0/mlflow/upload-artifact?run_uuid=HER_RUN&path=note.txt", "x"),
    ("PUT", "HER_FILE", "his"),
    ("DELETE", "HER_FILE", ""),
    (
        "POST",
        "runs/set-tag",
        '{"run_id": "MY_RUN", "run_id\\u0000": "HER_RUN", "key": "a", "value": "b"}',
    ),
    (
        "POST",
        "runs/log-batch",
        '{"run_id": "MY_RUN", "metrics": [{"key": "m", "value": 1, "timestamp": 1, '
        '"model_id\\u0000": "HER_MODEL"}]}',
    ),
    ("POST", "runs/create", '{"experiment_id": "MINE", "experiment_id\\u0000": "0"}'),
    (
        "POST",
        "experiments/update",
        '{"experiment_id": "MINE", "new_name": "speech/x", "new_name\\u0000": "vision/stolen"}',
    ),
    (
        "DELETE",
        "registered-models/delete",
        '{"name": "speech.second", "name\\u0000": "vision.captioner"}',
    ),
]


@pytest.fixture(scope="module")
def state(group: Group, hers: Team) -> Callable[[], list[str]]:
    """Return a function that returns everything that an attack would change."""
    version = {
        "name": "vision.captioner",
        "source": f"models:/{hers.model}",
        "model_id": hers.model,
    }
    group.check(
        ("alice", "POST", "registered-models/create", {"name": "vision.captioner"}, 200),
        ("alice", "POST", "model-versions/create", version, 200),
        ("bob", "POST", "registered-models/create", {"name": "speech.second"}, 200),
    )
    paths = [f"logged-models/{hers.model}", f"runs/get?run_id={hers.run}", "users/current"]
    paths += [
        f"registered-models/get?name={name}" for name in ("vision.captioner", "speech.second")
    ]
    paths += ["experiments/search?max_results=1000", hers.file]
    return lambda: [group.ask("alice", "GET", path).text for path in paths]


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
def test_writes_to_another_team_are_refused(
    group: Group,
    fill: Callable[[str], str],
    state: Callable[[], list[str]],
    method: str,
    path: str,
    body: str,
) -> None:
    before, headers = state(), {"Content-Type": "application/json"}
    answer = group.ask("bob", method, fill(path), data=fill(body), headers=headers)
    assert answer.status_code in (400, 403), answer.text
    assert state() == before


def test_team_writes_its_things(group: Group, hers: Team) -> None:
    metric = {"key": "m", "value": 1.0, "timestamp": 1, "step": 0, "model_id": hers.model}
    batch = {"run_id": hers.run, "metrics": [metric], "tags": [{"key": "a", "value": "b"}]}
    ready = {"model_id": hers.model, "status": "LOGGED_MODEL_READY"}
    inputs = {"run_id": hers.run, "models": [{"model_id": hers.model}]}
    group.check(
        ("alice", "POST", "runs/log-batch", batch, 200),
        ("alice", "PATCH", f"logged-models/{hers.model}", ready, 200),
        ("alice", "POST", "runs/log-inputs", inputs, 200),
    )


def test_link_of_a_version_leads_to_the_web(group: Group, hers: Team) -> None:
    links = {"javascript:alert(1)": 400, " JavaScript:x": 400, "data:text/html,x": 400}
    links |= {"https://a b": 400, "https://example.org/#/runs/1": 200}
    version = {"name": "vision.linked", "source": f"models:/{hers.model}", "model_id": hers.model}
    group.post("alice", "registered-models/create", name="vision.linked")
    for field in ("run_link", "runLink"):
        for link, code in links.items():
            group.check(("alice", "POST", "model-versions/create", {**version, field: link}, code))


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
    run_tag = {"run_id": hers.run, "tags": [{"key": "mlflow.artifactLocation", "value": source}]}
    creations = [
        (user, "POST", "experiments/create", {"name": "vision/elsewhere", name: source}, 400)
        for user in ("alice", "admin")
        for name in ("artifact_location", "artifactLocation")
    ]
    group.check(
        *creations,
        ("alice", "POST", "model-versions/create", {"name": "vision.m", "source": source}, 400),
        ("alice", "POST", "experiments/set-experiment-tag", tag, 400),
        ("alice", "POST", "runs/log-batch", run_tag, 400),
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
        "a/../../../accounts/admin.env",
        "..%2f..%2f..%2f..%2f..%2faccounts%2fadmin.env",
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
    words, secret = ("alice", group.password("alice")), group.accounts / "admin.env"
    inside, before = f"{FILES}/{hers.experiment}/{hers.run}/artifacts/{path}", secret.read_bytes()
    for method in ("GET", "PUT", "DELETE"):
        body = b"x" if method == "PUT" else b""
        assert send(group, f"{method} {inside}", body=body, words=words)[0] in (400, 403), method
    listed = f"{API}/artifacts/list?run_id={hers.run}&path={quote(path)}"
    for place in (f"{FILES}/{path}", f"/get-artifact?run_id={hers.run}&path={path}", listed):
        status, text = send(group, f"GET {place}", words=words)
        assert status >= 400 or (place == listed and "passwd" not in text), place
        assert "root:" not in text
    assert secret.read_bytes() == before


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
    place = group.folder / "artifacts" / path
    if is_file := bool(place.suffix) and place.parent.exists():
        place.write_text("secret")
    answers = [group.ask("alice", "GET", FILES, params={"path": path})]
    methods = ("GET", "PUT", "DELETE") if path else ()
    answers += [group.ask("alice", method, f"{FILES}/{path}") for method in methods]
    reasons = {(answer.status_code, answer.json()["reason"]) for answer in answers}
    assert reasons == {(400, Reason.INVALID)}
    assert not is_file or place.read_text() == "secret"


@pytest.mark.parametrize(
    "below", ["folder", "folder/", "new/", "folder/file/x", "folder/file/x/y", ""]
)
def test_upload_keeps_folders_and_files_apart(group: Group, his: Team, below: str) -> None:
    place, words = his.file.removesuffix("/note.txt"), ("bob", group.password("bob"))
    group.ask("bob", "PUT", f"{place}/folder/file", data=b"kept").raise_for_status()
    for prefix in routes.PREFIXES:
        line = f"PUT {place.replace('/api', prefix, 1)}/{below}"
        assert (
            send(group, line.rstrip("/") if not below else line, body=b"x", words=words)[0] == 400
        )
    assert group.ask("bob", "GET", f"{place}/folder/file").content == b"kept"
    listed = group.ask("bob", "GET", f"artifacts/list?run_id={his.run}").json()
    assert {entry["path"] for entry in listed["files"]} == {"folder", "note.txt"}


def test_ui_addresses_return_files(group: Group, hers: Team) -> None:
    sent, path = b"<p>100% sure</p>", quote("100% sure.html")
    model = f"{FILES}/{hers.experiment}/models/{hers.model}/artifacts/MLmodel"
    for file in (f"{hers.file.rpartition('/')[0]}/{path}", model):
        group.ask("alice", "PUT", file, data=sent).raise_for_status()
    files = f"/ajax-api/2.0/mlflow/logged-models/{hers.model}/artifacts/files"
    addresses = [f"{files}?artifact_file_path=MLmodel"]
    addresses += [f"/get-artifact?{key}={hers.run}&path={path}" for key in ("run_id", "run_uuid")]
    for address in addresses:
        assert group.ask("bob", "GET", address).content == sent
    wrong = [
        f"run_id={hers.run}&path=../x",
        f"run_id={'0' * 32}&path=x",
        f"run_id={hers.run}",
        "path=x",
    ]
    for query in wrong:
        assert group.ask("bob", "GET", f"/get-artifact?{query}").status_code in (400, 404)


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
def test_names_of_other_teams_and_look_alikes_are_refused(group: Group, name: str) -> None:
    grid = group.experiment("vision/grid")["experiment_id"]
    for path, sent in {
        "experiments/create": {"name": name},
        "experiments/update": {"experiment_id": grid, "new_name": name},
        "registered-models/create": {"name": name.replace("/", ".")},
    }.items():
        assert group.ask("alice", "POST", path, json=sent).status_code in (400, 403), path


def test_team_owns_what_its_members_create(group: Group) -> None:
    done = group.admin(action="add_user", user="anna", team="vision")
    assert done.returncode == 0, done.stderr
    tag = {
        **group.post("anna", "experiments/create", name="vision/my study"),
        "key": "a",
        "value": "b",
    }
    model, renamed = {"name": "vision.anna"}, {"name": "vision.anna2"}
    prompt = {"name": "vision.p", "tags": [{"key": "mlflow.prompt.is_prompt", "value": "true"}]}
    rename = {**model, "new_name": "vision.anna2"}
    group.check(
        ("alice", "POST", "experiments/set-experiment-tag", tag, 200),
        ("anna", "POST", "registered-models/create", model, 200),
        ("alice", "POST", "registered-models/set-tag", {**tag, **model}, 200),
        ("anna", "POST", "registered-models/rename", rename, 200),
        ("alice", "POST", "registered-models/set-tag", {**tag, **renamed}, 200),
        ("anna", "POST", "registered-models/create", model, 200),
        ("anna", "POST", "registered-models/create", prompt, 400),
    )
    assert group.admin(action="leave", user="anna", team="vision").returncode == 0
    group.check(
        ("anna", "POST", "registered-models/set-tag", {**tag, **renamed}, 403),
        ("anna", "DELETE", "registered-models/delete", model, 403),
        ("anna", "POST", "experiments/set-experiment-tag", tag, 403),
        ("anna", "POST", "experiments/create", {"name": "vision/again"}, 403),
        ("anna", "POST", "experiments/create", {"name": "anna/x"}, 403),
    )


def test_add_team_refuses_a_strangers_experiment(group: Group) -> None:
    made = group.post("admin", "experiments/create", name="future/captioning")
    grant = {"username": "carol", "resource_type": "experiment", "permission": "MANAGE"}
    grant["resource_id"] = made["experiment_id"]
    group.post("admin", "/api/3.0/mlflow/users/permissions/grant", **grant)
    refused = group.admin(action="add_team", team="future")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
    assert "future/captioning is carol's" in refused.stderr
    assert "future" not in group.admin(action="list").stdout.replace("future/captioning", "")


def test_members_delete_no_runs_in_the_experiments_of_add_team(group: Group, hers: Team) -> None:
    """A team's own grant limits what its name permits; another team's opens one experiment."""
    made = group.post("alice", "experiments/create", name="vision/granted")
    run = {"run_id": group.post("alice", "runs/create", **made)["run"]["info"]["run_id"]}
    grant = {"action": "grant", "team": "text", "experiment": "vision/granted"}
    assert group.admin(**grant, permission="EDIT").returncode == 0
    tag = {**run, "key": "a", "value": "b"}
    group.check(
        ("alice", "POST", "runs/delete", {"run_id": hers.run}, 403),
        ("carol", "POST", "runs/set-tag", tag, 200),
        ("carol", "POST", "runs/delete", run, 403),
        ("bob", "POST", "runs/set-tag", tag, 403),
        ("alice", "POST", "runs/delete", run, 200),
    )


def test_default_is_read_only(group: Group, hers: Team) -> None:
    answer = group.ask("alice", "POST", "runs/create", json={"experiment_id": "0"})
    assert answer.status_code == 403
    assert "MLFLOW_EXPERIMENT_NAME=vision/launches" in answer.text
    file = f"{FILES}/0/{hers.run}/artifacts/y"
    search = {"experiment_ids": ["0"]}
    group.check(("alice", "PUT", file, None, 403), ("alice", "POST", "runs/search", search, 200))


@pytest.mark.parametrize(
    "name", ["Vision", "vision ", "ѵision", "__user_1__", "a", "x" * 41, "../x"], ids=ascii
)
def test_names_of_teams_and_users_are_plain(group: Group, name: str) -> None:
    role = {"name": name, "workspace": "default"}
    group.check(("admin", "POST", "/api/3.0/mlflow/roles/create", role, 400))
    if not re.fullmatch("Vision|x+", name):
        user = {"username": name, "password": "long enough for it"}
        group.check(("admin", "POST", "users/create", user, 400))

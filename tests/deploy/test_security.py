"""No one gets in: what a stranger, another team, a forged request or a hostile path meets on a group's server."""

from __future__ import annotations

import http.client
from base64 import b64encode
from urllib.parse import urlsplit

import pytest

from tests.deploy.group import Group

API = "/api/2.0/mlflow"


def raw(
    group: Group, user: str, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
) -> tuple[int, bytes]:
    """A request as it stands: no library tidies the path up."""
    words = b64encode(f"{user}:{group.password(user)}".encode()).decode() if user else ""
    connection = http.client.HTTPConnection(urlsplit(group.uri).netloc, timeout=30)
    connection.request(method, path, body, {**({"Authorization": f"Basic {words}"} if words else {}), **(headers or {})})
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.fixture(scope="module")
def run(group: Group) -> tuple[str, str]:
    """Experiment and run of team vision."""
    wanted = {"experiment_name": "vision/captioning"}
    found = group.ask("alice", "GET", f"{API}/experiments/get-by-name", params=wanted).json()["experiment"]["experiment_id"]
    made = group.ask("alice", "POST", f"{API}/runs/create", json={"experiment_id": found}).json()
    return found, made["run"]["info"]["run_id"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{API}/experiments/search?max_results=1"),
        ("POST", f"{API}/runs/search"),
        ("POST", f"{API}/runs/create"),
        ("POST", f"{API}/runs/log-batch"),
        ("GET", "/api/2.0/mlflow-artifacts/artifacts"),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/0/x/artifacts/y"),
        ("GET", "/ajax-api/2.0/mlflow/experiments/search?max_results=1"),
        ("GET", "/get-artifact?path=x&run_uuid=y"),
        ("GET", f"{API}/users/list"),
        ("POST", "/graphql"),
        ("GET", "/"),
    ],
)
def test_nothing_is_read_or_written_without_a_name(group: Group, method: str, path: str) -> None:
    assert raw(group, "", method, path)[0] == 401
    guessed = f"{method} {path}:guessed-password"  # another name each: who guesses one's password often has to wait
    wrong = {"Authorization": f"Basic {b64encode(guessed.encode()).decode()}"}
    assert raw(group, "", method, path, wrong)[0] == 401


@pytest.mark.parametrize(
    ("method", "path", "sent"),
    [
        ("POST", "runs/create", {"experiment_id": "EXPERIMENT"}),
        ("POST", "runs/log-batch", {"run_id": "RUN", "metrics": [], "params": [{"key": "a", "value": "b"}], "tags": []}),
        ("POST", "runs/set-tag", {"run_id": "RUN", "key": "team", "value": "speech"}),
        ("POST", "runs/update", {"run_id": "RUN", "status": "FINISHED"}),
        ("POST", "runs/delete", {"run_id": "RUN"}),
        ("POST", "experiments/delete", {"experiment_id": "EXPERIMENT"}),
        ("POST", "experiments/set-experiment-tag", {"experiment_id": "EXPERIMENT", "key": "mlflow.note.content", "value": "x"}),
        ("POST", "users/create", {"username": "eve", "password": "long enough password"}),
        ("PATCH", "users/update-password", {"username": "alice", "password": "long enough password"}),
        ("PATCH", "users/update-admin", {"username": "bob", "is_admin": True}),
    ],
)
def test_another_teams_runs_and_accounts_are_out_of_reach(
    group: Group, run: tuple[str, str], method: str, path: str, sent: dict[str, object]
) -> None:
    places = {"EXPERIMENT": run[0], "RUN": run[1]}
    body = {name: places.get(str(value), value) if isinstance(value, str) else value for name, value in sent.items()}
    assert group.ask("bob", method, f"{API}/{path}", json=body).status_code == 403


def test_artifacts_of_another_team_are_read_and_not_written(group: Group, run: tuple[str, str]) -> None:
    experiment, run_id = run
    path = f"/api/2.0/mlflow-artifacts/artifacts/{experiment}/{run_id}/artifacts/note.txt"
    assert group.ask("alice", "PUT", path, data=b"hers").status_code == 200
    assert group.ask("bob", "GET", path).content == b"hers"
    assert group.ask("bob", "PUT", path, data=b"his").status_code == 403
    assert group.ask("bob", "DELETE", path).status_code == 403
    assert group.ask("alice", "GET", path).content == b"hers"


TRAVERSALS = (
    "../../../../../../etc/passwd",
    "..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "..%252f..%252f..%252fetc%252fpasswd",
    "%2fetc%2fpasswd",
    "/etc/passwd",
    "..\\..\\..\\etc\\passwd",
    "file:///etc/passwd",
)


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_path_leads_out_of_the_artifacts(group: Group, run: tuple[str, str], path: str) -> None:
    experiment, run_id = run
    inside = f"/api/2.0/mlflow-artifacts/artifacts/{experiment}/{run_id}/artifacts"
    for address in (
        f"{inside}/{path}",
        f"/api/2.0/mlflow-artifacts/artifacts/{path}",
        f"/get-artifact?run_id={run_id}&path={path}",
    ):
        status, body = raw(group, "alice", "GET", address)
        assert status >= 400, address
        assert b"root:" not in body
    before = (group.folder / "secrets.json").read_bytes()
    outside = path.replace("etc/passwd", "secrets.json").replace("etc%2fpasswd", "secrets.json")
    status, _ = raw(group, "alice", "PUT", f"{inside}/{outside}", body=b"{}")
    assert (group.folder / "secrets.json").read_bytes() == before
    listed = group.ask("alice", "GET", f"{API}/artifacts/list", params={"run_id": run_id, "path": path})
    assert "passwd" not in listed.text or listed.status_code >= 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost.evil.example:80"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1234"}, 403),
        ({"Origin": "http://127.0.0.1:9"}, 403),
    ],
)
def test_forged_hosts_and_foreign_pages_are_refused(group: Group, headers: dict[str, str], status: int) -> None:
    sent = {"Content-Type": "application/json", **headers}
    assert raw(group, "alice", "POST", f"{API}/runs/search", sent, b'{"experiment_ids": ["0"]}')[0] == status


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        ("params", {"key": "k" * 251, "value": "v"}),
        ("tags", {"key": "t" * 251, "value": "v"}),
        ("params", {"key": "<script>", "value": "v"}),
        ("metrics", {"key": "../../m", "value": 1.0, "timestamp": 1, "step": 0}),
    ],
)
def test_oversized_and_malformed_entries_are_refused(
    group: Group, run: tuple[str, str], kind: str, entry: dict[str, object]
) -> None:
    assert group.ask("alice", "POST", f"{API}/runs/log-batch", json={"run_id": run[1], kind: [entry]}).status_code == 400

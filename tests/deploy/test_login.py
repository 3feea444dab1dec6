"""Log-in by oauth2-proxy in front of the guard: whose header is believed, and whose is not."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import yaml

from tests.conftest import ROOT
from tests.deploy.group import API, PROXY_SECRET, Group
from tests.deploy.proxy import Login, started

CURRENT = f"{API}/users/current"
USER, SECRET = "X-Auth-Request-Email", "X-Evenhand-Proxy-Secret"
PERSON = "ada@example.org"


@pytest.fixture(scope="module")
def server(mlflow_group: Group) -> Group:
    """Return a server whose accounts have one more, named by an address."""
    done = mlflow_group.admin(action="add_user", user=PERSON, team="vision")
    assert done.returncode == 0, done.stderr
    return mlflow_group


def send(
    server: Group, method: str, path: str, *headers: tuple[str, str], body: bytes = b""
) -> tuple[int, Any]:
    """Return status and JSON of a request with exactly these headers, repeated ones too."""
    connection = HTTPConnection(urlsplit(server.uri).netloc, timeout=30)
    connection.putrequest(method, path)
    for name, value in (*headers, ("Content-Length", str(len(body)))):
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    results = answer.status, json.loads(answer.read() or b"{}")
    connection.close()
    return results


def basic(server: Group, user: str) -> tuple[str, str]:
    request = requests.Request("GET", server.uri, auth=(user, server.password(user))).prepare()
    return "Authorization", request.headers["Authorization"]


PROVEN = (SECRET, PROXY_SECRET)


@pytest.mark.parametrize(
    "headers",
    [
        [PROVEN, (USER, PERSON)],
        [(SECRET.lower(), PROXY_SECRET), (USER.upper(), PERSON)],
    ],
    ids=["as written", "other case"],
)
def test_user_of_the_proxy_has_an_accounts_rights(
    server: Group, headers: list[tuple[str, str]]
) -> None:
    status, current = send(server, "GET", CURRENT, *headers)
    assert (status, current["user"]["username"]) == (200, PERSON)
    named = "experiment_name=vision/captioning"
    _, experiment = send(server, "GET", f"{API}/experiments/get-by-name?{named}", *headers)
    content = (*headers, ("Content-Type", "application/json"))
    body = f'{{"experiment_id": "{experiment["experiment"]["experiment_id"]}"}}'.encode()
    assert send(server, "POST", f"{API}/runs/create", *content, body=body)[0] == 200
    other = b'{"name": "speech/mine"}'
    status, refused = send(server, "POST", f"{API}/experiments/create", *content, body=other)
    assert (status, refused["reason"]) == (403, "denied")
    status, refused = send(server, "GET", f"{API}/users/list", *headers)
    assert (status, refused["reason"]) == (403, "denied"), "no administrator"
    address = "/api/2.0/mlflow-artifacts/artifacts"
    path = f"{address}/{experiment['experiment']['experiment_id']}/{'0' * 32}/artifacts/note.txt"
    assert send(server, "PUT", path, *headers, body=b"kept")[0] == 200
    assert send(server, "GET", f"{API}/users/list", PROVEN, (USER, "admin"))[0] == 200


@pytest.mark.parametrize(
    ("headers", "status", "reason"),
    [
        ([(USER, PERSON)], 401, "no_login"),
        ([(SECRET, ""), (USER, PERSON)], 401, "no_login"),
        ([(SECRET, secrets.token_hex(24)), (USER, PERSON)], 401, "no_login"),
        ([(SECRET, PROXY_SECRET[:-1]), (USER, PERSON)], 401, "no_login"),
        ([(SECRET, "é" * 24), (USER, PERSON)], 401, "no_login"),
        ([(SECRET.replace("-", "_"), PROXY_SECRET), (USER, PERSON)], 401, "no_login"),
        ([PROVEN, (USER.replace("-", "_"), PERSON)], 401, "no_login"),
        ([PROVEN, ("X-Forwarded-User", PERSON)], 401, "no_login"),
        ([PROVEN], 401, "no_login"),
        ([PROVEN, (USER, "")], 401, "no_login"),
        ([(USER, PERSON), ("X-Forwarded-For", "127.0.0.2")], 401, "no_login"),
        ([PROVEN, (USER, PERSON), (USER, "admin")], 400, "invalid"),
        ([PROVEN, (USER, PERSON), (USER, PERSON)], 400, "invalid"),
        ([PROVEN, PROVEN, (USER, PERSON)], 400, "invalid"),
        ([PROVEN, (USER, PERSON), ("Authorization", "Basic YTpi")], 400, "ambiguous"),
        ([PROVEN, (USER, "nobody@example.org")], 403, "unknown_user"),
        ([PROVEN, (USER, PERSON.upper())], 403, "unknown_user"),
        ([PROVEN, (USER, f" {PERSON}:x")], 403, "unknown_user"),
        ([PROVEN, (USER, "x" * 300)], 403, "unknown_user"),
        ([PROVEN, (USER, "ädmin")], 403, "unknown_user"),
    ],
)
def test_other_headers_are_refused(
    server: Group, headers: list[tuple[str, str]], status: int, reason: str
) -> None:
    answer, refused = send(server, "GET", CURRENT, *headers)
    assert (answer, refused["reason"]) == (status, reason)
    if reason == "unknown_user":
        assert "--action=add_user" in refused["message"]


def test_header_changes_nothing_for_a_password(server: Group) -> None:
    for headers in ([(USER, "admin")], [(SECRET, "x" * 48), (USER, "admin")]):
        status, current = send(server, "GET", CURRENT, basic(server, "alice"), *headers)
        assert (status, current["user"]["username"]) == (200, "alice")


def test_log_in_sets_no_password_and_ends_with_the_account(server: Group) -> None:
    headers = PROVEN, (USER, "gone@example.org")
    assert server.admin(action="add_user", user=headers[1][1], team="vision").returncode == 0
    for current in ("", "a guess"):
        names = {"username": headers[1][1], "password": "chosen here", "current_password": current}
        content, body = (*headers, ("Content-Type", "application/json")), json.dumps(names).encode()
        path = f"{API}/users/update-password"
        assert send(server, "PATCH", path, *content, body=body)[0] == 400
    assert server.admin(action="remove_user", user=headers[1][1]).returncode == 0
    assert send(server, "GET", CURRENT, *headers)[1]["reason"] == "unknown_user"


def test_server_without_a_secret_believes_no_header(group: Group) -> None:
    for secret in ("", "x" * 48):
        status, refused = send(group, "GET", CURRENT, (SECRET, secret), (USER, "alice"))
        assert (status, refused["reason"]) == (401, "no_login")


# nginx with compose's files, and with the manifest's


class Stand(BaseHTTPRequestHandler):
    """oauth2-proxy's answers to nginx: one cookie is right."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        is_right = "__Host-evenhand=right" in self.headers.get("Cookie", "")
        status = {"/oauth2/auth": 202 if is_right else 401}.get(path, 302)
        self.send_response(status)
        if status == 202:
            self.send_header(USER, PERSON)
        if status == 302:
            place = self.headers.get("X-Auth-Request-Redirect", "")
            self.send_header("Location", f"https://login.example.org/?then={place}")
        assert self.headers.get(SECRET) != PROXY_SECRET
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@dataclass(frozen=True)
class Front:
    """Address of nginx and the certificate by which it is known."""

    address: str
    certificate: Path

    def get(self, path: str, **named: Any) -> requests.Response:
        options = {"verify": str(self.certificate), "timeout": 30, "allow_redirects": False}
        return requests.get(f"{self.address}{path}", **options, **named)


@pytest.fixture(scope="module", params=["compose", "kubernetes"])
def front(server: Group, request: pytest.FixtureRequest) -> Iterator[Front]:
    stand = ThreadingHTTPServer(("127.0.0.1", 0), Stand)
    Thread(target=stand.serve_forever, daemon=True).start()
    manifests = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "login.yaml").read_text())
    (text,) = (item["data"]["default.conf.template"] for item in manifests if "data" in item)
    login = Login(
        f"127.0.0.1:{stand.server_port}",
        PROXY_SECRET,
        text if request.param == "kubernetes" else "",
    )
    folder, upstream = Path(tempfile.mkdtemp(dir="/tmp")), urlsplit(server.uri).netloc
    folder.chmod(0o755)
    with started(folder, upstream, server.proxy_port, login=login) as (address, certificate):
        yield Front(address, certificate)
    stand.shutdown()


COOKIE = {"__Host-evenhand": "right"}


@pytest.mark.debian(package="nginx-light")
def test_cookie_is_a_log_in(front: Front) -> None:
    page = front.get("/", cookies=COOKIE)
    assert (page.status_code, "<title>MLflow" in page.text) == (200, True)
    for headers in ({}, {USER: "admin", SECRET: "x" * 48}, {"X_Auth_Request_Email": "admin"}):
        current = front.get(CURRENT, cookies=COOKIE, headers=headers)
        assert current.json()["user"]["username"] == PERSON


@pytest.mark.debian(package="nginx-light")
def test_page_without_a_cookie_leads_to_the_provider(front: Front) -> None:
    for cookies in ({}, {"__Host-evenhand": "wrong"}):
        page = front.get("/get-artifact?path=a&run_id=b", cookies=cookies)
        assert page.status_code == 302
        place = "https://login.example.org/?then=/get-artifact?path=a&run_id=b"
        assert page.headers["Location"] == place
        refused = front.get(f"/ajax-{CURRENT[1:]}", cookies=cookies, headers={USER: PERSON})
        assert (refused.status_code, refused.json()["reason"]) == (401, "no_login")
    assert front.get("/health").text == "OK"
    assert front.get("/ready").text == "ready\n"
    assert front.get("/oauth2/auth", cookies=COOKIE).status_code == 404


@pytest.mark.debian(package="nginx-light")
def test_program_with_a_password_needs_no_cookie(server: Group, front: Front) -> None:
    words = ("alice", server.password("alice"))
    for headers in ({}, {USER: "admin"}, {USER: "admin", SECRET: "x" * 48}):
        current = front.get(CURRENT, auth=words, headers=headers)
        assert current.json()["user"]["username"] == "alice"
    assert front.get(CURRENT, auth=words, cookies=COOKIE).json()["user"]["username"] == "alice"
    wrong = front.get(CURRENT, auth=("alice", "a guess"), cookies=COOKIE, headers={USER: "admin"})
    assert (wrong.status_code, wrong.json()["reason"]) == (401, "no_login")

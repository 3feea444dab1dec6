"""Log-ins: by passwords while others guess, and by oauth2-proxy in front of the guard."""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import yaml

from deploy.guard.connections import network
from tests import warm
from tests.conftest import ROOT
from tests.deploy.group import API, FILES, PROXY_SECRET, Group, send
from tests.deploy.proxy import Login, started

CURRENT = f"{API}/users/current"
USER, SECRET = "X-Auth-Request-Email", "X-Evenhand-Proxy-Secret"
PERSON = "ada@example.org"
PROVEN = SECRET, PROXY_SECRET
Get = Callable[..., requests.Response]


@pytest.fixture(scope="module")
def server(mlflow_group: Group) -> Group:
    """Return a server whose accounts have one more, named by an address."""
    done = mlflow_group.admin(action="add_user", user=PERSON, team="vision")
    assert done.returncode == 0, done.stderr
    return mlflow_group


@pytest.mark.parametrize(
    "headers",
    [
        {SECRET: PROXY_SECRET, USER: PERSON},
        {SECRET.lower(): PROXY_SECRET, USER.upper(): PERSON},
    ],
    ids=["as written", "other case"],
)
def test_user_of_the_proxy_has_an_accounts_rights(server: Group, headers: dict[str, str]) -> None:
    ask = partial(server.ask, "", headers=headers)
    assert ask("GET", CURRENT).json()["user"]["username"] == PERSON
    experiment = server.experiment("vision/captioning")["experiment_id"]
    file = f"{FILES}/{experiment}/{'0' * 32}/artifacts/note.txt"
    assert ask("POST", "runs/create", json={"experiment_id": experiment}).status_code == 200
    assert ask("PUT", file, data=b"kept").status_code == 200
    created = ask("POST", "experiments/create", json={"name": "speech/mine"})
    for refused in (created, ask("GET", "users/list")):
        assert (refused.status_code, refused.json()["reason"]) == (403, "denied")
    admin = {SECRET: PROXY_SECRET, USER: "admin"}
    assert server.ask("", "GET", "users/list", headers=admin).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status", "reason"),
    [
        ([("Authorization", "Basic é")], 401, "no_login"),
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
    answer, text = send(server, f"GET {CURRENT}", *map(": ".join, headers))
    assert (answer, json.loads(text)["reason"]) == (status, reason)
    assert ("--action=add_user" in text) == (reason == "unknown_user")


def test_header_changes_nothing_for_a_password(server: Group) -> None:
    for secret in ({}, {SECRET: "x" * 48}):
        current = server.ask("alice", "GET", CURRENT, headers={**secret, USER: "admin"})
        assert current.json()["user"]["username"] == "alice"


def test_log_in_sets_no_password_and_ends_with_the_account(server: Group) -> None:
    user = "gone@example.org"
    ask = partial(server.ask, "", headers={SECRET: PROXY_SECRET, USER: user})
    assert server.admin(action="add_user", user=user, team="vision").returncode == 0
    for current in ("", "a guess"):
        sent = {"username": user, "password": "chosen here", "current_password": current}
        assert ask("PATCH", "users/update-password", json=sent).status_code == 400
    assert server.admin(action="remove_user", user=user).returncode == 0
    assert ask("GET", CURRENT).json()["reason"] == "unknown_user"


def test_server_without_a_secret_believes_no_header(group: Group) -> None:
    for secret in ("", "x" * 48):
        refused = group.ask("", "GET", CURRENT, headers={SECRET: secret, USER: "alice"})
        assert (refused.status_code, refused.json()["reason"]) == (401, "no_login")


def test_guesses_are_throttled_and_refuse_no_user(tmp_path: Path) -> None:
    """Guess for ten simulated minutes, with MLflow's own accounts and hashes."""
    command = [sys.executable, "-m", "tests.deploy.attacked", str(tmp_path)]
    done = warm.run(command, {"PATH": "", "PYTHONPATH": str(ROOT)}, tmp_path)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.rpartition("answers ")[2])
    for user in ("alice", "admin"):
        assert answers["first"][user] == {"200": 30}
        guesses = answers["first"][f"guesses for {user}"]
        assert set(guesses) == {"401", "429"}
        assert guesses["401"] <= 100 + 6 + 10, "100 are free, 6 double the wait, then one a minute"
    assert answers["elsewhere"] == 429, "a new address waits like any other"
    assert answers["second"]["alice"] == {"200": 10}, "the history outlives a restart"
    assert answers["second"]["guesses for alice"]["429"] > 0
    assert answers["withdrawn"] == [200, 401, 200, 401], "within a minute"
    assert answers["network"] == [401] * 20 + [429] * 4 + [401], "a network of IPv6 is one address"
    assert network("2001:db8::1") == network("2001:db8::ffff:1") != network("2001:db8:0:1::1")
    assert network("::ffff:192.0.2.1") == network("192.0.2.1") == "192.0.2.1"


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


@pytest.fixture(scope="module", params=["compose", "kubernetes"])
def get(server: Group, request: pytest.FixtureRequest) -> Iterator[Get]:
    """Yield a function that gets a path from nginx."""
    stand = ThreadingHTTPServer(("127.0.0.1", 0), Stand)
    Thread(target=stand.serve_forever, daemon=True).start()
    manifests = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "login.yaml").read_text())
    (text,) = (item["data"]["default.conf.template"] for item in manifests if "data" in item)
    template = text if request.param == "kubernetes" else ""
    login = Login(f"127.0.0.1:{stand.server_port}", PROXY_SECRET, template)
    folder, upstream = Path(tempfile.mkdtemp(dir="/tmp")), urlsplit(server.uri).netloc
    folder.chmod(0o755)
    with started(folder, upstream, server.proxy_port, login=login) as (address, certificate):
        options: Any = {"verify": str(certificate), "timeout": 30, "allow_redirects": False}
        yield lambda path, **named: requests.get(f"{address}{path}", **options, **named)
    stand.shutdown()


COOKIE = {"__Host-evenhand": "right"}


@pytest.mark.debian(package="nginx-light")
def test_cookie_is_a_log_in(get: Get) -> None:
    page = get("/", cookies=COOKIE)
    assert (page.status_code, "<title>MLflow" in page.text) == (200, True)
    for headers in ({}, {USER: "admin", SECRET: "x" * 48}, {"X_Auth_Request_Email": "admin"}):
        current = get(CURRENT, cookies=COOKIE, headers=headers)
        assert current.json()["user"]["username"] == PERSON


@pytest.mark.debian(package="nginx-light")
def test_page_without_a_cookie_leads_to_the_provider(get: Get) -> None:
    for cookies in ({}, {"__Host-evenhand": "wrong"}):
        page = get("/get-artifact?path=a&run_id=b", cookies=cookies)
        assert page.status_code == 302
        place = "https://login.example.org/?then=/get-artifact?path=a&run_id=b"
        assert page.headers["Location"] == place
        refused = get(f"/ajax-{CURRENT[1:]}", cookies=cookies, headers={USER: PERSON})
        assert (refused.status_code, refused.json()["reason"]) == (401, "no_login")
    assert get("/health").text == "OK"
    assert get("/ready").text == "ready\n"
    assert get("/oauth2/auth", cookies=COOKIE).status_code == 404


@pytest.mark.debian(package="nginx-light")
def test_program_with_a_password_needs_no_cookie(server: Group, get: Get) -> None:
    words = ("alice", server.password("alice"))
    for headers in ({}, {USER: "admin"}, {USER: "admin", SECRET: "x" * 48}):
        current = get(CURRENT, auth=words, headers=headers)
        assert current.json()["user"]["username"] == "alice"
    assert get(CURRENT, auth=words, cookies=COOKIE).json()["user"]["username"] == "alice"
    wrong = get(CURRENT, auth=("alice", "a guess"), cookies=COOKIE, headers={USER: "admin"})
    assert (wrong.status_code, wrong.json()["reason"]) == (401, "no_login")

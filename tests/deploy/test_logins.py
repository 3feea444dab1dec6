"""Log-ins while others guess: who has logged in from an address goes on from there."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deploy.guard.addresses import network
from tests.conftest import ROOT
from tests.deploy.group import API, Group, ask


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of ten simulated minutes, with MLflow's own accounts and hashes."""
    script, folder = Path(__file__).with_name("attacked.py"), tmp_path_factory.mktemp("attacked")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(folder)],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("answers "))
    found: dict[str, Any] = json.loads(line.removeprefix("answers "))
    return found


def test_ten_minutes_of_guesses_refuse_no_user_and_stay_throttled(answers: dict[str, Any]) -> None:
    for user in ("alice", "admin"):
        assert answers["first"][user] == {"200": 120}
        guesses = answers["first"][f"guesses for {user}"]
        assert set(guesses) == {"401", "429"}
        assert guesses["401"] <= 100 + 6 + 10, "100 are free, 6 double the wait, then one a minute"
    assert answers["first"]["alice elsewhere"] == {"429": 1}, "a new address waits like any other"


def test_a_restart_and_another_worker_know_who_has_logged_in(answers: dict[str, Any]) -> None:
    assert answers["second"]["alice"] == {"200": 12}
    assert answers["second"]["guesses for alice"]["429"] > 0


def test_a_withdrawn_password_is_noticed_within_a_minute_though_it_is_in_use(
    answers: dict[str, Any],
) -> None:
    assert answers["withdrawn"] == [200, 401, 200, 401]


def test_a_network_of_ipv6_counts_as_one_address(answers: dict[str, Any]) -> None:
    assert answers["network"] == [401] * 20 + [429] * 4
    assert answers["other"] == 401
    assert network("2001:db8::1") == network("2001:db8::ffff:1") != network("2001:db8:0:1::1")
    assert network("::ffff:192.0.2.1") == network("192.0.2.1") == "192.0.2.1"


@pytest.mark.slow
@pytest.mark.parametrize("user", ["dora", "admin"])
def test_guesses_from_changing_addresses_lock_nobody_out(group: Group, user: str) -> None:
    """The password is changed in the middle: each worker has to hash the new one."""
    first, second = "the first one of a test", "the second one of a test"
    if user == "admin":
        first = group.password("admin")
    else:
        sent = {"username": user, "password": first}
        group.ask("admin", "POST", f"{API}/users/create", json=sent).raise_for_status()
    home = "127.0.0.1"
    assert ask(group, (user, first), "GET", f"{API}/users/current", source=home)[0] == 200

    def guess(number: int) -> int:
        source = f"127.{2 + len(user)}.{number >> 8}.{number & 255}"
        return ask(group, (user, f"guess {number}"), "GET", "/", source=source)[0]

    with ThreadPoolExecutor(8) as crowd:
        guesses = list(crowd.map(guess, range(1, 280)))
        assert guesses.count(401) <= 2 * 110, "100 are free on each of two workers"
        assert guesses[-20:].count(429) >= 16
        flood = [crowd.submit(guess, number) for number in range(280, 400)]
        changed = {"username": user, "password": second, "current_password": first}
        body = json.dumps(changed).encode()
        answer = ask(group, (user, first), "PATCH", f"{API}/users/update-password", body, home)
        assert answer[0] == 200, answer
        try:
            own = (group, (user, second), "GET", f"{API}/users/current")
            right = [ask(*own, source=home)[0] for _ in range(20)]
        finally:
            changed = {"username": user, "password": first, "current_password": second}
            body = json.dumps(changed).encode()
            back = ask(group, (user, second), "PATCH", f"{API}/users/update-password", body, home)
        assert right == [200] * 20
        assert back[0] == 200
        assert [one.result() for one in flood].count(401) <= 10

"""Log-ins while others guess: who has logged in from an address goes on from there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.guard.connections import network
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the answers of ten simulated minutes, with MLflow's own accounts and hashes."""
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
    results: dict[str, Any] = json.loads(line.removeprefix("answers "))
    return results


def test_guesses_are_throttled_and_refuse_no_user(answers: dict[str, Any]) -> None:
    for user in ("alice", "admin"):
        assert answers["first"][user] == {"200": 30}
        guesses = answers["first"][f"guesses for {user}"]
        assert set(guesses) == {"401", "429"}
        assert guesses["401"] <= 100 + 6 + 10, "100 are free, 6 double the wait, then one a minute"
    assert answers["first"]["alice elsewhere"] == {"429": 1}, "a new address waits like any other"


def test_login_history_outlives_a_restart(answers: dict[str, Any]) -> None:
    assert answers["second"]["alice"] == {"200": 10}
    assert answers["second"]["guesses for alice"]["429"] > 0


def test_withdrawn_password_expires_within_a_minute(answers: dict[str, Any]) -> None:
    assert answers["withdrawn"] == [200, 401, 200, 401]


def test_ipv6_network_counts_as_one_address(answers: dict[str, Any]) -> None:
    assert answers["network"] == [401] * 20 + [429] * 4
    assert answers["other"] == 401
    assert network("2001:db8::1") == network("2001:db8::ffff:1") != network("2001:db8:0:1::1")
    assert network("::ffff:192.0.2.1") == network("192.0.2.1") == "192.0.2.1"

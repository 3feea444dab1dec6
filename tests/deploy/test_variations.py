"""Variations of field names: the guard authorises the message that MLflow's handlers read."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from deploy.guard import routes
from tests import warm
from tests.conftest import PYTHONPATH

OFFERED = (routes.READ, routes.SEARCH, routes.WRITE, routes.ACCOUNT, routes.ADMINISTER)
ROUTES = [line for kind in OFFERED for line in routes.classes()[kind]]
CLASSES = ("NUL", "whitespace", "case", "escapes", "duplicates", "look-alikes", "camelCase")


@pytest.fixture(scope="module", params=[50, pytest.param(1_000, marks=pytest.mark.slow)])
def of_each_class(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def report(of_each_class: int, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the output of `variations.py`; importing MLflow's server fixes its settings."""
    command = [sys.executable, "-m", "tests.deploy.variations", str(of_each_class)]
    env, folder = {"PATH": "", "PYTHONPATH": PYTHONPATH}, tmp_path_factory.mktemp("variations")
    done = warm.run(command, env, folder, 500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_handlers_read_the_authorised_message(report: Any, of_each_class: int) -> None:
    """For every offered route, in MLflow's own functions; all else is refused."""
    assert report["wrong"] == []
    counts, number = report["counts"], len(ROUTES) * of_each_class
    assert sum(counts.values()) == number * len(CLASSES)
    assert {name.rpartition(": ")[2] for name in counts} == {"400", "equal"}
    for kind in ("NUL", "whitespace"):
        assert counts[f"{kind}: 400"] == number, "no field's name"
    for kind in ("escapes", "camelCase"):
        assert counts[f"{kind}: equal"] > len(ROUTES), "other spellings of a field's name"


def test_new_field_of_a_later_mlflow_is_refused(report: Any) -> None:
    """In every message of an offered route, and in those in it."""
    alternative = "mlflow.TraceLocation.InferenceTableLocation"  # to the one in the requests
    assert {*report["refused"], alternative} == set(routes.listed_fields())


def test_guard_and_handlers_parse_the_same_message(report: Any) -> None:
    parsed, catalogue = report["parsed"], report["known"]
    by_message = {line: message for line, message in parsed.items() if message}
    assert len(by_message) > 52
    assert len(parsed) - len(by_message) < 8, "they read their path"
    assert by_message.items() <= catalogue.items()
    bounded = {*routes.classes()[routes.WRITE], *routes.classes()[routes.SEARCH]}
    assert bounded - catalogue.keys() == {"POST /graphql"}

"""Races whose verdict is the exit code, on a machine that need not be idle."""

from __future__ import annotations

import sys

import pytest

from experiments.cli.codes import CONDITION_HOLDS, DONE, NO_VERDICT
from tests.conftest import ROOT, Place
from tests.experiments.race import races

SIX = {"blocks": "6", "figures": "false", "others_limit_percent": "100"}
FAILING = {**SIX, "fail_if": "slower:wall_seconds"}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(40))
def test_command_against_itself_never_fails(place: Place, number: int) -> None:
    levels = ("base=sleep 0.1", "head=sleep 0.1 ")
    done = place.call(*races.command(place, *levels, **FAILING, seed=str(number)))
    assert done.returncode in (DONE, NO_VERDICT), done.stdout + done.stderr


@pytest.mark.slow
def test_slower_command_fails_below_mlflow_run_too(place: Place) -> None:
    """Plant 0.3 s. `mlflow run` reports any failure as 1; the cells stay finished."""
    levels = ("base=sleep 0.1", "head=sleep 0.4")
    done = place.call(*races.command(place, *levels, **FAILING))
    assert done.returncode == CONDITION_HOLDS, done.stdout + done.stderr
    settings = {**races.QUICK, **FAILING, "cache": str(place.cache), "journal": str(place.journal)}
    settings["level"] = '["base=sleep 0.1", "head=sleep 0.4"]'
    words = [word for name, text in settings.items() for word in ("-P", f"{name}={text}")]
    command = [sys.executable, "-m", "mlflow", "run", str(ROOT), "-e", "race", *words]
    done = place.call(*command, "--env-manager", "local")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fail_if=slower:wall_seconds holds" in done.stdout + done.stderr
    assert {run.info.status for run in races.cells(place)} == {"FINISHED"}

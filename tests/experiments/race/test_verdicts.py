"""Races with a known answer, on a machine that need not be idle: verdicts and exit codes."""

from __future__ import annotations

import shlex
import sys

import pytest

from experiments.cli.codes import CONDITION_HOLDS, DONE
from tests.conftest import ROOT, Place
from tests.experiments.command import repository
from tests.experiments.race import races

pytestmark = pytest.mark.slow
PYTHON = shlex.quote(sys.executable)
# The value stands before more output than is stored.
BURN = """
print("sum:", sum(range(20_000_000)))
print("another line\\n" * 200_000)
"""
RACE = f"""
[levels.burn]
command = "{PYTHON} burn.py"
[outcomes]
primary = ["wall_seconds"]
[outcomes.sum]
better = "lower"
regex = "sum: ([0-9]+)"
"""
DELAY = 1.0
# The machine need not be idle: only differences of more than a quarter count.
MARGIN = 0.25
MATRICES = """
import numpy as np
a = np.random.default_rng(0).standard_normal((1500, 1500))
for _ in range(12):
    a @ a
"""
SECONDS = 2.0  # long against the start of Python
FAILING = {"blocks": "6", "fail_if": "slower:wall_seconds"}


def test_same_command_is_equal_and_a_delay_is_found_in_its_size(place: Place) -> None:
    (place.folder / "burn.py").write_text(BURN)
    (place.folder / "race.toml").write_text(RACE)
    options = {"aa": "true", "inject_delay": str(DELAY), "margin": str(MARGIN), "blocks": "10"}
    races.run(place, file="race.toml", cold="false", code=DONE, **options)
    assert races.by_level(place)["burn"].data.metrics["sum"] == sum(range(20_000_000))
    controls = {
        control["name"]: {row["metric"]: row for row in control["rows"]}
        for control in races.comparison(place)["controls"]
    }
    assert set(controls) == {"A/A", "injected 100 %"}
    same, delayed = (controls[name]["wall_seconds"] for name in ("A/A", "injected 100 %"))
    assert (same["a"], same["b"], same["n_blocks"]) == ("burn", "burn A/A", 10)
    assert same["verdict"] not in ("faster", "slower")
    assert same["ci_low"] < 1 + MARGIN
    assert same["ci_high"] > 1 / (1 + MARGIN)
    assert (delayed["b"], delayed["verdict"]) == ("burn +100 %", "slower")
    assert (1 + DELAY) / (1 + MARGIN) < delayed["estimate"] < (1 + DELAY) * (1 + MARGIN)
    cpu = controls["injected 100 %"]["cpu/user_seconds"]  # the delay is not the command's work
    assert cpu["verdict"] not in ("faster", "slower")
    (report,) = place.journal.glob("*/report/report.md")
    assert "seen in 1 of 1 delayed times" in report.read_text()


def test_slower_command_fails_below_mlflow_run_too(place: Place) -> None:
    """Plant 0.3 s. `mlflow run` reports any failure as 1; the cells stay finished."""
    races.run(place, "base=sleep 0.1", "head=sleep 0.4", code=CONDITION_HOLDS, **FAILING)
    settings = {**races.QUICK, **FAILING, "cache": str(place.cache), "journal": str(place.journal)}
    settings["level"] = '["base=sleep 0.1", "head=sleep 0.4"]'
    words = [word for name, text in settings.items() for word in ("-P", f"{name}={text}")]
    command = [sys.executable, "-m", "mlflow", "run", str(ROOT), "-e", "race", *words]
    done = place.call(*command, "--env-manager", "local")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fail_if=slower:wall_seconds holds" in done.stdout + done.stderr
    assert {run.info.status for run in races.cells(place)} == {"FINISHED"}


def test_two_threads_are_found(place: Place) -> None:
    """Vary an environment variable of one level; this needs two CPUs that are mostly free."""
    (place.folder / "matrices.py").write_text(MATRICES)
    options = {"vary": "env.OMP_NUM_THREADS=1,2", "blocks": "8", "cold": "false"}
    races.run(place, f"numpy={PYTHON} matrices.py", code=DONE, **options)
    row = races.comparison(place)["rows"]["wall_seconds"]
    assert (row["factor"], row["verdict"]) == ("env.OMP_NUM_THREADS", "faster")


def test_slower_commit_is_found(place: Place) -> None:
    project, text = place.folder / "project", ""
    for tag, seconds in (("v1", SECONDS), ("v2", 1.1 * SECONDS)):
        repository.commit(project, tag, work=f"import time; time.sleep({seconds})\n")
        text += f"[levels.{tag}]\ncommand = 'python work.py'\ncommit = '{tag}'\n"
    (project / "race.toml").write_text(text)
    races.run(place, file=str(project / "race.toml"), blocks="12", margin="0.02", code=DONE)
    row = races.comparison(place)["rows"]["wall_seconds"]
    assert (row["a"], row["b"], row["verdict"]) == ("v1", "v2", "slower")

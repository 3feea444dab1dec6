"""Races from the command line to the report."""

from __future__ import annotations

import json
import shlex
import sys

import pytest

from tests.conftest import Place
from tests.experiments.race import races

# Sleeps, since its memory is sampled: on a busy machine a shorter command ends before.
PRINTS = """python -c 'import time; time.sleep(0.5); print("{\\"speed\\": 7.5}")'"""


def test_two_commands_are_measured_in_fresh_processes_and_reported(place: Place) -> None:
    done = place.call(*races.command(place, "nap=sleep 0.1", f"prints={PRINTS}; exit 0"))
    assert done.returncode == 3, done.stdout + done.stderr  # one block: no verdict
    runs = races.by_level(place)
    assert set(runs) == {"nap", "prints"}
    nap, prints = runs["nap"], runs["prints"]
    assert 0.1 <= nap.data.metrics["wall_seconds"] < 5
    assert nap.data.params["level"] == "nap"
    assert nap.data.params["command"] == "sleep 0.1"
    assert races.tags(nap)["exit_code"] == "0"
    assert prints.data.metrics["speed"] == 7.5
    assert prints.data.metrics["cpu/user_seconds"] > 0
    assert prints.data.metrics["memory/peak_tree_bytes"] > 5e6
    result = json.loads(next(place.journal.glob("*/report/comparison.json")).read_text())
    rows = {row["metric"]: row for row in result["rows"]}
    assert {"wall_seconds", "cpu/user_seconds", "memory/peak_tree_bytes", "speed"} <= set(rows)
    assert (rows["wall_seconds"]["factor"], rows["wall_seconds"]["a"]) == ("level", "nap")

    call = [sys.executable, "-m", "experiments"]
    words = shlex.split(place.call(*call, "campaigns").stdout.rpartition(" again: ")[2])
    words = [*words[words.index("compare") :], "--figures=false", "--format=json"]
    again = json.loads(place.call(*call, *words).stdout)
    assert {row["metric"]: row["n_blocks"] for row in again["rows"]}["wall_seconds"] == 1


def test_race_is_recorded_as_the_users_own(place: Place) -> None:
    """Names of the levels, the commit of the user's folder, no data set, nothing of frameworks."""
    git = ("git", "-C", str(place.folder), "-c", "user.name=u", "-c", "user.email=u@example.org")
    (place.folder / "a.py").write_text("")
    for words in (("init", "-b", "trunk"), ("add", "a.py"), ("commit", "-m", "first")):
        assert place.call(*git, *words).returncode == 0
    head = place.call(*git, "rev-parse", "HEAD").stdout.strip()
    levels = ("numpy=python a.py", "pandas=python -c pass")
    done = place.call(*races.command(place, *levels, blocks="1"))
    assert done.returncode == 3, done.stdout + done.stderr
    (campaign,) = races.cells(place, "campaign")
    assert campaign.info.run_name.startswith("race pandas against numpy")
    (report,) = place.journal.glob("*/report/report.html")
    assert "<h1>pandas against numpy</h1>" in report.read_text()
    for run in (campaign, *races.cells(place)):
        tags = races.tags(run)
        assert (tags["commit"], tags["mlflow.source.git.branch"]) == (head, "trunk")
        assert tags["mlflow.source.git.commit"] == head
        assert {name for name in tags if name.startswith("version.")} <= {"version.python"}
        foreign = {"threads", "timing", "conv_algorithm", "malloc", "framework", "frameworks"}
        foreign |= {"levels", "window_steps", "pythons", "protocol", "executor", "nodes"}
        assert not foreign & run.data.params.keys()
        assert not {"framework", "model", "dataset"} & tags.keys()
        assert all(run.data.params.values())
        assert not run.inputs.dataset_inputs


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, "needs commands"),
        ({"level": "a"}, "NAME=COMMAND"),
        ({"level": "a=true", "pairing": "interleaved"}, "takes no turns"),
        ({"level": "a=true", "partition": "gpu"}, "executor=slurm"),
        ({"level": "a=true", "frameworks": "pytorch"}, "no setting"),
        ({"level": "a=true", "vary": "threads=1,2"}, "not a setting of a single cell"),
        ({"level": "a=true", "command": "x"}, "set level or file instead"),
        ({"level": "a=true", "fail_if": "slower:wal_seconds"}, "did you mean wall_seconds?"),
        ({"level": "a=true", "fail_if": "slower:speed"}, "[outcomes.NAME]"),
        ({"level": "a=true", "fail_if": "slower:memory/peak_tree_bytes"}, "can never hold"),
    ],
)
def test_wrong_calls_end_in_one_line(place: Place, options: dict[str, str], code: str) -> None:
    done = place.call(*races.command(place, **options))
    assert done.returncode == 2
    assert code in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not list(place.journal.glob("*/records.jsonl"))


def test_condition_on_a_declared_outcome_that_no_command_reports(place: Place) -> None:
    (place.folder / "race.toml").write_text(
        "[levels.a]\ncommand = 'true'\n[levels.b]\ncommand = 'true'\n"
        "[outcomes.speed]\nbetter = 'higher'\nunit = 'steps/s'\nregex = 'speed: ([0-9]+)'\n"
    )
    done = place.call(*races.command(place, file="race.toml", fail_if="slower:speed"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fail_if=slower:speed cannot be judged" in done.stdout
    assert {run.info.status for run in races.cells(place)} == {"FINISHED"}

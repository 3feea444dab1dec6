"""Races from the command line to the report."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from experiments.cli.codes import FAILED, WRONG_CALL
from experiments.config import race_file
from experiments.workloads.command import prepare
from experiments.workloads.command.environments import Environment
from tests.conftest import Place
from tests.experiments.command.repository import git
from tests.experiments.conftest import CallHere
from tests.experiments.race import races

# Sleeps, since its memory is sampled: on a busy machine a shorter command ends before.
PRINTS = """python -c 'import time; time.sleep(0.5); print("{\\"speed\\": 7.5}")'"""


def test_commands_are_measured_reported_and_recorded_without_secrets(place: Place) -> None:
    levels = ("nap=sleep 0.1; true --token geheim-1 'x'", f"prints=HF_TOKEN=geheim-2 {PRINTS}")
    output = races.run(place, *levels)
    runs = races.by_level(place)
    nap, prints = runs["nap"], runs["prints"]
    assert 0.1 <= nap.data.metrics["wall_seconds"] < 5
    assert (nap.data.params["level"], races.tags(nap)["exit_code"]) == ("nap", "0")
    assert nap.data.params["command"] == "sleep 0.1; true --token *** 'x'"
    assert prints.data.params["command"] == f"HF_TOKEN=*** {PRINTS}"
    (campaign,) = races.cells(place, "campaign")
    assert campaign.data.params["level"].startswith("nap=sleep 0.1; true --token *** 'x',prints=HF")
    assert "geheim" not in output + str(campaign.to_dictionary())
    assert prints.data.metrics["speed"] == 7.5
    assert prints.data.metrics["cpu/user_seconds"] > 0
    assert prints.data.metrics["memory/peak_tree_bytes"] > 5e6
    rows = races.comparison(place)["rows"]
    assert {"wall_seconds", "cpu/user_seconds", "memory/peak_tree_bytes", "speed"} <= set(rows)
    assert (rows["wall_seconds"]["factor"], rows["wall_seconds"]["a"]) == ("level", "nap")

    call = [sys.executable, "-m", "experiments"]
    words = shlex.split(place.call(*call, "campaigns").stdout.rpartition(" again: ")[2])
    words = [*words[words.index("compare") :], "--figures=false", "--format=json"]
    again = json.loads(place.call(*call, *words).stdout)
    assert {row["metric"]: row["n_blocks"] for row in again["rows"]}["wall_seconds"] == 1


def test_race_of_a_repository_is_recorded_as_the_users_own(place: Place) -> None:
    """Record its levels and commit, and nothing of frameworks. No command reports `speed`."""
    (place.folder / "a.py").write_text("")
    for words in (("init", "-qb", "trunk"), ("add", "a.py"), ("commit", "-qm", "first")):
        git(place.folder, *words)
    head = git(place.folder, "rev-parse", "HEAD")
    (place.folder / "race.toml").write_text(
        "[levels.numpy]\ncommand = 'python a.py'\n[levels.pandas]\ncommand = 'python -c pass'\n"
        "[outcomes.speed]\nbetter = 'higher'\nunit = 'steps/s'\nregex = 'speed: ([0-9]+)'\n"
    )
    output = races.run(place, file="race.toml", fail_if="slower:speed", code=FAILED)
    assert "fail_if=slower:speed cannot be judged" in output
    (campaign,) = races.cells(place, "campaign")
    assert campaign.info.run_name.startswith("race pandas against numpy")
    (report,) = place.journal.glob("*/report/report.html")
    assert "<h1>pandas against numpy</h1>" in report.read_text()
    cells = races.cells(place)
    assert {run.info.status for run in cells} == {"FINISHED"}
    foreign = {"threads", "timing", "conv_algorithm", "malloc", "framework", "frameworks"}
    foreign |= {"levels", "window_steps", "pythons", "protocol", "executor", "nodes"}
    for run in (campaign, *cells):
        tags = races.tags(run)
        assert (tags["commit"], tags["mlflow.source.git.branch"]) == (head, "trunk")
        assert tags["mlflow.source.git.commit"] == head
        assert {name for name in tags if name.startswith("version.")} <= {"version.python"}
        assert not foreign & run.data.params.keys()
        assert not {"framework", "model", "dataset"} & tags.keys()
        assert all(run.data.params.values())
        assert not run.inputs.dataset_inputs


@pytest.mark.parametrize(
    ("options", "part"),
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
def test_wrong_calls_end_in_one_line(
    place: Place, call_here: CallHere, options: dict[str, str], part: str
) -> None:
    done = call_here(*races.command(place, **options)[3:])
    assert done.returncode == WRONG_CALL
    (line,) = done.stderr.splitlines()
    assert part in line
    assert not list(place.journal.glob("*/records.jsonl"))


def test_store_that_a_command_removes_is_reported_in_lines(place: Place) -> None:
    done = place.call(*races.command(place, "removes=rm mlflow.db*", "good=true"))
    assert "Traceback" not in done.stdout + done.stderr
    assert "replay" in done.stdout + done.stderr


def test_options_of_an_installer_are_recorded_without_passwords(tmp_path: Path) -> None:
    (tmp_path / "race.toml").write_text(
        "[levels.a]\ncommand = 'true'\n"
        "requirements = ['--find-links https://me:geheim-1@127.0.0.1:9/x', 'tiny==1']\n"
    )
    race = race_file.load(str(tmp_path / "race.toml"), (), "none")
    definition = prepare._definition(race, {"a": Environment(tmp_path, {}, {}, None)})
    assert json.loads(definition)["levels"]["a"]["requirements"] == [
        "--find-links https://me:***@127.0.0.1:9/x",
        "tiny==1",
    ]

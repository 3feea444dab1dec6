"""Races from the command line to the report, of commands that behave well and badly."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from experiments.cli.codes import FAILED, WRONG_CALL
from experiments.config import race_file
from experiments.workloads.command import prepare
from experiments.workloads.command.environments import Environment
from tests.conftest import Place
from tests.experiments.command.repository import git
from tests.experiments.conftest import CallHere
from tests.experiments.race import races

# Sleeps, since its memory is sampled: on a busy machine a shorter command ends before.
SPEED = """python -c 'import time; time.sleep(0.5); print("{\\"speed\\": 7.5}")'"""


def test_commands_are_measured_reported_and_recorded_without_secrets(place: Place) -> None:
    levels = ("nap=sleep 0.1; true --token geheim-1 'x'", f"prints=HF_TOKEN=geheim-2 {SPEED}")
    output = races.run(place, *levels)
    runs = races.by_level(place)
    nap, prints = runs["nap"], runs["prints"]
    assert 0.1 <= nap.data.metrics["wall_seconds"] < 5
    assert (nap.data.params["level"], races.tags(nap)["exit_code"]) == ("nap", "0")
    assert nap.data.params["command"] == "sleep 0.1; true --token *** 'x'"
    assert prints.data.params["command"] == f"HF_TOKEN=*** {SPEED}"
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


PYTHON = shlex.quote(sys.executable)
SECRETS = {
    "DB_PASS": "pass-geheim",
    "MY_PAT": "geheim-pat",
    "SSH_PASSPHRASE": "geheim-phrase",
    "GH_AUTH": "geheim-auth",
    "DATABASE_URL": "postgres://dana:geheim%2Furl@example.org/db",
    "API_TOKEN": '-----geheim-1"ä\ngeheim-2-----',
}
PRINTS = f"""
import json, os, sys, urllib.parse
values = [os.environ[name] for name in {list(SECRETS)}]
for text in values:
    print(text, json.dumps(text), repr(text), urllib.parse.quote(text, safe=""), sep="\\n")
print("geheim/url", *sys.argv[1:])
print("loss: 0.5", values[0] + "y" * (2**20 - 9), sep="\\n")  # the last mebibyte begins in it
with open(os.environ["EVENHAND_METRICS"], "w") as file:
    file.write(json.dumps({{values[1]: 1.0, "speed": 2.0}}) + "\\n")
print(*values, file=sys.stderr)
sys.exit(sys.argv[1] == "fails")
"""
LEAVES_CHILDREN = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        time.sleep(300)
os._exit(0)
"""
OPTIONS = "--token geheim-option https://dana:geheim-password@example.org"
LEVELS = {
    "good": "echo loss: 1",
    "prints": f"env -- 'HF_TOKEN=geheim-inline' {PYTHON} prints.py x {OPTIONS}",
    "fails": f"{PYTHON} prints.py fails {OPTIONS}",
    "backtracks": f"echo {'a' * 60}b; echo err >&2",
    "hangs": "echo stuck >&2; sleep 300",
    "killed": "kill -9 $$",
    "leaves": f"{PYTHON} left.py",
    "folder": "mkdir $EVENHAND_METRICS",
    "removed": "rm -r $(dirname $EVENHAND_METRICS)",
    "large": "truncate -s 200M $EVENHAND_METRICS",
}
LINES = "timeout = '3s'\nenv = {DB_PASS = 'pass-geheim'}\n"
OUTCOME = "[outcomes.loss]\nbetter = 'lower'\nregex = '(?:a+)+c|loss: ([0-9.]+)'\n"


@pytest.fixture(scope="module")
def output(module_place: Place) -> str:
    """Run the race, and return what it prints."""
    folder = module_place.folder
    (folder / "prints.py").write_text(PRINTS)
    (folder / "left.py").write_text(LEAVES_CHILDREN)
    tables = [f"[levels.{name}]\ncommand = '''{text}'''\n{LINES}" for name, text in LEVELS.items()]
    (folder / "race.toml").write_text("".join(tables) + OUTCOME)
    with pytest.MonkeyPatch.context() as patch:
        for name, text in SECRETS.items():
            patch.setenv(name, text)
        return races.run(module_place, file="race.toml", code=FAILED)


@pytest.fixture
def runs(output: str, module_place: Place) -> Mapping[str, Run]:
    return races.by_level(module_place)


def test_end_of_a_command_is_its_outcome(runs: Mapping[str, Run], output: str) -> None:
    """The command whose metrics are searched too long has ended, with what it printed."""
    tags = {name: races.tags(run) for name, run in runs.items()}
    ends = {name: (run["outcome"], run["end"], run.get("exit_code")) for name, run in tags.items()}
    assert ends == {
        "good": ("ok", "exit", "0"),
        "prints": ("ok", "exit", "0"),
        "fails": ("failed", "exit", "1"),
        "backtracks": ("failed", "timeout", "0"),
        "hangs": ("failed", "timeout", None),
        "killed": ("failed", "signal", "-9"),
        "leaves": ("ok", "exit", "0"),
        "folder": ("failed", "exit", "0"),
        "removed": ("ok", "exit", "0"),
        "large": ("failed", "exit", "0"),
    }
    assert tags["leaves"]["outlived"].startswith("2 processes")
    parts = {"hangs": "stuck", "folder": "EVENHAND_METRICS", "large": f"{200 * 2**20:,}"}
    assert all(part in tags[name]["outcome_reason"] for name, part in parts.items())
    assert "Traceback" not in output


def test_values_and_outputs_are_recorded(runs: Mapping[str, Run], module_place: Place) -> None:
    assert runs["good"].data.metrics["loss"] == 1
    metrics = runs["prints"].data.metrics
    assert (metrics["speed"], metrics["loss"]) == (2.0, 0.5)
    (printed,) = module_place.journal.glob("*/cells/*-backtracks/*/stdout.txt")
    assert printed.read_text() == f"{'a' * 60}b\n"


def test_no_secret_reaches_mlflow_or_the_journal(
    runs: Mapping[str, Run], output: str, module_place: Place
) -> None:
    assert runs["good"].data.params["variables"] == "DB_PASS=***"
    names = ("metrics.jsonl", "records.jsonl")  # the script's own file, and the records to send
    inputs = [path for name in names for path in module_place.journal.rglob(name)]
    client, texts = MlflowClient(module_place.uri), {"output": output}
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            run.data.tags.pop("mlflow.source.git.diff", None)  # of this file
            texts[run.info.run_id] = str(run.to_dictionary())
    files = [*(module_place.folder / "mlruns").rglob("*"), *module_place.journal.rglob("*")]
    for path in files:
        if path.is_file() and path not in inputs:
            texts[str(path)] = path.read_bytes().decode(errors="replace")
    assert len([path for path in texts if path.endswith("/stdout.txt")]) > 2
    assert not [path for path, text in texts.items() if "geheim" in text]

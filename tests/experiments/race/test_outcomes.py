"""Commands that behave well and badly, in one race: outcomes, reasons, and no secret anywhere."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from experiments.cli.codes import FAILED
from tests.conftest import Place
from tests.experiments.race import races

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

"""Secrets of a race: none reaches MLflow or the journal's artifacts, however it is printed."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from experiments.config import race_file
from experiments.workloads.command import prepare
from experiments.workloads.command.environments import Environment
from tests.conftest import Place
from tests.experiments.race import races

SECRETS = {
    "DB_PASS": "pass-geheim",
    "MY_PAT": "geheim-pat",
    "SSH_PASSPHRASE": "geheim-phrase",
    "GH_AUTH": "geheim-auth",
    "DATABASE_URL": "postgres://dana:geheim%2Furl@example.org/db",
    "API_TOKEN": '-----geheim-1"ä\ngeheim-2-----',
}
PRINTS = """
import json, os, sys, urllib.parse
values = [os.environ[name] for name in %s]
for text in values:
    print(text, json.dumps(text), repr(text), urllib.parse.quote(text, safe=""), sep="\\n")
print("geheim/url", *sys.argv[1:])
print("loss: 0.5", values[0] + "y" * (2**20 - 9), sep="\\n")  # the last mebibyte begins in it
with open(os.environ["EVENHAND_METRICS"], "w") as file:
    file.write(json.dumps({values[1]: 1.0, "speed": 2.0}) + "\\n")
print(*values, file=sys.stderr)
sys.exit(sys.argv[1] == "fails")
"""
RACE = """
[levels.prints]
command = {command}
env = {{DB_PASS = "pass-geheim"}}
[levels.fails]
command = {failing}
[outcomes.loss]
better = "lower"
regex = "loss: ([0-9.]+)"
"""


def contents(place: Place) -> dict[str, str]:
    """Return all texts that MLflow has of the place's runs, by run and kind, and its artifacts."""
    client, texts = MlflowClient(place.uri), dict[str, str]()
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            run.data.tags.pop("mlflow.source.git.diff", None)  # of this file
            texts[run.info.run_id] = str(run.to_dictionary())
    for path in (place.folder / "mlruns").rglob("*"):
        if path.is_file():
            texts[str(path)] = path.read_bytes().decode(errors="replace")
    return texts


def test_no_secret_reaches_mlflow(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in SECRETS.items():
        monkeypatch.setenv(name, text)
    (place.folder / "prints.py").write_text(PRINTS % list(SECRETS))
    script = f"{shlex.quote(sys.executable)} prints.py"
    options = "--token geheim-option https://dana:geheim-password@example.org"
    command = f"env -- 'HF_TOKEN=geheim-inline' {script} x {options}"
    text = RACE.format(command=repr(command), failing=repr(f"{script} fails {options}"))
    (place.folder / "race.toml").write_text(text)
    done = place.call(*races.command(place, file="race.toml"))
    assert done.returncode == 1, done.stdout + done.stderr
    runs = races.by_level(place)
    outcomes = {name: races.tags(run)["outcome"] for name, run in runs.items()}
    assert outcomes == {"prints": "ok", "fails": "failed"}
    metrics = runs["prints"].data.metrics
    assert (metrics["speed"], metrics["loss"]) == (2.0, 0.5)
    texts = {**contents(place), "output": done.stdout + done.stderr}
    assert len([path for path in texts if path.endswith("/stdout.txt")]) == 2
    assert not [path for path, text in texts.items() if "geheim" in text]
    files = [path for path in place.journal.rglob("*") if path.is_file()]
    ours = [path for path in files if path.name not in ("metrics.jsonl", "records.jsonl")]
    assert not [path for path in ours if b"geheim" in path.read_bytes()]


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


def test_commands_of_the_call_are_recorded_without_secrets(place: Place) -> None:
    levels = ("a=true --token geheim-1 'x'", "b=HF_TOKEN=geheim-2 true")
    done = place.call(*races.command(place, *levels))
    assert done.returncode == 3, done.stdout + done.stderr
    assert not [path for path, text in contents(place).items() if "geheim" in text]
    params = {name: run.data.params["command"] for name, run in races.by_level(place).items()}
    assert params == {"a": "true --token *** 'x'", "b": "HF_TOKEN=*** true"}
    (campaign,) = races.cells(place, "campaign")
    assert campaign.data.params["level"] == "a=true --token *** 'x',b=HF_TOKEN=*** true"

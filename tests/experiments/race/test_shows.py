"""Races of scripts that nobody here wrote, of scripts that misbehave, and next to other tools."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

from tests.conftest import Place, are_gone, wait_for
from tests.experiments.race import races

PYTHON = shlex.quote(sys.executable)
AUTOLOG = "import mlflow, runpy; mlflow.autolog(); runpy.run_path('perceptron.py')"
MATRICES = """
import numpy as np
a = np.random.default_rng(0).standard_normal((1500, 1500))
for _ in range(12):
    a @ a
"""
OWN_SERVER = """
import mlflow
mlflow.set_tracking_uri("sqlite:///own.db")
mlflow.set_experiment("mine")
with mlflow.start_run():
    mlflow.log_metric("elsewhere", 1.0)
"""
OWN_EXPERIMENT = """
import mlflow
mlflow.set_experiment("mine")
with mlflow.start_run():
    for step, value in enumerate([0.6, 0.9, 0.7]):
        mlflow.log_metric("score", value, step=step)
    with mlflow.start_run(nested=True):
        mlflow.log_metric("inner", 3.0)
"""
LEAVES_CHILDREN = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        time.sleep(300)
os._exit(0)
"""
TOOLS_PERCENT = {"wall": 1.0, "memory": 2.0}


def example(module: str, name: str) -> str:
    """Return the examples of a docstring as a script."""
    text = getattr(importlib.import_module(module), name).__doc__
    return doctest.script_from_examples(re.sub(r"# doctest:.*", "", text))


def comparison(place: Place) -> dict[str, dict[str, object]]:
    result = json.loads(next(place.journal.glob("*/report/comparison.json")).read_text())
    return {row["metric"]: row for row in result["rows"]}


@pytest.mark.slow
def test_scripts_of_packages_are_compared_without_editing_them(place: Place) -> None:
    folder = place.folder
    (folder / "perceptron.py").write_text(example("sklearn.linear_model", "Perceptron"))
    keras = "import keras, numpy as np\n" + example("keras.callbacks", "EarlyStopping")
    (folder / "early_stopping.py").write_text(keras)
    levels = (
        f'sklearn={PYTHON} -c "{AUTOLOG}"',
        f"keras=KERAS_BACKEND=torch {PYTHON} early_stopping.py",
        f"torch={PYTHON} -m torch.utils.benchmark.examples.simple_timeit",
    )
    done = place.call(*races.command(place, *levels))
    assert done.returncode == 3, done.stdout + done.stderr
    runs = races.by_level(place)
    assert set(runs) == {"sklearn", "keras", "torch"}
    assert all(run.data.metrics["wall_seconds"] > 0.5 for run in runs.values())
    assert runs["sklearn"].data.metrics["training_accuracy_score"] > 0.9  # by autolog
    assert len(races.tags(runs["sklearn"])["script_runs"]) == 32


@pytest.mark.slow
def test_two_threads_are_found(place: Place) -> None:
    """Vary an environment variable of one level; this needs two CPUs that are mostly free."""
    (place.folder / "matrices.py").write_text(MATRICES)
    done = place.call(
        *races.command(
            place,
            f"numpy={PYTHON} matrices.py",
            vary="env.OMP_NUM_THREADS=1,2",
            blocks="8",
            cold="false",
        )
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row = comparison(place)["wall_seconds"]
    assert (row["factor"], row["verdict"]) == ("env.OMP_NUM_THREADS", "faster")


@pytest.mark.slow
def test_scripts_with_runs_and_servers_of_their_own(place: Place) -> None:
    folder = place.folder
    (folder / "server.py").write_text(OWN_SERVER)
    (folder / "experiment.py").write_text(OWN_EXPERIMENT)
    (folder / "race.toml").write_text(
        f"[levels.server]\ncommand = '{PYTHON} server.py'\n"
        f"[levels.experiment]\ncommand = '{PYTHON} experiment.py'\n"
        "[outcomes]\nprimary = ['wall_seconds', 'score']\n"
        "[outcomes.score]\nbetter = 'higher'\nsummary = 'best'\n"
    )
    done = place.call(*races.command(place, file="race.toml"))
    assert done.returncode == 3, done.stdout + done.stderr
    runs = races.by_level(place)
    assert "elsewhere" not in runs["server"].data.metrics
    assert runs["experiment"].data.metrics["score"] == 0.9
    assert runs["experiment"].data.metrics["inner"] == 3.0
    scripts = races.tags(runs["experiment"])["script_runs"].split(",")
    of_scripts = [MlflowClient(place.uri).get_run(run_id).data.tags for run_id in scripts]
    assert [tags for tags in of_scripts if "machine" in tags] == []  # tags would take time
    assert "machine" in runs["experiment"].data.tags
    assert (folder / "own.db").exists()


@pytest.mark.slow
def test_a_level_that_hangs_fails_or_leaves_children_is_a_result(place: Place) -> None:
    folder = place.folder
    (folder / "left.py").write_text(LEAVES_CHILDREN)
    (folder / "race.toml").write_text(
        "[levels.good]\ncommand = 'true'\n"
        "[levels.hangs]\ncommand = 'echo stuck >&2; sleep 300'\ntimeout = '1s'\n"
        "[levels.fails]\ncommand = 'echo the key is $API_TOKEN >&2; exit 3'\n"
        "env = {API_TOKEN = 'geheim-1234'}\n"
        "[levels.killed]\ncommand = 'kill -9 $$'\n"
        f"[levels.leaves]\ncommand = '{PYTHON} left.py'\n"
    )
    done = place.call(*races.command(place, file="race.toml", cold="false"))
    assert done.returncode == 1, done.stdout + done.stderr
    tags = {name: races.tags(run) for name, run in races.by_level(place).items()}
    assert {name: tag["outcome"] for name, tag in tags.items()} == {
        "good": "ok",
        "hangs": "failed",
        "fails": "failed",
        "killed": "failed",
        "leaves": "ok",
    }
    assert tags["hangs"]["end"] == "timeout"
    assert "stuck" in tags["hangs"]["outcome_reason"]
    assert (tags["fails"]["end"], tags["fails"]["exit_code"]) == ("exit", "3")
    assert "the key is ***" in tags["fails"]["outcome_reason"]
    assert tags["killed"]["end"] == "signal"
    assert tags["leaves"]["outlived"].startswith("2 processes")
    assert races.by_level(place)["fails"].data.params["variables"] == "API_TOKEN=***"
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "race.toml"]
    assert not [path for path in files if b"geheim-1234" in path.read_bytes()]
    assert "geheim-1234" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_killed_race_leaves_no_process_and_goes_on(place: Place) -> None:
    levels = ("a=sleep 0.4321; true", "b=setsid sleep 0.8765; true")
    process = place.begin(*races.command(place, *levels, blocks="3", journal=str(place.journal)))
    wait_for(lambda: len(races.cells(place)) >= 3, 120)
    processes = psutil.Process(process.pid).children(recursive=True)
    psutil.Process(process.pid).kill()
    wait_for(lambda: are_gone(processes), 15)
    finished = [run.info.run_id for run in races.cells(place) if run.info.status == "FINISHED"]
    resume = [f"--cache={place.cache}", f"--journal={place.journal}", "--resume=last"]
    done = place.call(sys.executable, "-m", "experiments", "race", *resume)
    assert done.returncode == 3, done.stdout + done.stderr
    ok = [run for run in races.cells(place) if races.tags(run).get("outcome") == "ok"]
    assert len({races.tags(run)["cell"] for run in ok}) == 6
    assert set(finished) <= {run.info.run_id for run in ok}


@pytest.mark.slow
@pytest.mark.debian(package="hyperfine")
@pytest.mark.debian(package="time")
def test_wall_time_and_memory_agree_with_hyperfine_and_gnu_time(
    place: Place, tmp_path: Path
) -> None:
    """Single runs differ by more than the tools: medians of runs in turns, on a quiet machine."""
    script = tmp_path / "work.py"
    script.write_text("import time\nx = bytearray(300_000_000)\ntime.sleep(2)\n")
    command = f"{PYTHON} {script}"
    wall, memory = list[float](), list[float]()
    for number in range(5):
        out = tmp_path / f"hyperfine-{number}.json"
        subprocess.run(
            ["hyperfine", "--runs=1", f"--export-json={out}", command],
            env=place.environment,
            check=True,
            capture_output=True,
        )
        wall.append(json.loads(out.read_text())["results"][0]["mean"])
        done = subprocess.run(
            ["/usr/bin/time", "-f", "%M", "sh", "-c", command],
            check=True,
            capture_output=True,
            text=True,
        )
        memory.append(1_024 * float(done.stderr))
        journal = str(tmp_path / f"journal-{number}")
        options = {"journal": journal, "sensor_seconds": "0"}  # the default period
        call = place.call(*races.command(place, f"work={command}", **options))
        assert call.returncode == 3, call.stdout + call.stderr
    runs = [run.data.metrics for run in races.cells(place)]
    ours = statistics.median(run["wall_seconds"] for run in runs)
    peak = statistics.median(run["memory/peak_tree_bytes"] for run in runs)
    differences = {
        "wall": 100 * abs(ours / statistics.median(wall) - 1),
        "memory": 100 * abs(peak / statistics.median(memory) - 1),
    }
    assert all(differences[name] <= limit for name, limit in TOOLS_PERCENT.items()), differences

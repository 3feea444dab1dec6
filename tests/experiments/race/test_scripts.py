"""Races of scripts that nobody here wrote, next to other tools, and as the tutorial has them."""

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

import pytest
from mlflow import MlflowClient

from tests.conftest import ROOT, Place
from tests.experiments.race import races

pytestmark = pytest.mark.slow
PYTHON = shlex.quote(sys.executable)
AUTOLOG = "import mlflow, runpy; mlflow.autolog(); runpy.run_path('perceptron.py')"
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
RACE = f"""
[levels.server]
command = "{PYTHON} server.py"
[levels.experiment]
command = "{PYTHON} experiment.py"
[outcomes]
primary = ["wall_seconds", "score"]
[outcomes.score]
better = "higher"
summary = "best"
"""
TUTORIAL = (ROOT / "docs/tutorials/your-script.md").read_text()
QUICK = ("--cool_down_seconds=0", "--others_limit_percent=100", "--figures=false")


def example(module: str, name: str) -> str:
    """Return the examples of a docstring as a script."""
    text = getattr(importlib.import_module(module), name).__doc__
    return doctest.script_from_examples(re.sub(r"# doctest:.*", "", text))


def test_scripts_of_packages_are_compared_without_editing_them(place: Place) -> None:
    folder = place.folder
    (folder / "perceptron.py").write_text(example("sklearn.linear_model", "Perceptron"))
    keras = "import keras, numpy as np\n" + example("keras.callbacks", "EarlyStopping")
    (folder / "early_stopping.py").write_text(keras)
    races.run(
        place,
        f'sklearn={PYTHON} -c "{AUTOLOG}"',
        f"keras=KERAS_BACKEND=torch {PYTHON} early_stopping.py",
        f"torch={PYTHON} -m torch.utils.benchmark.examples.simple_timeit",
    )
    runs = races.by_level(place)
    assert set(runs) == {"sklearn", "keras", "torch"}
    assert all(run.data.metrics["wall_seconds"] > 0.5 for run in runs.values())
    assert runs["sklearn"].data.metrics["training_accuracy_score"] > 0.9  # by autolog
    assert len(races.tags(runs["sklearn"])["script_runs"]) == 32


def test_scripts_with_runs_and_servers_of_their_own(place: Place) -> None:
    folder = place.folder
    (folder / "server.py").write_text(OWN_SERVER)
    (folder / "experiment.py").write_text(OWN_EXPERIMENT)
    (folder / "race.toml").write_text(RACE)
    races.run(place, file="race.toml")
    runs = races.by_level(place)
    assert "elsewhere" not in runs["server"].data.metrics
    assert runs["experiment"].data.metrics["score"] == 0.9
    assert runs["experiment"].data.metrics["inner"] == 3.0
    scripts = races.tags(runs["experiment"])["script_runs"].split(",")
    of_scripts = [MlflowClient(place.uri).get_run(run_id).data.tags for run_id in scripts]
    assert [tags for tags in of_scripts if "machine" in tags] == []  # tags would take time
    assert "machine" in runs["experiment"].data.tags
    assert (folder / "own.db").exists()


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
        words = ["hyperfine", "--runs=1", f"--export-json={out}", command]
        subprocess.run(words, env=place.environment, check=True, capture_output=True)
        wall.append(json.loads(out.read_text())["results"][0]["mean"])
        words = ["/usr/bin/time", "-f", "%M", "sh", "-c", command]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        memory.append(1_024 * float(done.stderr))
        journal = str(tmp_path / f"journal-{number}")
        races.run(place, f"work={command}", journal=journal, sensor_seconds="0")  # the default
    runs = [run.data.metrics for run in races.cells(place)]
    ours = statistics.median(run["wall_seconds"] for run in runs)
    peak = statistics.median(run["memory/peak_tree_bytes"] for run in runs)
    assert ours == pytest.approx(statistics.median(wall), rel=0.01)
    assert peak == pytest.approx(statistics.median(memory), rel=0.02)


def blocks(language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL)
    return [text for name, text in fences if name == language]


def test_tutorial_on_a_users_script(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    (place.folder / "train.py").write_text(blocks("python")[0])
    (place.folder / "race.toml").write_text(blocks("toml")[0])
    tables = []
    for text in blocks(""):
        name, *words = shlex.split(text)
        assert name == "evenhand"
        options = [*words, f"--journal={place.journal}", f"--cache={place.cache}", *QUICK]
        done = place.call(sys.executable, "-m", "experiments", *options)
        assert done.returncode in (0, 3), done.stdout + done.stderr
        tables.append(races.comparison(place)["rows"])
    assert tables[0]["wall_seconds"]["verdict"] == "slower"
    assert "wall_seconds" in tables[1]
    assert tables[1]["speed"]["margin"] == 0.05
    last = races.by_level(place)
    assert last["two"].data.params["variables"] == "PYTHONHASHSEED=1"
    assert last["one A/A"].data.metrics["speed"] > 0

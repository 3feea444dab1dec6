"""Tags that MLflow's plugin gives to runs of plain scripts, and what they cost and cannot break."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path

import mlflow
import pytest

import evenhand_run_context
from experiments.cli.codes import DONE
from experiments.cli.main import main
from experiments.comparison import compare
from experiments.comparison.runs.pairing import Mismatch
from experiments.comparison.runs.warning import WarningCode
from models import frameworks
from tests.conftest import Place
from tests.tracking.nvml import Driver, driver, library  # noqa: F401
from tracking import nvml, provenance
from tracking.technical import unpack_tags

# Runs of a script, by name. Names of our packages belong to the user's project here.
RUNS = """
import json, os, sys
import mlflow
import psutil

ids = {}
psutil.PROCFS_PATH = "/nowhere"
with mlflow.start_run() as run:
    ids["no_proc"] = run.info.run_id
psutil.PROCFS_PATH = "/proc"
before = set(sys.modules)
with mlflow.start_run() as run:
    ids["plain"] = run.info.run_id
    with mlflow.start_run(nested=True) as run:
        ids["nested"] = run.info.run_id
ids["imported"] = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
os.environ["MLFLOW_RUN_CONTEXT"] = json.dumps({"machine": "theirs", "version.numpy": "theirs"})
with mlflow.start_run(tags={"gpu": "mine"}) as run:
    ids["tagged"] = run.info.run_id
os.environ["EVENHAND_CONTEXT"] = "off"
with mlflow.start_run() as run:
    ids["off"] = run.info.run_id
del os.environ["MLFLOW_RUN_CONTEXT"], os.environ["EVENHAND_CONTEXT"]

from sklearn.linear_model import LinearRegression

mlflow.sklearn.autolog(log_models=False, silent=True)
LinearRegression().fit([[0], [1]], [0, 1])
ids["autologged"] = mlflow.last_active_run().info.run_id
import models
ids["models"] = models.OWNER
print(json.dumps(ids))
"""
BLOCKS = """
import json, os, time
import mlflow

mlflow.set_experiment("plain")
for block in range(1, 7):
    for side in ("ab", "ba")[block % 2]:
        os.environ["MLFLOW_RUN_CONTEXT"] = json.dumps({"framework": side, "block": str(block)})
        with mlflow.start_run():
            time.sleep(0.002)
            mlflow.log_metric("fit_seconds", (1 if side == "a" else 1.5) * (1 + 0.01 * block))
"""
HEAVY = {"jax", "keras", "tensorflow", "torch", "matplotlib", "sklearn"}


def script(place: Place, code: str, **environment: str) -> str:
    """Return the output of a script in a process that begins as a user's."""
    path = place.folder / "project" / "train.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    inherited = {name: text for name, text in place.environment.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**inherited, **environment},
        cwd=place.folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "evenhand" not in done.stderr
    return done.stdout


def test_plugin_is_installed() -> None:
    (entry,) = entry_points(group="mlflow.run_context_provider", name="evenhand")
    assert entry.load() is evenhand_run_context.RunContext, "pip install -e . again"
    assert set(frameworks.distributions()) <= set(evenhand_run_context.FRAMEWORKS)


def test_every_new_run_of_a_script_gets_the_tags_of_the_schema(place: Place) -> None:
    project = place.folder / "project"
    project.mkdir()
    for name in ("tracking", "experiments"):
        (project / f"{name}.py").write_text("raise SystemExit('the plugin ran a module of a user')")
    (project / "models.py").write_text("OWNER = 'user'")
    (place.folder / "libnvidia-ml.so.1").write_text("no library")
    variables = {"OMP_PROC_BIND": "close", "TF_TOKEN_example": "x1", "NVIDIA_API_KEY": "x2"}
    variables["LD_LIBRARY_PATH"] = str(place.folder)
    ids = json.loads(script(place, RUNS, **variables))
    tags = {
        name: unpack_tags(mlflow.MlflowClient(place.uri).get_run(text).data.tags)
        for name, text in ids.items()
        if name not in ("imported", "models")
    }
    ours = {
        "machine": provenance.fingerprint(),
        **provenance.environment_tags(evenhand_run_context.FRAMEWORKS),
        "inherited.OMP_PROC_BIND": "close",
    }
    for name in ("plain", "nested", "autologged"):
        assert tags[name].items() >= ours.items(), name
    assert not {"x1", "x2"} & set(tags["plain"].values())
    assert tags["tagged"]["gpu"] == "mine"
    assert [tags["tagged"][name] for name in ("machine", "version.numpy")] == ["theirs"] * 2
    assert tags["tagged"]["version.scipy"] == ours["version.scipy"]
    for name in ("no_proc", "off"):
        assert not {"cpu", "version.scipy"} & tags[name].keys()
    assert ids["models"] == "user"
    assert not HEAVY & set(ids["imported"])


@pytest.mark.parametrize("init", range(1, 4), ids=["hangs", "crashes", "exits"])
def test_broken_driver_costs_seconds_and_is_named(
    driver: Driver, init: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.answers(init=init)
    for name, text in driver.environment.items():
        monkeypatch.setenv(name, text)
    began = time.monotonic()
    assert nvml.names_from_helper() == [nvml.UNKNOWN]
    assert time.monotonic() - began < nvml.ANSWER_SECONDS + 3


def test_no_process_starts_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")  # cannot start
    monkeypatch.setattr(nvml, "DRIVER", Path("/nowhere"))
    assert nvml.names_from_helper() == []
    monkeypatch.setattr(nvml, "DRIVER", Path("/dev/null"))
    assert nvml.names_from_helper() == [nvml.UNKNOWN]


def test_machines_of_plain_runs_are_compared(
    place: Place,
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Blocks of two sides, planted 1.5 times as slow; then one side on another machine."""
    monkeypatch.chdir(place.folder)
    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", place.uri)
    driver.answers(cards=2)
    script(place, BLOCKS, **driver.environment)
    assert main(["compare", "--experiment=plain", "--figures=false", "--format=json"]) == DONE
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["verdict"], row["n_blocks"], round(row["estimate"], 3)) == ("slower", 6, 1.5)

    table = mlflow.search_runs(experiment_names=["plain"])
    assert {warning.code for warning in compare(table).warnings} == {WarningCode.LOAD_UNKNOWN}
    assert {text.count("(driver ") for text in table["tags.gpu"]} == {2}
    client = mlflow.MlflowClient()
    for run_id in table["run_id"][table["tags.framework"] == "b"]:
        client.set_tag(run_id, "machine", "elsewhere")
    result = compare(mlflow.search_runs(experiment_names=["plain"]))
    assert {finding.mismatch for finding in result.findings} == {Mismatch.MACHINES}

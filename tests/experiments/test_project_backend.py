"""`mlflow run -b evenhand-slurm`, as far as it needs no Slurm; see also test_slurm.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import project_backend
from tests.conftest import ROOT, Place
from tracking.errors import ErrorCode, UsageError
from tracking.store import Store


def run_project(
    place: Place, project: Path, entry_point: str, config: dict[str, Any], *options: str
) -> tuple[int, str]:
    """Return exit code and errors of `mlflow run -b evenhand-slurm`."""
    file = place.folder / "cluster.json"
    file.write_text(json.dumps(config))
    command = [sys.executable, "-m", "mlflow", "run", str(project), "-e", entry_point]
    command += ["-b", "evenhand-slurm", "--backend-config", str(file), *options]
    done = place.call(*command)
    return done.returncode, done.stderr


def test_parameters_override_the_configuration() -> None:
    config = {"partition": "gpu", "nodes": 4, "time_limit": "1h", "figures": False}
    config |= {"frameworks": ["pytorch", "tensorflow"]}
    params = {"nodes": "2", "time-limit": "2h", "blocks": "12"}
    assert project_backend.parameters("captioning", config, params) == {
        "executor": "slurm",
        "partition": "gpu",
        "nodes": "2",
        "time-limit": "2h",
        "figures": "false",
        "frameworks": "pytorch,tensorflow",
        "blocks": "12",
    }
    of_sweep = project_backend.parameters("sweep", {"nodes": 8, "trials": 40}, {})
    assert of_sweep == {"executor": "slurm", "nodes": "8", "trials": "40"}


@pytest.mark.parametrize(
    ("entry_point", "config", "code"),
    [
        ("compare", {}, ErrorCode.UNSUPPORTED),
        ("import", {}, ErrorCode.UNSUPPORTED),
        ("captioning", {"partitoin": "gpu"}, ErrorCode.UNKNOWN_NAME),
    ],
)
def test_unusable_configuration_is_refused(
    entry_point: str, config: dict[str, Any], code: ErrorCode
) -> None:
    with pytest.raises(UsageError) as error:
        project_backend.parameters(entry_point, config, {})
    assert error.value.code is code


def test_other_project_is_refused_without_a_run(place: Place) -> None:
    project = place.folder / "project"
    project.mkdir()
    marker = place.folder / "started"
    entry = f"entry_points:\n  captioning:\n    command: touch {marker}\n"
    (project / "MLproject").write_text(f"name: other\n{entry}")
    code, errors = run_project(place, project, "captioning", {})
    assert (code, errors.count("evenhand-slurm"), "Traceback" in errors) == (1, 1, False), errors
    assert str(project)[-40:] in errors
    assert not marker.exists()
    assert list(Store(place.uri).runs("Default")) == []


def test_refused_campaign_is_a_failed_run(place: Place) -> None:
    config = {"partition": "main", "time_limit": "none"}
    code, errors = run_project(place, ROOT, "captioning", config, "-P", "partition=gpu")
    assert code == 1, errors
    (run,) = Store(place.uri).runs("Default")
    assert run.status == "FAILED"
    assert run.tags["mlflow.project.backend"] == "evenhand-slurm"
    assert run.params == {"executor": "slurm", "partition": "gpu", "time_limit": "none"}


ASYNCHRONOUS = """
import mlflow
run = mlflow.projects.run(
    {project!r},
    "captioning",
    parameters={{"time_limit": "none"}},
    backend="evenhand-slurm",
    synchronous=False,
)
print(run.get_status())
"""


@pytest.mark.slow
def test_process_waits_at_exit_for_an_asynchronous_run(place: Place) -> None:
    done = place.call(sys.executable, "-c", ASYNCHRONOUS.format(project=str(ROOT)))
    assert (done.returncode, done.stdout.split()) == (0, ["RUNNING"]), done.stderr
    (run,) = Store(place.uri).runs("Default")
    assert run.status == "FAILED"

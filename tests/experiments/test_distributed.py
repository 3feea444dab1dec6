"""Several workers that train one network: real processes, against one that has all of their images."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from pathlib import Path

import mlflow
import numpy as np
import psutil
import pytest

from experiments.campaign.process import Child
from experiments.cell.contract import CellSpec
from experiments.studies import distributed
from experiments.workloads.distributed import check
from tests.conftest import Place
from tracking import tables
from tracking.errors import WrongCall
from tracking.records import RunClosed, RunOutcome

two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers need two CPUs")


def cell(folder: Path, framework: str, **given: object) -> CellSpec:
    own = {"model": "lenet", "worker_count": 2, "hook": "none", "group": "2", **given}
    settings = {**dataclasses.asdict(distributed.Settings(batch_size=12)), **own}
    spec = CellSpec(
        "run", "distributed", "measure", framework, "cpu", 1, 0, settings, {}, str(folder), "cell", str(folder / "no")
    )
    spec.path.mkdir()
    return spec


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@pytest.mark.parametrize("scaling", ["strong", pytest.param("weak", marks=pytest.mark.slow)])
def test_two_workers_train_as_one_with_all_images(tmp_path: Path, framework: str, scaling: str) -> None:
    assert check.difference(cell(tmp_path, framework, scaling=scaling), "lenet", 2) <= check.TOLERANCE


@pytest.mark.parametrize(("hook", "most"), [("fp16", 1e-3), pytest.param("powersgd", 1.0, marks=pytest.mark.slow)])
def test_the_proof_finds_what_compression_loses(tmp_path: Path, hook: str, most: float) -> None:
    # a gradient rounded to 11 bits is off by up to 5e-4 of itself; of a rank-1 matrix nothing but the order is known
    found = check.difference(cell(tmp_path, "pytorch"), "lenet", 2, hook)
    print(f"{hook}: {found:.1e}")
    assert check.TOLERANCE < found < most


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@pytest.mark.parametrize(
    ("phase", "blow", "victim", "reason"),
    [
        ("training", signal.SIGKILL, 1, "worker 1 was killed by SIGKILL"),
        ("training", signal.SIGSTOP, 1, "worker 1 is stopped"),
        ("training", signal.SIGSTOP, 0, "killed by SIGKILL"),
        ("alone", signal.SIGKILL, 1, "worker 1 was killed by SIGKILL"),
        ("alone", signal.SIGSTOP, 1, "worker 1 is stopped"),
    ],
)
@pytest.mark.slow
def test_a_worker_that_dies_or_freezes_fails_the_cell(
    tmp_path: Path, framework: str, phase: str, blow: signal.Signals, victim: int, reason: str
) -> None:
    steps = 100_000 if phase == "training" else 8_000  # without exchange: so many that it lasts
    child = Child(cell(tmp_path, framework, steps=steps, patience_seconds=8.0), tmp_path / "log")
    workers: list[psutil.Process] = []
    closed, hit = None, 0.0
    while child.open:
        for message in child.listen(0.5):
            if isinstance(message, RunClosed):
                closed = message
            elif isinstance(message, dict) and message.get("progress") == phase and message["done"] > 5 and not workers:
                workers = [psutil.Process(child.pid), *psutil.Process(child.pid).children()]
                workers[victim].send_signal(blow)
                hit = time.monotonic()
        if hit and time.monotonic() - hit > 60:
            child.stop()
            pytest.fail("the cell hangs")
    closed = closed or child.ended()
    assert closed.outcome == RunOutcome.FAILED
    assert reason in closed.reason
    assert not psutil.wait_procs(workers, timeout=20)[1], "no worker is left"


def test_groups_and_their_parts() -> None:
    asked = distributed.Settings(workers=(1, 2), compression=("none", "fp16"))
    assert distributed.groups(asked, "pytorch") == {"1": (1, "none"), "2": (2, "none"), "2 fp16": (2, "fp16")}
    assert distributed.groups(asked, "tensorflow") == {"1": (1, "none"), "2": (2, "none")}
    assert [distributed.rows(64, scaling, 4) for scaling in ("strong", "weak")] == [16, 64]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workers": (1, 1_024)}, "more than the"),
        ({"workers": (2,)}, "is the baseline"),
        ({"frameworks": ("keras-jax",)}, "not trained on several workers"),
        ({"pairing": "interleaved"}, "take pairing=sequential"),
    ],
)
def test_groups_that_cannot_be(given: dict[str, object], said: str) -> None:
    with pytest.raises(WrongCall, match=said):
        distributed.treatments(distributed.Settings(**given))  # type: ignore[arg-type]


def test_more_workers_than_cpus_is_one_line(place: Place) -> None:
    done = place.call(sys.executable, "-m", "experiments", "distributed", "--workers=1,1024", f"--journal={place.journal}")
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert "workers=1024 of threads=1 are more than the" in done.stderr


@two_cpus
def test_every_workers_steps_are_kept_and_the_speed_up_is_told(place: Place) -> None:
    given = {"frameworks": "pytorch", "blocks": "1", "steps": "12", "figures": "false", "others_limit_percent": "100"}
    given |= {"journal": str(place.journal), "cache": str(place.cache)}
    command = (sys.executable, "-m", "experiments", "distributed", *(f"--{name}={text}" for name, text in given.items()))
    done = place.call(*command)
    assert done.returncode == 3, done.stdout + done.stderr  # one block: no verdict
    cells = {run.data.params["group"]: run for run in mlflow.MlflowClient(place.uri).search_runs(["1"], "tags.kind = 'cell'")}
    assert set(cells) == {"1", "2"}
    assert cells["1"].data.metrics["train/loss"] == pytest.approx(cells["2"].data.metrics["train/loss"], rel=1e-4)
    for level, run in cells.items():
        found = tables.read(Path(run.info.artifact_uri, "ranks.parquet"), ("rank", "phase", "seconds"))
        assert len(found["seconds"]) == int(level) * 2 * (10 + 12)
        steps = [
            s for s, rank, of in zip(found["seconds"], found["rank"], found["phase"], strict=True) if (rank, of) == (0, "train")
        ]
        assert run.data.metrics["train/step_seconds"] == pytest.approx(np.median(steps[10:]))
    assert "Speed-up by workers" in next(place.journal.glob("*/report/report.md")).read_text()

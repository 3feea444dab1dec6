"""Known work on this machine's device, measured as campaigns measure: `pytest tests/device`.

Writes all figures with their limits to `build/device.jsonl`, a line after every check. Needs
neither MLflow nor other frameworks than those that are installed.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.cell import warm_up
from experiments.config import devices
from experiments.workloads.distributed.check import proven, run_proof
from models import frameworks, parity
from tests import cells
from tests.cells import CellOutcome
from tests.device.checks import CHECKS
from tests.models.children import checked
from tracking import nvml, provenance, tables
from tracking.records import RunOutcome, Tags, from_line

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "build" / "device.jsonl"
CARDS = nvml.names()
DEVICE = "cuda" if CARDS else "cpu"
FRAMEWORKS = ("pytorch", "pytorch+compile", "tensorflow", "keras-torch", "keras-jax", "jax")
CHECK_SECONDS = GPU_SECONDS = 240
BEGAN = time.monotonic()
GIB = 2**30

pytestmark = [pytest.mark.device, pytest.mark.gpu]
needs_gpu = pytest.mark.skipif(not CARDS, reason="needs an NVIDIA GPU")
each_framework = pytest.mark.parametrize("framework", FRAMEWORKS)
Run = Callable[..., CellOutcome]


@pytest.fixture(scope="module", autouse=True)
def _begin_figures(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("lf", False) and FIGURES.is_file():
        return  # the figures of the tests that are not repeated stay
    machine = {name: value for name, value in provenance.machine().items() if name != "host"}
    packages = provenance.packages(frameworks.distributions())
    head = {"device": DEVICE, "commit": provenance.commit(), "machine": machine}
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.write_text(json.dumps(head | {"packages": packages}, default=str) + "\n")


@pytest.fixture(autouse=True)
def _end_in_time() -> None:
    if time.monotonic() - BEGAN > GPU_SECONDS and CARDS:
        pytest.fail(f"{GPU_SECONDS} s are over; --last-failed runs the rest", pytrace=False)


@cache
def results(framework: str, checks: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Run checks of a framework in one process; a timeout ends those that are left."""
    earlier = len(FIGURES.read_text().splitlines())
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "tests.device.checks", framework, DEVICE, str(FIGURES), *checks],
            cwd=ROOT,
            env=devices.environment_on(DEVICE, os.environ),
            stdout=subprocess.DEVNULL,
            timeout=CHECK_SECONDS,
        )
    lines = map(json.loads, FIGURES.read_text().splitlines()[earlier:])
    return {line["check"]: line for line in lines if line.get("framework") == framework}


def require(framework: str) -> None:
    if reason := frameworks.missing(framework):
        pytest.skip(reason)


@each_framework
@pytest.mark.parametrize("name", CHECKS)
def test_known_work(framework: str, name: str, request: pytest.FixtureRequest) -> None:
    require(framework)
    if framework == "pytorch+compile" and not CARDS:
        pytest.skip("compiles for a minute on a CPU")
    selected = {item.name for item in request.session.items}
    checks = tuple(check for check in CHECKS if f"test_known_work[{check}-{framework}]" in selected)
    line = results(framework, checks).get(name, {"error": "no result: the process ended before"})
    if reason := line.get("skipped"):
        pytest.skip(reason)
    assert "error" not in line
    figures = line["figures"].items()
    assert not {
        figure: (value, low, high)
        for figure, (value, low, high) in figures
        if (low is not None and not value >= low) or (high is not None and not value <= high)
    }


@pytest.mark.parametrize(
    "model",
    ["lenet", *(pytest.param(name, marks=needs_gpu) for name in ("caption_decoder", "bert"))],
)
def test_networks_are_equal(model: str) -> None:
    sides = [name for name in FRAMEWORKS if not frameworks.missing(name)]
    sides.remove("pytorch+compile") if not CARDS else None
    environment = devices.environment_on(DEVICE, os.environ)
    rows = parity.gate([parity.ParityRequest(model, device=DEVICE)], sides, environment=environment)
    assert rows
    assert not [row for row in rows if not row.equal]


# ---- cells and processes of a GPU


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run a cell of a study on the GPU, and write its metrics to the file of figures."""

    def run_cell(study: str, framework: str, **values: Any) -> CellOutcome:
        result = cells.run(tmp_path, study, framework, DEVICE, **values)
        line = {"check": request.node.name, "outcome": result.outcome, "reason": result.reason}
        with FIGURES.open("a") as file:
            print(json.dumps(line | {"figures": dict(result.metrics)}), file=file)
        return result

    return run_cell


def grid(run: Run, framework: str, model: str, side: int, rows: int, **values: Any) -> CellOutcome:
    sizes = {"models": (model,), "image_sizes": (side,), "batch_sizes": (rows,), "classes": 10}
    settings: dict[str, Any] = {"seconds": 1.0, "phases": ("train",), "window_steps": 5}
    return run("grid", framework, **sizes, **settings | values)


@needs_gpu
def test_empty_list_of_gpus_is_the_cpu() -> None:
    script = (
        "from models.frameworks import open_framework as o; print(o('pytorch', device='auto', "
        "threads=0, precision='float32', seed=0).device)"
    )
    command, variables = [sys.executable, "-c", script], {**os.environ, nvml.VISIBLE: ""}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.stdout == "cpu\n", done.stderr


@needs_gpu
@each_framework
def test_cell_out_of_memory_is_named_and_the_next_one_runs(framework: str, run: Run) -> None:
    require(framework)
    full = grid(run, framework, "vgg16", 224, 4_096)
    assert (full.outcome, full.phase) == (RunOutcome.OUT_OF_MEMORY, "train"), full.reason
    following = grid(run, framework, "lenet", 28, 32)
    assert following.outcome == RunOutcome.OK, following.reason


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Run a program that computes on the GPU and has no ancestor and no session of ours."""
    script = (
        "import os, torch; a = torch.ones(8192, 8192, device='cuda')\n"
        "print(os.getpid(), flush=True)\n"
        "while True: a @ a; torch.cuda.synchronize()"
    )
    command = ["setsid", "--fork", sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as started:
        assert started.stdout
        pid = int(started.stdout.readline())
        try:
            yield
        finally:
            os.kill(pid, signal.SIGKILL)


@needs_gpu
def test_neighbour_on_the_gpu_disturbs(run: Run) -> None:
    point = partial(grid, run, "pytorch", "resnet18", 64, 32, seconds=3.0)
    with busy_neighbour():
        shared = point()
    assert shared.disturbed
    assert not point().disturbed


@needs_gpu
def test_compilation_is_equally_cold_in_each_block(run: Run) -> None:
    settings = {"models": ("lenet",), "size": "tiny", "steps": 5, "warmup_steps": 3}
    first_steps = []
    for block in (1, 2):
        cell = run("training_speed", "pytorch+compile", block=block, timing="step", **settings)
        assert cell.outcome == RunOutcome.OK, cell.reason
        counts = {name: cell.metrics[f"train/{name}"] for name in ("compilations", "graph_breaks")}
        assert counts == {"compilations": 1, "graph_breaks": 0}
        first_steps.append(cell.metrics["train/first_step_seconds"])
    assert 0.5 < first_steps[1] / first_steps[0] < 2  # a warm cache would more than halve it


@needs_gpu
def test_cell_begins_when_its_gpu_is_steady(run: Run, tmp_path: Path) -> None:
    cell = grid(run, "pytorch", "resnet18", 64, 32, phases=("inference", "train"), seconds=2.0)
    assert cell.outcome == RunOutcome.OK, cell.reason
    (file,) = tmp_path.rglob(cells.RECORDS)
    tags = dict[str, str]()
    for record in map(from_line, file.read_text().splitlines()):
        tags |= record.values if isinstance(record, Tags) else {}
    for phase in ("inference", "train"):
        assert tags[f"warmup.{phase}"] in (warm_up.STEADY, warm_up.LIMIT)
        assert cell.metrics[f"check/{phase}_warmup_seconds"] >= warm_up.SHORTEST_SECONDS
    (file,) = tmp_path.rglob("values.parquet")
    rows = zip(*tables.read(file, ("phase", "warmup", "seconds")).values(), strict=True)
    counted = [seconds for phase, warmup, seconds in rows if (phase, warmup) == ("train", False)]
    halves = np.array_split(counted, 2)
    assert 0.95 < np.median(halves[1]) / np.median(halves[0]) < 1.05


@needs_gpu
def test_memory_of_a_commands_child_is_the_commands(run: Run) -> None:
    """A child holds 1 GiB; CUDA itself takes some hundred megabytes."""
    script = (
        "import time, torch; held = torch.ones(2**30, dtype=torch.uint8, device='cuda'); "
        "torch.cuda.synchronize(); time.sleep(2)"
    )
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(script)} & wait $!"
    cell = run("race", "", frameworks=(), level=(f"holds={command}",))
    assert cell.outcome == RunOutcome.OK, cell.reason
    if "memory/peak_device_process_bytes" not in cell.metrics:
        pytest.skip("the driver does not report the memory of processes")
    assert 1 <= cell.metrics["memory/peak_device_process_bytes"] / GIB <= 2


@pytest.mark.skipif(len(CARDS) < 2, reason="needs two NVIDIA GPUs")
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_two_gpus_train_as_one(framework: str, tmp_path: Path) -> None:
    require(framework)
    values = {"batch_size": 12, "timing": "step"}
    spec = cells.cell_spec(tmp_path, "distributed", framework, DEVICE, 1, values)
    spec.path.mkdir(parents=True)
    spec = replace(spec, settings=replace(spec.settings, worker_count=2, group="2"))
    proven(run_proof(spec, "lenet", "2", 2, "none"))


@each_framework
@needs_gpu
def test_framework_keeps_its_contract(framework: str) -> None:
    outcomes = checked(framework, DEVICE)["outcomes"]
    assert not {check: text for check, text in outcomes.items() if text}

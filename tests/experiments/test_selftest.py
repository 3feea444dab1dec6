"""Acceptance kit without a GPU: its checks on the CPU, and with planted results of a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.cli import main
from experiments.selftest import catalogue, cells, children
from experiments.selftest.catalogue import CHECKS, GIB, MIB, NO_TF32
from experiments.selftest.checks import (
    FAILED,
    NEEDS_GPU,
    PASSED,
    SKIPPED,
    Check,
    Context,
    Skip,
    run_check,
)
from tests.cells import CellOutcome
from tests.conftest import ROOT
from tracking import provenance
from tracking.errors import ErrorCode
from tracking.nvml import Card
from tracking.records import Metrics, RunOutcome, Tags, from_line
from tracking.sensors import Sample

ON_THE_CPU = (2, 7, 12, 13, 14, 16)
# Packages that a machine with a GPU may lack.
ABSENT = ("mlflow", "tensorflow", "keras", "optuna", "jax", "pandas")
HIDE = f"""
import sys
from importlib.machinery import PathFinder

class Hide:
    def find_spec(self, name, path=None, target=None):
        return None if name in {ABSENT!r} else PathFinder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(PathFinder, name)

sys.meta_path[:] = [Hide() if finder is PathFinder else finder for finder in sys.meta_path]
"""
SIZES = {"models": ("lenet",), "image_sizes": (28,), "batch_sizes": (4,), "seconds": 0.05}


def run_without_packages(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a module in a process that finds no package of `ABSENT`, nor do its children."""
    (folder / "sitecustomize.py").write_text(HIDE)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_command_measures_known_work_without_mlflow(tmp_path: Path) -> None:
    options = ("--device=cpu", "--checks=2,10,12", f"--output={tmp_path}")
    frameworks = "--frameworks=pytorch,keras-torch,tensorflow"
    done = run_without_packages(tmp_path, "experiments", "selftest", *options, frameworks)
    assert done.returncode == 0, done.stdout + done.stderr
    values = json.loads((tmp_path / "selftest.json").read_text())
    statuses = {check["number"]: check["status"] for check in values["checks"]}
    assert statuses == {2: PASSED, 10: SKIPPED, 12: PASSED}
    assert values["counts"] == {PASSED: 2, FAILED: 0, SKIPPED: 1}
    assert "host" not in values["machine"]  # the file is made to be sent
    for check in values["checks"]:
        assert (check["status"] == SKIPPED) == bool(check["reason"])
        assert all(figure["holds"] is None or figure["limit"] for figure in check["figures"])
    figures = {figure["name"]: figure for figure in values["checks"][0]["figures"]}
    for name in ("keras-torch", "tensorflow"):
        assert figures[name]["holds"] is None
        assert figures[name]["reason"]
    assert figures["pytorch, float32, matmul, error"]["holds"]
    assert 1e-3 < figures["pytorch, bfloat16, lstm, error"]["value"] < 0.1
    assert figures["pytorch, tf32"]["reason"] == NO_TF32


def test_gpu_tests_need_no_other_package(tmp_path: Path) -> None:
    words = ("pytest", "-m", "gpu", "tests/gpu", "-p", "no:cacheprovider", "-q")
    done = run_without_packages(tmp_path, *words)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    if not provenance.gpus():
        (skipped,) = re.findall(r"(\d+) skipped", done.stdout.splitlines()[-1])
        assert int(skipped) >= 17
        assert "passed" not in done.stdout


def test_checks_that_need_a_gpu_are_skipped_on_the_cpu(tmp_path: Path) -> None:
    assert [check.number for check in CHECKS] == list(range(1, 18))
    assert tuple(check.number for check in CHECKS if check.on_cpu) == ON_THE_CPU
    context = Context("cpu", ("pytorch",), tmp_path)
    results = [run_check(check, context) for check in CHECKS if not check.on_cpu]
    assert {(result.status, result.reason) for result in results} == {(SKIPPED, NEEDS_GPU)}


def fail(_: Context) -> None:
    raise RuntimeError("the driver\nhas gone")


def skip(_: Context) -> None:
    raise Skip("no such card")


@pytest.mark.parametrize(
    ("function", "status", "reason"),
    [
        (lambda context: context.within("a", 1.0, 0, 2.0), PASSED, ""),
        (lambda context: context.within("a", 3.0, 0, 2.0), FAILED, "does not hold: a"),
        (lambda context: context.within("a", float("nan"), 0, 2.0), FAILED, "does not hold: a"),
        (lambda context: context.report("a", None, "missing"), SKIPPED, "missing"),
        (lambda _: None, SKIPPED, "nothing was measured"),
        (fail, FAILED, "RuntimeError: the driver has gone"),
        (skip, SKIPPED, "no such card"),
    ],
)
def test_every_end_of_a_check_is_a_result(
    function: Callable[[Context], None], status: str, reason: str, tmp_path: Path
) -> None:
    definition = Check(1, "a", "a", function, on_cpu=True)
    result = run_check(definition, Context("cpu", (), tmp_path))
    assert (result.status, result.reason) == (status, reason)


def test_failed_check_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(CHECKS[6], function=lambda context: context.within("a", 3.0, 0, 2.0))
    monkeypatch.setattr(catalogue, "CHECKS", (broken,))
    assert main.main(["selftest", "--device=cpu", f"--output={tmp_path}"]) == 1
    values = json.loads((tmp_path / "selftest.json").read_text())
    assert values["counts"] == {PASSED: 0, FAILED: 1, SKIPPED: 0}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("profiler", {"device": "cpu", "side": "wide"}),  # raises
        ("device_of", {"device": "cpu"}),  # lacks an option
    ],
)
def test_probe_error_is_passed_on(name: str, options: dict[str, str]) -> None:
    with pytest.raises(children.ProbeError) as error:
        children.probe(name, **options)
    assert error.value.code is ErrorCode.CHILD_FAILED
    assert name in str(error.value)


def test_command_of_a_race_runs_without_a_campaign(tmp_path: Path) -> None:
    values: dict[str, Any] = {"frameworks": (), "level": ("prints=echo text",)}
    result = cells.run(tmp_path, "race", "", "cpu", **values)
    assert (result.outcome, result.reason) == (RunOutcome.OK, "")
    assert result.metrics["wall_seconds"] > 0
    (output,) = tmp_path.glob("cells/*/stdout.txt")
    assert output.read_text() == "text\n"


def recorded(folder: Path) -> list[Any]:
    (file,) = folder.glob(f"cells/*/{cells.RECORDS}")
    return [from_line(line) for line in file.read_text().splitlines()]


@pytest.mark.usefixtures("toy_installed")
def test_cell_runs_without_a_campaign(tmp_path: Path) -> None:
    result = cells.run(tmp_path, "grid", "toy", "cpu", **SIZES)
    assert (result.outcome, result.reason) == (RunOutcome.OK, "")
    assert {"train/examples_per_second", "inference/examples_per_second"} <= result.metrics.keys()
    records = [record for record in recorded(tmp_path) if isinstance(record, Metrics)]
    points = {point.key for record in records for point in record.points}
    assert "system/cpu_utilization_percentage" in points
    assert list(tmp_path.glob("cells/*/values.parquet"))


@pytest.mark.usefixtures("toy_installed")
def test_cell_out_of_memory_has_its_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps({"toy": {"row_bytes": 10**15}}))
    phases = ("inference", "train")
    result = cells.run(tmp_path, "grid", "toy", "cpu", phases=phases, **SIZES)
    assert (result.outcome, result.phase) == (RunOutcome.OUT_OF_MEMORY, "inference")
    tags = [record.values for record in recorded(tmp_path) if isinstance(record, Tags)]
    assert {"phase": "inference"} in tags


@pytest.mark.slow
@pytest.mark.parametrize("number", [*ON_THE_CPU, 5])
def test_every_check_of_the_cpu_passes(number: int, tmp_path: Path) -> None:
    context = Context("cpu", ("pytorch", "pytorch+compile", "keras-torch"), tmp_path)
    result = run_check(replace(CHECKS[number - 1], on_cpu=True), context)
    assert (result.status, result.reason) == (PASSED, "")


UUID = "b4b3c0de-0000-1111-2222-333344445555"
OK = CellOutcome(RunOutcome.OK, metrics={"memory/peak_device_process_bytes": 1e9})
FULL = CellOutcome(RunOutcome.OUT_OF_MEMORY, "train", "train: CUDA out of memory")
DISTURBED = CellOutcome(RunOutcome.OK, disturbed="others computed on the GPU")
WINDOWS = {
    "device_seconds": 0.005,
    "host_seconds": 0.002,
    "window_seconds": [0.0503, 0.0502],
    "timed_seconds": 0.11,
    "wall_seconds": 0.12,
}
SLEEPS = {"once": 0.005, "four times": 0.02}
COUNTED = {"counts": {"launches": 10}, "computing": 10, "copies": 1, "traces": 1}
KERNELS = {"adam-stock": {"a": 2}, "stock": {"a": 2}}
# Check -> results of its probes that pass, by name.
GOOD: dict[int, dict[str, dict[str, Any]]] = {
    1: {"identity": {"torch": "2.11", "uuid": UUID}, "device_of": {"device": "cpu"}},
    3: {"lstm_type": {"types": ["bfloat16"]}},
    6: {"step_times": {"steps": {"once": 0.00505, "four times": 0.02005}, "device": SLEEPS}},
    7: {"free_running": {"pairs": [WINDOWS]}},
    8: {"peaks": {"rises": [GIB, 3 * GIB + MIB // 2], "before": 0, "after_reset": MIB}},
    12: {"profiler": COUNTED},
    14: {"worker": {"error": 0.0, "limit": 1e-12}},
    15: {"adam_kernels": {"kernels": KERNELS, "implementation": "foreach"}},
}
# Check, and one fault in these.
FAULTS: list[tuple[int, str, dict[str, Any]]] = [
    (1, "identity", {"torch": "2.11", "uuid": "0"}),
    (1, "device_of", {"device": "cuda"}),
    (3, "lstm_type", {"types": ["bfloat16", "float16"]}),
    (6, "step_times", {"steps": {"once": 0.006, "four times": 0.02}, "device": SLEEPS}),
    (6, "step_times", {"steps": {"once": 1e-4, "four times": 4e-4}, "device": SLEEPS}),
    (7, "free_running", {"pairs": [{**WINDOWS, "window_seconds": [0.07, 0.07]}]}),
    (8, "peaks", {"rises": [GIB, 4 * GIB], "before": 0}),
    (8, "peaks", {**GOOD[8]["peaks"], "after_reset": GIB}),
    (12, "profiler", {**COUNTED, "counts": {"launches": 11}}),
    (14, "worker", {"error": 1e-9, "limit": 1e-12}),
    (
        15,
        "adam_kernels",
        {"kernels": {**KERNELS, "adam-stock": {"b": 62}}, "implementation": "one by one"},
    ),
]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that runs a check of a GPU with planted results, by name or in turn."""
    card = Card(f"GPU-{UUID}", 0, "a card")
    monkeypatch.setattr(children, "running", lambda *_, **__: nullcontext((1, "ready")))
    monkeypatch.setattr(catalogue.nvml, "visible_cards", lambda: (card,))

    def run(
        number: int,
        results: dict[str, dict[str, Any]] | None = None,
        outcomes: Iterable[CellOutcome] = (),
        frameworks: tuple[str, ...] = ("pytorch",),
    ) -> str:
        remaining = iter(outcomes)
        monkeypatch.setattr(catalogue, "probe", lambda name, *_, **__: (results or {})[name])
        monkeypatch.setattr(cells, "run", lambda *_, **__: next(remaining, OK))
        result = run_check(CHECKS[number - 1], Context("cuda", frameworks, tmp_path))
        assert "Error:" not in result.reason, result.reason
        return result.status

    return run


@pytest.mark.parametrize(
    ("number", "changes", "status"),
    [(number, {}, PASSED) for number in GOOD]
    + [(number, {name: fault}, FAILED) for number, name, fault in FAULTS],
)
def test_only_good_results_pass(
    number: int, changes: dict[str, dict[str, Any]], status: str, check: Callable[..., str]
) -> None:
    assert check(number, {**GOOD[number], **changes}) == status


def compiled(first_step_seconds: float) -> CellOutcome:
    counts = {"train/compilations": 1.0, "train/recompilations": 0.0, "train/graph_breaks": 0.0}
    return replace(OK, metrics={**counts, "train/first_step_seconds": first_step_seconds})


def stepped(step_seconds: float) -> CellOutcome:
    return replace(OK, metrics={"train/step_seconds": step_seconds})


def holding(gib: float) -> CellOutcome:
    return replace(OK, metrics={"memory/peak_device_process_bytes": gib * GIB})


FAILED_CELL = CellOutcome(RunOutcome.FAILED, reason="CUDNN_STATUS_ALLOC_FAILED")


@pytest.mark.parametrize(
    ("number", "outcomes", "expected"),
    [
        (9, [FULL, OK, FULL, OK], PASSED),
        (9, [OK, OK, FULL, OK], FAILED),  # it fitted
        (9, [FULL, FULL, FULL, OK], FAILED),  # the next cell has no memory
        (9, [FAILED_CELL, OK, FULL, OK], FAILED),
        (11, [OK, DISTURBED], PASSED),
        (11, [OK, OK], FAILED),
        (13, [compiled(20.0), compiled(19.0)], PASSED),
        (13, [compiled(20.0), compiled(4.0)], FAILED),  # a warm cache
        (16, [OK, stepped(0.0101), stepped(0.0100)], PASSED),
        (16, [OK, stepped(0.0101), stepped(0.0095)], FAILED),  # slower than a plain loop
        (17, [holding(1.4)], PASSED),
        (17, [holding(0.4)], FAILED),  # not that of the child
        (17, [holding(2.4)], FAILED),
        (17, [FAILED_CELL], FAILED),
        (17, [replace(OK, metrics={})], SKIPPED),
    ],
)
def test_outcomes_of_cells(
    number: int, outcomes: list[CellOutcome], expected: str, check: Callable[..., str]
) -> None:
    frameworks = ("pytorch+compile",) if number == 13 else ("pytorch",)
    assert check(number, outcomes=outcomes, frameworks=frameworks) == expected


@pytest.mark.parametrize(("factor", "expected"), [(1.0, PASSED), (0.5, FAILED)])
def test_energy_against_power(
    factor: float, expected: str, check: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the counter rise by factor × power; idle 100 W, busy 600 W."""
    card = SimpleNamespace(gpus=("gpu_0",), missing={})

    def sampled(pid: int | None, _: float) -> tuple[list[Sample], SimpleNamespace]:
        watts = 600.0 if pid else 100.0
        power = {"system/gpu_0_power_usage_watts": watts}
        times = [0.1 * index for index in range(51)]
        return [Sample(time, power, {"gpu_0": factor * watts * time}) for time in times], card

    monkeypatch.setattr(catalogue, "_sampled", sampled)
    assert check(10) == expected

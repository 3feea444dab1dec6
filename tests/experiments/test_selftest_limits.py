"""Limits of the checks of a GPU, with planted results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.selftest import catalogue, cells, children
from experiments.selftest.catalogue import CHECKS, GIB, MIB
from experiments.selftest.cells import CellOutcome
from experiments.selftest.checks import FAILED, PASSED, Context, run_check
from tracking.records import RunOutcome
from tracking.sensors import Sample
from tracking.sensors.nvml import Card

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
    14: {
        "workers": {"none": {"error": 0.0, "limit": 1e-12}, "fp16": {"error": 1e-4, "limit": 1e-3}}
    },
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
    (14, "workers", {"none": {"error": 1e-9, "limit": 1e-12}}),
    (
        15,
        "adam_kernels",
        {"kernels": {**KERNELS, "adam-stock": {"b": 62}}, "implementation": "one by one"},
    ),
]


@contextmanager
def no_process(*_: object, **__: object) -> Iterator[tuple[int, str]]:
    yield 1, "ready"


def planted(results: dict[str, dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    return lambda name, *_, **__: results[name]


def outcome(number: int, folder: Path, frameworks: tuple[str, ...] = ("pytorch",)) -> str:
    result = run_check(CHECKS[number - 1], Context("cuda", frameworks, folder))
    assert "Error:" not in result.reason, result.reason
    return result.status


@pytest.fixture(autouse=True)
def no_gpu_work(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(f"GPU-{UUID}", 0, "a card")
    monkeypatch.setattr(children, "running", no_process)
    monkeypatch.setattr(catalogue.nvml, "visible", lambda: (card,))
    monkeypatch.setattr(cells, "run", lambda *_, **__: OK)


def plant_cells(monkeypatch: pytest.MonkeyPatch, *results: CellOutcome) -> None:
    remaining = iter(results)
    monkeypatch.setattr(cells, "run", lambda *_, **__: next(remaining))


@pytest.mark.parametrize("number", GOOD)
def test_good_results_pass(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "probe", planted(GOOD[number]))
    assert outcome(number, tmp_path) == PASSED


@pytest.mark.parametrize(("number", "name", "fault"), FAULTS)
def test_fault_fails(
    number: int, name: str, fault: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "probe", planted({**GOOD[number], name: fault}))
    assert outcome(number, tmp_path) == FAILED


def test_refused_lstm_does_not_fail_other_frameworks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = iter([{"refused": "bfloat16 LSTMs are float16"}, {"types": ["bfloat16"]}])
    monkeypatch.setattr(catalogue, "probe", lambda *_, **__: next(results))
    assert outcome(3, tmp_path, ("pytorch", "keras-torch")) == PASSED


FAILED_CELL = CellOutcome(RunOutcome.FAILED, reason="CUDNN_STATUS_ALLOC_FAILED")


@pytest.mark.parametrize(
    ("number", "results", "expected"),
    [
        (9, [FULL, OK, FULL, OK], PASSED),
        (9, [OK, OK, FULL, OK], FAILED),  # it fitted
        (9, [FULL, FULL, FULL, OK], FAILED),  # the next cell has no memory
        (9, [FAILED_CELL, OK, FULL, OK], FAILED),
        (11, [OK, DISTURBED], PASSED),
        (11, [OK, OK], FAILED),
    ],
)
def test_memory_and_neighbours(
    number: int,
    results: list[CellOutcome],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant_cells(monkeypatch, *results)
    assert outcome(number, tmp_path) == expected


@pytest.mark.parametrize(("factor", "expected"), [(1.0, PASSED), (0.5, FAILED)])
def test_energy_against_power(
    factor: float, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter rises by factor × power; idle 100 W, busy 600 W."""
    card = SimpleNamespace(gpus=("gpu_0",), missing={})

    def sampled(pid: int | None, _: float) -> tuple[list[Sample], SimpleNamespace]:
        watts = 600.0 if pid else 100.0
        power = {"system/gpu_0_power_usage_watts": watts}
        times = [0.1 * index for index in range(51)]
        return [Sample(time, power, {"gpu_0": factor * watts * time}) for time in times], card

    monkeypatch.setattr(catalogue, "_sampled", sampled)
    assert outcome(10, tmp_path) == expected


@pytest.mark.parametrize(("seconds", "expected"), [((20.0, 19.0), PASSED), ((20.0, 4.0), FAILED)])
def test_warm_compilation_cache_fails(
    seconds: tuple[float, float], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"train/compilations": 1.0, "train/recompilations": 0.0, "train/graph_breaks": 0.0}
    results = [replace(OK, metrics={**counts, "train/first_step_seconds": s}) for s in seconds]
    plant_cells(monkeypatch, *results)
    assert outcome(13, tmp_path, ("pytorch+compile",)) == expected


@pytest.mark.parametrize(("plain", "expected"), [(0.0100, PASSED), (0.0095, FAILED)])
def test_harness_costs_at_most_3_percent(
    plain: float, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = (0.0101, 0.0101, plain)
    plant_cells(monkeypatch, *(replace(OK, metrics={"train/step_seconds": step}) for step in steps))
    assert outcome(16, tmp_path) == expected

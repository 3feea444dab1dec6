"""What the checks of a GPU accept and what they refuse, with results planted in the place of the GPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from experiments.selftest import catalogue, cells, children
from experiments.selftest.catalogue import CHECKS, GIB, MIB
from experiments.selftest.cells import CellOutcome
from experiments.selftest.checks import FAILED, PASSED, Context, run_check
from tracking.sensors import Sample

UUID = "b4b3c0de-0000-1111-2222-333344445555"
OK = CellOutcome("ok", "", "", {"memory/peak_device_process_bytes": 1e9}, "")
FULL = CellOutcome("out_of_memory", "train: CUDA out of memory", "train", {}, "")
DISTURBED = CellOutcome("ok", "", "", {}, "others computed on the GPU")
# Check -> results of its probes, by name, where all is well.
GOOD: dict[int, dict[str, dict[str, Any]]] = {
    1: {"identity": {"torch": "2.11", "uuid": UUID}, "device_of": {"device": "cpu"}},
    3: {"lstm_type": {"types": ["bfloat16"]}},
    6: {
        "step_times": {
            "steps": {"once": 0.00505, "four times": 0.02005},
            "device": {"once": 0.005, "four times": 0.02},
        }
    },
    7: {
        "free_running": {
            "pairs": [
                {
                    **{
                        "device_seconds": 0.005,
                        "host_seconds": 0.002,
                        "window_seconds": [0.0503, 0.0502],
                    },
                    **{
                        "timed_seconds": 0.11,
                        "wall_seconds": 0.12,
                    },
                }
            ]
        }
    },
    8: {"peaks": {"rises": [GIB, 3 * GIB + MIB // 2], "before": 0, "after_reset": MIB}},
    12: {"profiler": {"counts": {"launches": 10}, "computing": 10, "copies": 1, "traces": 1}},
    14: {
        "workers": {"none": {"error": 0.0, "limit": 1e-12}, "fp16": {"error": 1e-4, "limit": 1e-3}}
    },
    15: {
        "adam_kernels": {
            "kernels": {"adam-stock": {"a": 2}, "stock": {"a": 2}},
            "implementation": "foreach",
        }
    },
}
# Check -> one fault in these.
FAULTS: list[tuple[int, str, dict[str, Any]]] = [
    (1, "identity", {"torch": "2.11", "uuid": "0"}),
    (1, "device_of", {"device": "cuda"}),
    (3, "lstm_type", {"types": ["bfloat16", "float16"]}),
    (
        6,
        "step_times",
        {
            "steps": {"once": 0.006, "four times": 0.02},
            "device": {"once": 0.005, "four times": 0.02},
        },
    ),
    (
        6,
        "step_times",
        {
            "steps": {"once": 1e-4, "four times": 4e-4},
            "device": {"once": 0.005, "four times": 0.02},
        },
    ),
    (
        7,
        "free_running",
        {"pairs": [{**GOOD[7]["free_running"]["pairs"][0], "window_seconds": [0.07, 0.07]}]},
    ),
    (8, "peaks", {"rises": [GIB, 4 * GIB], "before": 0}),
    (8, "peaks", {**GOOD[8]["peaks"], "after_reset": GIB}),
    (12, "profiler", {"counts": {"launches": 11}, "computing": 10, "copies": 1, "traces": 1}),
    (14, "workers", {"none": {"error": 1e-9, "limit": 1e-12}}),
    (
        15,
        "adam_kernels",
        {"kernels": {"adam-stock": {"b": 62}, "stock": {"a": 2}}, "implementation": "one by one"},
    ),
]


@contextmanager
def no_process(*_: object, **__: object) -> Iterator[int]:
    yield 1


def planted(results: dict[str, dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    return lambda name, *_, **__: results[name]


def outcome(number: int, folder: Path, frameworks: tuple[str, ...] = ("pytorch",)) -> str:
    result = run_check(CHECKS[number - 1], Context("cuda", frameworks, folder))
    assert "Error:" not in result.reason, result.reason
    return result.status


@pytest.fixture(autouse=True)
def no_gpu_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a check touches a device."""
    monkeypatch.setattr(children, "running", no_process)
    monkeypatch.setattr(catalogue, "_cards", lambda: [{"index": "0", "uuid": f"GPU-{UUID}"}])
    monkeypatch.setattr(cells, "run", lambda *_, **__: OK)


@pytest.mark.parametrize("number", GOOD)
def test_what_is_right_passes(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "probe", planted(GOOD[number]))
    assert outcome(number, tmp_path) == PASSED


@pytest.mark.parametrize(("number", "name", "fault"), FAULTS)
def test_a_fault_fails(
    number: int, name: str, fault: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "probe", planted({**GOOD[number], name: fault}))
    assert outcome(number, tmp_path) == FAILED


def test_a_refused_lstm_is_no_fault_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([{"refused": "bfloat16 LSTMs are float16"}, {"types": ["bfloat16"]}])
    monkeypatch.setattr(catalogue, "probe", lambda *_, **__: next(answers))
    assert outcome(3, tmp_path, ("pytorch", "keras-torch")) == PASSED


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([FULL, OK, FULL, OK], PASSED),
        ([OK, OK, FULL, OK], FAILED),  # it fitted
        ([FULL, FULL, FULL, OK], FAILED),  # the next cell has no memory
        ([CellOutcome("failed", "CUDNN_STATUS_ALLOC_FAILED", "", {}, ""), OK, FULL, OK], FAILED),
    ],
)
def test_memory_that_runs_out(
    results: list[CellOutcome], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(results)
    monkeypatch.setattr(cells, "run", lambda *_, **__: next(answers))
    assert outcome(9, tmp_path) == expected


@pytest.mark.parametrize(("beside", "expected"), [(DISTURBED, PASSED), (OK, FAILED)])
def test_a_neighbour(
    beside: CellOutcome, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([OK, beside])
    monkeypatch.setattr(cells, "run", lambda *_, **__: next(answers))
    assert outcome(11, tmp_path) == expected


@pytest.mark.parametrize(("factor", "expected"), [(1.0, PASSED), (0.5, FAILED)])
def test_energy_against_power(
    factor: float, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter that rises by factor × power; idle 100 W, busy 600 W."""

    class Card:
        gpus, missing = ("gpu_0",), dict[str, str]()

    def sampled(pid: int | None, _: float) -> tuple[list[Sample], Card]:
        watts = 600.0 if pid else 100.0
        samples = [
            Sample(
                0.1 * index,
                {"system/gpu_0_power_usage_watts": watts},
                {"gpu_0": factor * watts * 0.1 * index},
            )
            for index in range(51)
        ]
        return samples, Card()

    monkeypatch.setattr(catalogue, "_sampled", sampled)
    assert outcome(10, tmp_path) == expected


@pytest.mark.parametrize(("seconds", "expected"), [((20.0, 19.0), PASSED), ((20.0, 4.0), FAILED)])
def test_a_warm_cache_is_noticed(
    seconds: tuple[float, float], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"train/compilations": 1.0, "train/recompilations": 0.0, "train/graph_breaks": 0.0}
    answers = iter(
        [
            CellOutcome("ok", "", "", {**counts, "train/first_step_seconds": first}, "")
            for first in seconds
        ]
    )
    monkeypatch.setattr(cells, "run", lambda *_, **__: next(answers))
    assert outcome(13, tmp_path, ("pytorch+compile",)) == expected


@pytest.mark.parametrize(("plain", "expected"), [(0.0100, PASSED), (0.0095, FAILED)])
def test_the_harness_against_a_plain_loop(
    plain: float, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = CellOutcome(
        "ok", "", "", {"train/step_seconds": 0.0101, "train/examples_per_second": 1.0}, ""
    )
    monkeypatch.setattr(cells, "run", lambda *_, **__: result)
    monkeypatch.setattr(catalogue, "probe", planted({"plain_loop": {"step_seconds": plain}}))
    assert outcome(16, tmp_path) == expected

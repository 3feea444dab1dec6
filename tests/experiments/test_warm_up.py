"""Warm-up: of a GPU by time, until its steps take equally long; and peaks of memory."""

import json
import time
from collections.abc import Iterable
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.timing import PhaseValues
from experiments.cell.warm_up import LIMIT_SECONDS, WarmUp, of_gpu
from experiments.workloads.grid.measure import Budget, values_of
from experiments.workloads.training_speed.measure import _parts
from tests.models.children import run_python
from tests.tracking.nvml import Driver, driver, library  # noqa: F401

OUTPUT: Any = SimpleNamespace(working_seconds=time.monotonic)


def warm_up_of(least: int = 3, most: float = 1e9, steps_per_second: float = 8) -> WarmUp:
    seconds = count()
    return WarmUp(least, most, now=lambda: next(seconds) / steps_per_second)


def finish(warm_up: WarmUp, seconds: Iterable[float] = repeat(0.1)) -> WarmUp:
    for value in seconds:
        if warm_up.is_over:
            break
        warm_up.step(value)
    return warm_up


def clock_ramp(reach: float, steps_per_second: float = 100) -> np.ndarray:
    """Return the times of the steps of a GPU whose clock rises from 345 to 1,980 MHz, ± 2 %."""
    at = np.arange(40 * steps_per_second) / steps_per_second
    clocks = 1_980 - (1_980 - 345) * np.exp(-3 * at / reach)
    return 1_980 / clocks * np.random.default_rng(0).normal(0.01, 0.0002, len(at))


@pytest.mark.parametrize(
    ("seconds", "steps_per_second", "least", "most", "reason"),
    [
        (repeat(0.1), 8, 1.0, 1.1, "steady"),
        (repeat(2.0), 0.5, 12.0, 12.0, "steady"),
        (clock_ramp(0.5), 100, 1.0, 2.0, "steady"),
        (clock_ramp(3.0), 100, 3.0, 8.0, "steady"),
        (np.geomspace(1, 4, 4_000), 100, 30.0, 30.1, "limit"),
    ],
    ids=["at once", "long steps", "quick clock", "slow clock", "never"],
)
def test_warm_up_ends_when_steps_take_equally_long(
    seconds: Iterable[float], steps_per_second: float, least: float, most: float, reason: str
) -> None:
    warm_up = finish(warm_up_of(steps_per_second=steps_per_second), seconds)
    assert warm_up.end_reason == reason
    assert least <= warm_up.seconds <= most
    assert warm_up.steps == warm_up.seconds * steps_per_second + 1, "begins after the first step"


@pytest.mark.parametrize("spread", [0.001, 0.02, 0.1, 0.5])
def test_noise_alone_does_not_prolong_a_warm_up(spread: float) -> None:
    rng = np.random.default_rng(1)
    lengths = [
        finish(warm_up_of(steps_per_second=50), rng.lognormal(-3, spread, 2_000)).seconds
        for _ in range(200)
    ]
    assert np.mean(np.array(lengths) < 1.05) > 0.9
    assert max(lengths) < 3


@pytest.mark.parametrize("reach", [0.2, 0.5, 1.0, 3.0, 10.0])
def test_steps_after_a_warm_up_are_those_of_a_fast_clock(reach: float) -> None:
    times = clock_ramp(reach)
    warm_up = finish(warm_up_of(steps_per_second=100), times)
    assert np.median(times[warm_up.steps :][:100]) == pytest.approx(0.01, rel=0.02)


def test_one_slow_step_does_not_prolong_a_warm_up() -> None:
    seconds = [0.01] * 40 + [0.5] + [0.01] * 4_000
    assert finish(warm_up_of(steps_per_second=50), seconds).seconds < 1.1


def test_warm_up_has_fewest_and_most_steps() -> None:
    assert finish(warm_up_of(least=40)).steps == 40
    short = finish(warm_up_of(most=5))
    assert (short.steps, short.end_reason) == (5, "steps")
    assert of_gpu(SimpleNamespace(device="cpu"), OUTPUT, 3) is None  # type: ignore[arg-type]


def test_budget_begins_after_the_warm_up() -> None:
    warm_up = warm_up_of()
    budget = Budget(OUTPUT, seconds=0.0, least=4, warm_up=warm_up)
    is_warming = []
    for _ in budget:
        is_warming.append(not warm_up.is_over)
        if is_warming[-1]:
            warm_up.step(0.1)
    assert (warm_up.steps, is_warming) == (9, [True] * 9 + [False] * 4)
    values = values_of("train", [1.0] * 13, 8, warm_up.steps)
    assert values.steady[0] == [1.0] * 3, "without the first counted step, as on the CPU"


@pytest.mark.parametrize(("on_gpu", "parts"), [(False, [5, 20]), (True, [5, 4, 20])])
def test_timed_steps_come_after_the_warm_up(on_gpu: bool, parts: list[int]) -> None:
    warm_up = warm_up_of() if on_gpu else None
    settings: Any = SimpleNamespace(steps=20, warmup_steps=5, lengths="fixed")
    counts = []
    for part in _parts([object()] * 3, settings, warm_up):  # type: ignore[list-item]
        counts.append(0)
        for _ in part:
            counts[-1] += 1
            if warm_up:
                warm_up.step(0.1)
    assert counts == parts


def test_each_process_of_a_training_has_a_warm_up() -> None:
    values = PhaseValues("train", (1.0,) * 10, (4,) * 10, 2, starts=(0, 6), warmups=(3, 1))
    assert [step for step, is_warm in enumerate(values.is_warmup) if is_warm] == [0, 1, 2, 6]


CELL = """
import json, sys
from pathlib import Path
from tests import cells
folder, study, settings = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
result = cells.run(folder, study, "toy", "cuda", **settings)
(records,) = folder.glob("cells/*/records.jsonl")
tags = {}
for line in records.read_text().splitlines():
    record = json.loads(line)
    tags |= record["values"] if record["record"] == "Tags" else {}
print(json.dumps([result.outcome, result.reason, dict(result.metrics), tags]))
"""
LENET = {"epochs": 30, "warmup_steps": 2, "inference_requests": 6, "warmup_requests": 1}
GRID = {"models": ["lenet"], "image_sizes": [28], "batch_sizes": [4], "seconds": 0.05}
SPEED = {"models": ["lenet"], "size": "tiny", "steps": 20, "warmup_steps": 2}


@pytest.mark.usefixtures("toy_installed")
@pytest.mark.parametrize(
    ("study", "settings"),
    [
        pytest.param("lenet", LENET, marks=pytest.mark.slow),
        ("grid", GRID),
        pytest.param("training_speed", SPEED, marks=pytest.mark.slow),
    ],
)
def test_steps_run_freely_on_a_warm_gpu(
    study: str, settings: dict[str, object], driver: Driver, tmp_path: Path
) -> None:
    words = ["", str(tmp_path), study, json.dumps({**settings, "timing": "free"})]
    head = f"import sys\nsys.argv = {words!r}\n"
    variables = {"EVENHAND_TOY_GPU": "1", "EVENHAND_TOY_COSTS": '{"toy": {"step": 0.01}}'}
    outcome, reason, metrics, tags = json.loads(driver.python(head + CELL, **variables))
    assert (outcome, reason, tags["warmup.train"]) == ("ok", "", "steady")
    assert 1.0 <= metrics["check/train_warmup_seconds"] < LIMIT_SECONDS
    assert metrics["check/train_warmup_steps"] > 2
    assert metrics["train/examples_per_second"] > 0
    assert "train/step_seconds" not in metrics, "every single step belongs to the warm-up"


# ---- peaks of memory: of a process from the first step on, of a device with and without warm-up

MEBIBYTE = 2**20
# Ones are written, so that they are resident; a process alone, since a peak belongs to all of it.
SCRIPT = f"""
import numpy as np
from experiments.cell import peak_memory
def take(mebibytes):
    return np.ones(mebibytes * {MEBIBYTE} // 8)
data = take(100)
before = peak_memory.rss_bytes()
copies = [take(200), [take(1) for _ in range(200)]]
loading = peak_memory.rss_bytes()
del copies
assert peak_memory.settle()
settled = peak_memory.rss_bytes()
step = take(50)
del step
training = peak_memory.rss_bytes()
checkpoint = take(300)
del checkpoint
assert peak_memory.restart()
again = peak_memory.rss_bytes()
print(*(round((value - before) / {MEBIBYTE}) for value in (loading, settled, training, again)))
"""


def test_memory_freed_before_steps_is_no_peak() -> None:
    loading, settled, training, again = map(int, run_python("-c", SCRIPT).stdout.split())
    assert loading == pytest.approx(400, abs=20)
    assert abs(settled) < 20
    assert training - settled == pytest.approx(50, abs=10)
    assert abs(again) < 20


STEADY, WHOLE = "memory/peak_device_bytes", "memory/peak_device_with_warmup_bytes"


class Device:
    """Allocator: `take` moves the peak, a reset brings it down to what is allocated."""

    name = "toy"

    def __init__(self, *, resets: bool = True) -> None:
        self._resets, self._allocated, self._peak = resets, 10, 10

    def take(self, extra: int) -> None:
        self._peak = max(self._peak, self._allocated + extra)

    def peak_device_bytes(self) -> int | None:
        return self._peak

    def reset_peak(self) -> bool:
        if self._resets:
            self._peak = self._allocated
        return self._resets


CPU = SimpleNamespace(take=lambda _: None, peak_device_bytes=lambda: None, reset_peak=lambda: False)


@pytest.mark.parametrize(
    ("device", "phases", "expected", "missing"),
    [
        (Device(), [(900, 30, 50, 40)], {STEADY: 60.0, WHOLE: 910.0}, False),
        (Device(), [(100, 70), (500, 20)], {STEADY: 80.0, WHOLE: 510.0}, False),
        (Device(resets=False), [(900,)], {WHOLE: 910.0}, True),
        (Device(), [], {WHOLE: 10.0}, True),  # no warm step
        (CPU, [(900, 30)], {}, False),
    ],
)
def test_workspace_of_a_warm_up_is_in_one_peak(
    device: Any, phases: list[tuple[int, ...]], expected: dict[str, float], *, missing: bool
) -> None:
    """The first step of a phase is its warm-up."""
    peaks = DevicePeaks(device)
    for phase in phases:
        peaks.begin_warmup()
        for extra in phase:
            device.take(extra)
            peaks.end_warmup()
    assert peaks.metrics() == expected
    assert set(peaks.missing()) == ({f"not_available.{STEADY}"} if missing else set())

"""Warm-up: of a GPU by time, until its clock and temperature are steady; and peaks of memory."""

import json
import time
from collections.abc import Callable, Iterator
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.timing import PhaseValues
from experiments.cell.warm_up import BLIND_SECONDS, LIMIT_SECONDS, WarmUp, of_gpu
from experiments.workloads.grid.measure import Budget, values_of
from experiments.workloads.training_speed.measure import _parts
from tests.models.children import run_python
from tests.tracking.nvml import Driver, driver, library  # noqa: F401

CLOCK, CELSIUS = "system/gpu_0_clock_megahertz", "system/gpu_0_temperature_celsius"
OUTPUT: Any = SimpleNamespace(working_seconds=time.monotonic)
Readings = Callable[[], Iterator[float]]


def warm_up_of(
    megahertz: Iterator[float] | None = None,
    celsius: Iterator[float] | None = None,
    *,
    least: int = 3,
    most: float = 1e9,
    steps_per_second: int = 8,
) -> WarmUp:
    """Return a warm-up that reads the GPU after each step; its readings are steady by default."""
    seconds = count()
    clock = repeat(1_980.0) if megahertz is None else megahertz
    temperature = repeat(60.0) if celsius is None else celsius

    def read() -> dict[str, float]:
        return {CELSIUS: next(temperature), CLOCK: next(clock)}

    now = lambda: next(seconds) / steps_per_second  # noqa: E731
    return WarmUp(least, most, gpus=["gpu_0"], read=read, now=now)


def finish(warm_up: WarmUp) -> WarmUp:
    while not warm_up.is_over and warm_up.steps < 10_000:
        warm_up.step()
    return warm_up


@pytest.mark.parametrize(
    ("megahertz", "celsius", "seconds", "reason"),
    [
        (repeat(1_980.0), repeat(60.0), 1.0, "steady"),
        (iter([345, 800, 1_200, 1_600, *[1_980] * 90]), repeat(60), 1.5, "steady"),
        (repeat(1_980.0), iter([*range(40, 60), *[60] * 90]), 3.375, "steady"),
        (repeat(1_980.0), count(40.0, 0.2), LIMIT_SECONDS, "limit"),
    ],
    ids=["at once", "rising clock", "rising temperature", "never"],
)
def test_warm_up_ends_when_clock_and_temperature_are_steady(
    megahertz: Iterator[float], celsius: Iterator[float], seconds: float, reason: str
) -> None:
    warm_up = finish(warm_up_of(megahertz, celsius))
    assert (warm_up.seconds, warm_up.end_reason) == (pytest.approx(seconds), reason)
    assert warm_up.steps == 8 * seconds + 1, "the time begins after the first step"


def test_warm_up_has_fewest_and_most_steps() -> None:
    assert finish(warm_up_of(least=40)).steps == 40
    short = finish(warm_up_of(most=5))
    assert (short.steps, short.end_reason) == (5, "steps")
    assert of_gpu(SimpleNamespace(device="cpu"), OUTPUT, 3) is None  # type: ignore[arg-type]


def test_gpu_is_read_at_most_ten_times_a_second() -> None:
    warm_up = finish(warm_up_of(iter([1_980.0] * 12), steps_per_second=1_000))
    assert warm_up.steps == pytest.approx(1_001, abs=10)


OF_GPU = """
import itertools, json, os
from types import SimpleNamespace
from experiments.cell.warm_up import of_gpu
seconds = itertools.count()
output = SimpleNamespace(working_seconds=lambda: next(seconds) / 10)
warm_up = of_gpu(SimpleNamespace(device="cuda"), output, 2)
answers = os.environ["NVML_ANSWERS"]
text = open(answers).read()
while not warm_up.is_over:
    if RISES and warm_up.steps < 20:
        with open(answers, "w") as file:
            file.write(text + f"sm_megahertz {345 + 80 * warm_up.steps}\\n")
    warm_up.step()
print(json.dumps([warm_up.end_reason, round(warm_up.seconds, 6)]))
"""


@pytest.mark.parametrize(
    ("rises", "variables", "reason", "seconds"),
    [
        (True, {}, "steady", 2.9),
        (False, {"CUDA_VISIBLE_DEVICES": "7"}, "no clock", BLIND_SECONDS),
    ],
)
def test_clock_is_that_of_the_driver(
    rises: bool,
    variables: dict[str, str],
    reason: str,
    seconds: float,
    driver: Driver,
) -> None:
    driver.answers()
    result = json.loads(driver.python(f"RISES = {rises}\n" + OF_GPU, **variables))
    assert result == [reason, pytest.approx(seconds, abs=0.11)]


def test_budget_begins_after_the_warm_up() -> None:
    warm_up = warm_up_of()
    budget = Budget(OUTPUT, seconds=0.0, least=4, warm_up=warm_up)
    is_warming = []
    for _ in budget:
        is_warming.append(not warm_up.is_over)
        if is_warming[-1]:
            warm_up.step()
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
                warm_up.step()
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

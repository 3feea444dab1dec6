"""Toy framework on a clock that only its known costs move, and the parts of a cell around it."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import models
from experiments.cell import loop, measure, output, timing, turns
from experiments.contract import TimedPhase
from experiments.studies import captioning
from models.contract import Batch, OptimizerConfig
from tests.toy_framework import costs
from tests.toy_framework.adapter import Adapter
from tracking import clock

TICK = 1e-6  # what reading the clock takes, so that a loop that waits for it goes on


class FakeTime:
    """Stand-in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def perf_counter(self) -> float:
        self.now += TICK
        return self.now

    time = monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def set_costs(monkeypatch: pytest.MonkeyPatch, seconds: Mapping[str, float]) -> None:
    """Let only these costs of the toy framework move the clocks of a cell."""
    fake = FakeTime()
    for module in (costs, loop, measure, output, timing, turns):
        monkeypatch.setattr(module, "time", fake)
    monkeypatch.setattr(clock, "_passed", fake.perf_counter)
    monkeypatch.setattr(clock.CLOCK, "origin", 0.0)
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps({"toy": seconds}))


class RecordedOutput:
    """Output that keeps metrics, tags and the examples of windows."""

    def __init__(self, clock: Any = time) -> None:
        self.working_seconds = clock.perf_counter
        self.metric: dict[str, float] = {}
        self.live: list[tuple[int, float]] = []
        self.tags: dict[str, str] = {}
        self.examples: list[int] = []

    def metrics(self, values: Any, step: int = 0) -> None:
        self.metric |= values
        if "live/examples_per_second" in values:
            self.live.append((step, values["live/examples_per_second"]))

    def record(self, record: Any) -> None:
        self.tags |= record.values

    @contextmanager
    def phase(self, *_: Any, **__: Any) -> Iterator[TimedPhase]:
        phase = TimedPhase(0.0)
        yield phase
        self.examples.append(phase.examples)

    def end_turns(self) -> None: ...

    def turn(self, steps: int = 1) -> None: ...

    def progress(self, *_: Any) -> None: ...

    def artifact(self, *_: Any) -> None: ...


def open_toy(kind: type[Adapter] = Adapter) -> tuple[Adapter, Any, Any]:
    """Return the framework, a network and its optimizer."""
    framework = kind("toy", device="cpu", threads=1, precision="float32", seed=0)
    network = framework.build("lenet", models.spec("lenet").Spec())
    return framework, network, framework.optimizer(network, OptimizerConfig("adam", 0.1))


def batches(count: int) -> Iterator[Batch]:
    images = np.zeros((4, 28, 28, 1), np.float32)
    return iter([Batch((images,), np.zeros(4, np.int32), np.ones(4, np.float32))] * count)


def cell(folder: Path, **settings: Any) -> Any:
    few = {"epochs": 3, "warmup_steps": 3, "timing": "free", "window_steps": 4}
    values = captioning.Settings(**{**few, **settings})
    checkpoint = str(folder / "checkpoint")
    return SimpleNamespace(
        checkpoint=checkpoint,
        settings=values,
        run="1",
        path=folder,
        framework="toy",
    )

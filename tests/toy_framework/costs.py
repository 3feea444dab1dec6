"""Costs of the toy framework in seconds of sleep, and the log that measurements are compared with.

EVENHAND_TOY_COSTS: `{"toy": {"step": 0.02}, "toy+twin": {"step": 0.03}}`, the fields of `Costs`.
EVENHAND_TOY_EVENTS: a file that gets a line for each event, `{"framework", "pid", "event", "began",
"ended"}`, in seconds of `time.perf_counter`, on Linux the same clock in every process.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

_NUMBERS = np.linspace(0.0, 1.0, 10_000)


@dataclass(frozen=True)
class Costs:
    """Costs in seconds.

    Attributes:
        start: Of the process, on opening.
        build: A network.
        input: A batch by the framework's own pipeline.
        copy: A batch or inputs to the device, unless they were placed before.
        launch: The host's part of a step; the device begins after it.
        step, evaluate, infer, apply: The device's work, for which the host does not wait until it
            reads a result or synchronises.
        update: The rest of a step's, when its loss is known.
        synchronise: The call itself, on top of that wait.
        read: A loss or a result from the device.
        profiler: Added to every marked step, on the host.
        row_bytes: Memory of the device for each row of a batch.
        work: Rounds of arithmetic (no seconds) on the host in every step and inference, which a
            neighbour slows, unlike sleep.
    """

    start: float = 0.0
    build: float = 0.0
    input: float = 0.0
    copy: float = 0.0
    launch: float = 0.0
    step: float = 0.0
    update: float = 0.0
    evaluate: float = 0.0
    infer: float = 0.0
    apply: float = 0.0
    synchronise: float = 0.0
    read: float = 0.0
    profiler: float = 0.0
    row_bytes: int = 0
    work: int = 0


class Ledger:
    """Log of one framework, which spends its costs."""

    def __init__(self, framework: str) -> None:
        self._framework = framework
        self._path = os.environ.get("EVENHAND_TOY_EVENTS")
        self.costs = Costs(
            **json.loads(os.environ.get("EVENHAND_TOY_COSTS", "{}")).get(framework, {})
        )
        self._busy_until = 0.0
        self.seen: list[tuple[str, float, float]] = []

    @contextmanager
    def spend(self, event: str) -> Iterator[None]:
        """Spend host time: that of the block, and at least the event's cost."""
        began = time.perf_counter()
        yield
        self.wait(began + getattr(self.costs, event))
        self._write(event, began, time.perf_counter())

    @contextmanager
    def step(self, marked: list[tuple[float, float]]) -> Iterator[None]:
        """Mark a step under a profiler, which takes its time."""
        began = time.perf_counter()
        with self.spend("profiler"):
            pass
        yield
        marked.append((began, time.perf_counter()))

    def launch(self, event: str) -> float:
        """Queue work of the device. Return when it will have ended."""
        if event in ("step", "infer", "apply"):
            for _ in range(self.costs.work):
                np.sin(_NUMBERS)
        began = max(time.perf_counter(), self._busy_until)
        self._busy_until = began + getattr(self.costs, event)
        self._write(event, began, self._busy_until)
        return self._busy_until

    def wait(self, until: float | None = None) -> None:
        """Sleep until a moment, otherwise until the device has done all its work."""
        until = self._busy_until if until is None else until
        while (left := until - time.perf_counter()) > 0:
            time.sleep(left)

    def _write(self, event: str, began: float, end: float) -> None:
        self.seen.append((event, began, end))
        if self._path:
            line = {
                "framework": self._framework,
                "pid": os.getpid(),
                "event": event,
                "began": began,
                "ended": end,
            }
            with open(self._path, "a") as file:
                file.write(json.dumps(line) + "\n")

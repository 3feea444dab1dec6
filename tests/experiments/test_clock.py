"""Clock of a cell, on a framework whose costs are known."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from experiments.cell import measure, timing
from experiments.cell.checkpoint import TrainingState
from experiments.cell.loop import TrainingLoop
from experiments.cell.peak_memory import DevicePeaks

SETTINGS = {"inference_requests": 20, "warmup_requests": 5, "inference_batch_sizes": (1, 4)}
SETTINGS |= {"inject_delay": 0.0, "epochs": 1, "warmup_steps": 0}
SPEC: Any = SimpleNamespace(settings={**SETTINGS, "timing": "step", "window_steps": 1})


class RecordedMetrics:
    """Output whose reports of progress take 150 ms."""

    waited_seconds = 0.0

    def __init__(self) -> None:
        self.metric: dict[str, float] = {}

    def metrics(self, values: Any, step: int = 0) -> None:
        self.metric |= values

    def progress(self, phase: str, *_: Any) -> None:
        if phase.startswith("epoch"):
            time.sleep(0.15)

    def begin(self, place: int = 1) -> None: ...

    def turn(self, steps: int = 1) -> None: ...

    def window(self, *_: Any) -> None: ...


class SlowPlacement:
    """Placing takes 20 ms; the first five answers of a batch size take 10 ms, the others 1."""

    def __init__(self) -> None:
        self.answers = {1: 0, 4: 0}

    def place_inputs(self, inputs: Any) -> Any:
        time.sleep(0.02)
        return ("placed", *inputs)

    def synchronise(self) -> None: ...

    def request(self, batch_size: int, index: int) -> Any:
        return (batch_size,)

    def answer(self, _: Any, __: Any, request: Any) -> None:
        state, size = request
        assert state == "placed"
        self.answers[size] += 1
        time.sleep(0.01 if self.answers[size] <= 5 else 0.001)


def test_requests_are_timed_after_placement_without_warm_up() -> None:
    task, output = SlowPlacement(), RecordedMetrics()
    phases = measure._infer(task, SPEC, task, None, output)  # type: ignore[arg-type]
    for values in phases:
        assert (len(values.seconds), sum(values.is_warmup)) == (25, 5)
        assert 0.01 <= min(values.seconds[:5]) < 0.015
        assert 0.001 <= min(values.seconds[5:]) < 0.005
    for prefix in ("inference", "inference/batch_4"):
        assert 0.001 <= output.metric[f"{prefix}/latency_seconds_p50"] < 0.02
        assert 0.01 <= output.metric[f"{prefix}/first_call_seconds"] < 0.1


class SteadyTraining:
    """Four batches: 20 ms to make each, 10 to place it, 5 for a step, 5 between the steps."""

    steps_per_epoch, examples_a_step = 4, 8

    def compilations(self) -> int:
        return 0

    def graph_breaks(self) -> None:
        return None

    def peak_device_bytes(self) -> None:
        return None

    def training(self) -> Iterator[Any]:
        for number in range(4):
            time.sleep(0.02)
            yield number

    def train_epoch(self, _: Any, __: Any, batches: Any, clock: Any) -> None:
        for number in batches:
            time.sleep(0.01)
            clock.begin()
            time.sleep(0.005)
            clock.end(float(number))
            time.sleep(0.005)


def test_clock_of_epoch_includes_input_and_not_reports() -> None:
    task, output, state = SteadyTraining(), RecordedMetrics(), TrainingState(starts=[0])
    peaks = DevicePeaks(task)  # type: ignore[arg-type]
    loop = TrainingLoop(task, None, None, output, peaks)  # type: ignore[arg-type]
    batches = timing.TimedIterator(task.training())
    loss = measure._train_epoch(task, SPEC, loop, batches, 0, state, output, None)  # type: ignore[arg-type]
    assert loss == 1.5
    (seconds,) = state.epoch_seconds
    assert 0.16 <= seconds < 0.7, "reports would take 0.6 s more"
    assert 0.005 <= min(state.seconds) < 0.015
    assert 0.08 <= state.input_seconds <= seconds - 0.08


def test_throughput_of_epochs_is_total_over_total_without_the_first() -> None:
    for seconds, expected in (([4.0], 20), ([4.0, 1.0, 3.0], 40)):
        summary = timing.summarise_epochs(TrainingState(epoch_seconds=seconds), 80)
        assert summary["train/epoch_examples_per_second"] == expected

"""What the clock of a cell counts, on a framework whose costs are known."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from experiments.cell import measure, timing
from experiments.cell.checkpoint import TrainingState
from experiments.cell.loop import TrainingLoop
from experiments.cell.peak_memory import DevicePeaks

SETTINGS = {
    "inference_requests": 20,
    "warmup_requests": 5,
    "inference_batch_sizes": (1, 4),
    "inject_delay": 0.0,
}


class Told:
    """Keeps the metrics of a cell; everything else it is told is let go."""

    def __init__(self) -> None:
        self.metric: dict[str, float] = {}

    def metrics(self, values: Any, step: int = 0) -> None:
        self.metric |= values

    waited_seconds = 0.0

    def begin(self, place: int = 1) -> None: ...

    def turn(self, steps: int = 1) -> None: ...

    def progress(self, *_: Any) -> None: ...

    def window(self, *_: Any) -> None: ...


class Slow:
    """Placing takes 20 ms, and 100 for the first of a batch size; its first five answers take 10 ms, the others 1."""

    def __init__(self) -> None:
        self.asked: dict[int, int] = {}

    def place_inputs(self, inputs: Any) -> Any:
        time.sleep(0.02 if inputs[0] in self.asked else 0.1)
        return ("placed", *inputs)

    def synchronise(self) -> None: ...

    def request(self, batch_size: int, index: int) -> Any:
        return (batch_size,)

    def answer(self, _: Any, __: Any, request: Any) -> None:
        assert request[0] == "placed"
        self.asked[request[1]] = self.asked.get(request[1], 0) + 1
        time.sleep(0.01 if self.asked[request[1]] <= 5 else 0.001)


def test_requests_are_placed_before_they_are_timed_and_the_first_are_left_out() -> None:
    """A busy machine adds to a single request, less to the median of twenty, and nothing to the quickest."""
    slow, told = Slow(), Told()
    phases = measure._infer(slow, SimpleNamespace(settings=SETTINGS), slow, None, told)  # type: ignore[arg-type]
    assert [(len(one.seconds), sum(one.is_warmup)) for one in phases] == [(25, 5), (25, 5)]
    for one in phases:
        assert 0.01 <= min(one.seconds[:5]) < 0.015
        assert 0.001 <= min(one.seconds[5:]) < 0.005
    for prefix in ("inference", "inference/batch_4"):
        assert 0.001 <= told.metric[f"{prefix}/latency_seconds_p50"] < 0.02
        assert 0.01 <= told.metric[f"{prefix}/first_call_seconds"] < 0.1


class Steady:
    """Four batches that take 20 ms each to be made; 10 ms to be placed, 5 a step, and 5 between the steps."""

    steps_per_epoch, examples_a_step = 4, 8

    def compilations(self) -> int:
        return 0

    def graph_breaks(self) -> None:
        return None

    def peak_device_bytes(self) -> None:
        return None

    def training(self, *_: Any) -> Iterator[int]:
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


class Slowly(Told):
    """150 ms to tell anybody anything."""

    def progress(self, *_: Any) -> None:
        time.sleep(0.15)


def test_the_epochs_clock_holds_the_input_and_not_what_is_told() -> None:
    """4 · (20 + 10 + 5 + 5) ms, a busy machine adds to each; telling would be 600 ms more, placing 10 to every step."""
    steady, output, state = Steady(), Slowly(), TrainingState(starts=[0])
    settings = {
        "epochs": 1,
        "warmup_steps": 0,
        "inject_delay": 0.0,
        "timing": "step",
        "window_steps": 1,
    }
    spec: Any = SimpleNamespace(settings=settings)
    loop = TrainingLoop(steady, None, None, output)  # type: ignore[arg-type]
    peaks = DevicePeaks(steady)  # type: ignore[arg-type]
    feed = timing.Feed(steady.training())  # type: ignore[arg-type]
    losses, seconds = measure._epoch(steady, spec, loop, feed, 0, state, peaks, output)  # type: ignore[arg-type]
    assert losses == [0.0, 1.0, 2.0, 3.0]
    assert 0.16 <= seconds < 0.7
    assert 0.005 <= min(state.seconds) < 0.015
    assert (
        0.08 <= state.input_seconds <= seconds - 0.08
    )  # placing, steps and what lies between them


def test_throughput_of_epochs_is_total_over_total_without_the_first() -> None:
    alone, several = (
        TrainingState(epoch_seconds=[4.0]),
        TrainingState(epoch_seconds=[4.0, 1.0, 3.0]),
    )
    assert timing.summarise_epochs(alone, 80)["train/epoch_examples_per_second"] == 20
    assert timing.summarise_epochs(several, 80)["train/epoch_examples_per_second"] == 40

"""Steps that run freely, on a device whose costs are known and a clock that only they move: every figure is exact."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import models
from experiments.cell import measure, timing
from experiments.cell.checkpoint import Checkpoint
from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.timing import EVERY_STEP, Pace, Stopwatch
from experiments.studies import captioning
from experiments.workloads import steps as steps_
from experiments.workloads.grid import measure as grid_measure
from models.contract import Batch, OptimizerConfig
from models.frameworks.pytorch.device import CudaEvents
from tests.conftest import Place
from tests.toy_framework import costs
from tests.toy_framework.adapter import Adapter
from tracking.errors import EvenhandError, UsageError
from tracking.store import Store

pytestmark = pytest.mark.usefixtures("toy_installed")
TICK = 1e-6  # what reading the clock takes, so that whoever waits for it gets on
# Seconds of a clock that nothing else moves. A device that takes longer than its host, and the other way round.
SLOW_DEVICE = {
    "launch": 2.0,
    "step": 9.0,
    "update": 1.0,
    "copy": 3.0,
    "synchronise": 0.5,
    "read": 0.25,
}
SLOW_HOST = {**SLOW_DEVICE, "launch": 20.0}


class Time:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def perf_counter(self) -> float:
        self.now += TICK
        return self.now

    time = monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    for module in (costs, timing, measure):
        monkeypatch.setattr(module, "time", found)
    return found


@pytest.fixture(params=[SLOW_DEVICE, SLOW_HOST], ids=["slow device", "slow host"])
def given(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps({"toy": request.param}))
    cost: dict[str, float] = request.param
    return cost


def opened(kind: type[Adapter] = Adapter) -> tuple[Adapter, Any, Any]:
    framework = kind("toy", device="cpu", threads=1, precision="float32", seed=0)
    network = framework.build("lenet", models.spec("lenet").Spec())
    return framework, network, framework.optimizer(network, OptimizerConfig("adam", 0.1))


def batches(count: int) -> Iterator[Batch]:
    one = Batch(
        (np.zeros((4, 28, 28, 1), np.float32),), np.zeros(4, np.int32), np.ones(4, np.float32)
    )
    return iter([one] * count)


def trained(count: int, at: Pace, kind: type[Adapter] = Adapter, delay: float = 0.0) -> Stopwatch:
    framework, network, optimizer = opened(kind)
    watch = Stopwatch(lambda *_: None, delay, at)
    framework.train_epoch(network, optimizer, batches(count), watch)
    return watch


def one_by_one(cost: dict[str, float]) -> float:
    """Seconds of a step that the device is waited for after. It synchronises while the device works."""
    return cost["launch"] + cost["step"] + cost["update"] + cost["read"]


def freely(cost: dict[str, float], steps: int) -> float:
    """Of a window: whichever is slower works without a pause, the other one's share shows once; one loss is read."""
    host, device = cost["launch"], cost["step"] + cost["update"]
    return steps * max(host, device) + min(host, device) + cost["read"]


def near(seconds: float | Sequence[float]) -> Any:
    return pytest.approx(seconds, abs=0.01)


@pytest.mark.usefixtures("clock")
def test_window_hides_launch_or_device_time(
    given: dict[str, float],
) -> None:
    """Synchronising inside of the window makes every step as long as alone; without it at the end, the update is missing."""
    assert trained(6, EVERY_STEP).seconds == near([one_by_one(given)] * 6)
    watch = trained(12, Pace(5, first=1))
    assert watch.seconds == near([one_by_one(given)])
    assert [one.steps for one in watch.windows] == [5, 5, 1]
    assert [one.seconds for one in watch.windows] == near(
        [freely(given, 5), freely(given, 5), one_by_one(given)]
    )
    assert len(watch.losses) == 12
    assert not watch.held_up


@pytest.mark.usefixtures("clock")
def test_windows_and_single_steps_alternate(given: dict[str, float]) -> None:
    watch = trained(2 + 3 * (4 + 4) + 4, Pace(4, first=2, between=4))
    assert [one.seconds for one in watch.windows] == near([freely(given, 4)] * 4)
    assert watch.seconds == near([one_by_one(given)] * (2 + 3 * 4))


class Moved:
    """A CUDA event on the toy's device, in milliseconds of its time line: it is passed when the work before it is done."""

    ledger: costs.Ledger

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self._passed = max(costs.time.perf_counter(), self.ledger._busy_until)

    def elapsed_time(self, after: Moved) -> float:
        assert costs.time.perf_counter() >= after._passed, "read before the device has passed it"
        return 1_000 * (after._passed - self._passed)


class WithEvents(Adapter):
    def step_events(self, steps: int) -> CudaEvents:
        Moved.ledger = self._ledger
        return CudaEvents(steps, Moved)


@pytest.mark.usefixtures("clock")
def test_device_clock_times_steps_of_windows(given: dict[str, float]) -> None:
    """By PyTorch's own events, on a stand-in of CUDA's. A step's time is that between the ends of two steps.

    The first of a window has none: an idle device waits for its launch, and for the call that synchronises before it.
    """
    watch = trained(11, Pace(5, first=1), WithEvents)
    host, device = given["launch"], given["step"] + given["update"]
    assert watch.on_device_seconds == near(2 * 4 * [max(host, device)])
    assert [one.seconds for one in watch.windows] == near([freely(given, 5)] * 2)


class Waiting(Adapter):
    """Its way of training stops the clock after every step, whatever it asks for."""

    def train_epoch(self, network: Any, optimizer: Any, made: Any, watch: Any) -> None:
        for batch in made:
            placed = self.place(batch)
            watch.begin()
            loss = self.train_step(network, optimizer, placed)
            self.synchronise()
            watch.end(float(loss))


@pytest.mark.usefixtures("clock", "given")
def test_waiting_framework_is_detected() -> None:
    assert trained(6, Pace(5, first=1), Waiting).held_up
    assert not trained(6, EVERY_STEP, Waiting).held_up


class Told:
    """Keeps metrics, tags and windows of a cell."""

    def __init__(self) -> None:
        self.metric: dict[str, float] = {}
        self.live: list[tuple[int, float]] = []
        self.records: list[Any] = []
        self.examples: list[int] = []

    def metrics(self, values: Any, step: int = 0) -> None:
        self.metric |= values
        if "live/examples_per_second" in values:
            self.live.append((step, values["live/examples_per_second"]))

    def record(self, record: Any) -> None:
        self.records.append(record)

    def window(self, _: str, __: float, ___: float, examples: int, **____: Any) -> None:
        self.examples.append(examples)

    waited_seconds = 0.0

    def begin(self, place: int = 1) -> None: ...

    def turn(self, steps: int = 1) -> None: ...

    def progress(self, *_: Any) -> None: ...

    def artifact(self, *_: Any) -> None: ...


class Task:
    """Epochs of eight steps of four examples; `stops`: the epoch in which it is interrupted."""

    model, steps_per_epoch, examples_a_step = "lenet", 8, 4

    def __init__(self, stops: int | None = None) -> None:
        self._stops = stops

    def training(self, epoch: int, _: Any) -> Iterator[Batch]:
        if epoch == self._stops:
            raise KeyboardInterrupt
        return batches(self.steps_per_epoch)

    def learning_rate(self, _: int) -> None: ...

    def validate(self, *_: Any) -> dict[str, float]:
        return {"val/loss": 1.0}


def cell(folder: Path, **settings: Any) -> Any:
    every = {
        "epochs": 3,
        "warmup_steps": 3,
        "inject_delay": 0.0,
        "timing": "free",
        "window_steps": 4,
        **settings,
    }
    return SimpleNamespace(
        checkpoint=str(folder / "checkpoint"), settings=every, run="1", path=folder, framework="toy"
    )


@pytest.mark.usefixtures("clock")
def test_training_runs_freely_after_warmup(tmp_path: Path, given: dict[str, float]) -> None:
    framework, network, optimizer = opened()
    told = Told()
    state = measure._train(
        Task(), cell(tmp_path), framework, network, optimizer, DevicePeaks(framework), told
    )  # type: ignore[arg-type]
    assert (len(state.seconds), [one.steps for one in state.windows]) == (3, [4, 1, 4, 4, 4, 4])
    assert (state.steps, told.examples) == (24, [24 * 4])
    # a message at most after each window, with its own rate: a line a second is asked for, and every window is longer
    assert [step for step, _ in told.live] == [1, 2, 3, 7, 8, 12, 16, 20, 24]
    assert [rate for _, rate in told.live][3] == pytest.approx(16 / freely(given, 4), rel=1e-3)


@pytest.mark.usefixtures("clock", "given")
def test_resumed_training_keeps_windows_and_warms_up(tmp_path: Path) -> None:
    framework, network, optimizer = opened()
    with pytest.raises(KeyboardInterrupt):
        measure._train(
            Task(2), cell(tmp_path), framework, network, optimizer, DevicePeaks(framework), Told()
        )  # type: ignore[arg-type]
    kept = Checkpoint(tmp_path / "checkpoint", cell(tmp_path).settings).load(
        framework, network, optimizer
    )
    assert (len(kept.seconds), [one.steps for one in kept.windows]) == (3, [4, 1, 4, 4])
    state = measure._train(
        Task(), cell(tmp_path), framework, network, optimizer, DevicePeaks(framework), Told()
    )  # type: ignore[arg-type]
    assert (len(state.seconds), [one.steps for one in state.windows]) == (6, [4, 1, 4, 4, 4, 1])
    assert state.windows[:4] == kept.windows
    values = timing.PhaseValues("train", tuple(state.seconds), (4,) * 6, 3, tuple(state.starts))
    assert values.is_warmup == (True,) * 6


@pytest.mark.parametrize(
    ("timing_", "window_steps", "message"),
    [
        (
            "free",
            9,
            "window_steps=9: a window is longer than the 8 measured steps of an epoch; at most 8",
        ),
        (
            "both",
            5,
            "window_steps=5: a window, with as many timed one by one, is longer than the 8 measured .*; at most 4",
        ),
        ("step", 9, ""),
        ("free", 8, ""),
        ("both", 4, ""),
    ],
)
def test_too_long_windows_are_refused(timing_: str, window_steps: int, message: str) -> None:
    """Eight steps an epoch, of two epochs, whose first holds the warm-up."""
    settings = captioning.Settings(
        timing=timing_, window_steps=window_steps, steps_per_epoch=8, epochs=2, warmup_steps=8
    )
    if not message:
        return steps_.check(settings, 1_000, "training captions", "scenes")
    with pytest.raises(UsageError, match=message):
        steps_.check(settings, 1_000, "training captions", "scenes")
    return None


class Diverging(Adapter):
    """The loss of the seventh step is the first that is no number."""

    steps = 0

    def train_step(self, *given: Any) -> Any:
        self.steps += 1
        loss = super().train_step(*given)
        return loss if self.steps < 7 else float("nan")


@pytest.mark.usefixtures("clock", "given")
@pytest.mark.parametrize("kind", ["step", "free", "both"])
def test_infinite_loss_is_detected_in_a_window(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    framework, network, _ = opened(Diverging)
    settings = {
        "batch_size": 4,
        "timing": kind,
        "window_steps": 4,
        "seconds": 1e-9,
        "least_steps": 12,
    }
    monkeypatch.setattr(
        grid_measure,
        "optimizer_config",
        lambda _: OptimizerConfig("adam", 0.1),
    )
    batch, spec = framework.place(next(batches(1))), SimpleNamespace(settings=settings)
    with pytest.raises(EvenhandError, match="the loss of step 6 is not finite"):
        grid_measure._train(framework, network, batch, spec, DevicePeaks(framework), Told())  # type: ignore[arg-type]


def test_free_running_campaign_is_judged_by_throughput(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real campaign, whose second framework is slower by a known cost. No single step is judged."""
    slow = {"toy": {"step": 0.01}, "toy+twin": {"step": 0.02}}
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps(slow))
    toys = {
        "frameworks": "toy,toy+twin",
        "data": "synthetic",
        "vocabulary": "60",
        "length": "8",
        "inference_requests": "2",
    }
    done = place.run(
        **toys,
        blocks="2",
        steps_per_epoch="8",
        epochs="2",
        timing="free",
        window_steps="4",
        protocol="paper",
    )
    assert done.returncode == 3, done.stderr + done.stdout
    folder = next(place.journal.iterdir()) / "report"
    rows = {
        row["metric"]: row for row in json.loads((folder / "comparison.json").read_text())["rows"]
    }
    assert "train/step_seconds" not in rows
    assert rows["train/examples_per_second"]["n_blocks"] == 2
    assert (
        "Where steps ran freely, a window of them stands for a step."
        in (folder / "report.md").read_text()
    )
    runs = [run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "cell"]
    assert {(run.params["timing"], run.params["window_steps"]) for run in runs} == {("free", "4")}

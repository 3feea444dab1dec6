"""Steps that run freely on a device whose costs are known, and how many fit into a time."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.cell import measure as cell_measure
from experiments.cell import timing
from experiments.cell.checkpoint import Checkpoint, TrainingState
from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.timing import EVERY_STEP, Pace, Stopwatch
from experiments.cli.codes import NO_VERDICT
from experiments.config import settings as settings_
from experiments.contract import STEP_SECONDS, DatasetInfo, Prepared
from experiments.studies import captioning, grid
from experiments.workloads import steps
from experiments.workloads.captioning import prepare
from experiments.workloads.grid import measure as grid_measure
from models.contract import Batch, OptimizerConfig
from tests.conftest import Place, set_toy_costs
from tests.experiments.datasets.folders import refused
from tests.experiments.known_device import RecordedOutput, batches, cell, open_toy, set_costs
from tests.experiments.small_campaigns import cells, comparison, measure
from tests.experiments.test_blocks import TOYS
from tests.toy_framework.adapter import Adapter
from tracking.errors import ErrorCode, EvenhandError

pytestmark = pytest.mark.usefixtures("toy_installed")
# A device that takes longer than its host, and the other way round.
SLOW_DEVICE = {
    "launch": 2.0,
    "step": 9.0,
    "update": 1.0,
    "copy": 3.0,
    "synchronise": 0.5,
    "read": 0.25,
}
SLOW_HOST = {**SLOW_DEVICE, "launch": 20.0}


@pytest.fixture(params=[SLOW_DEVICE, SLOW_HOST], ids=["slow device", "slow host"])
def cost(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    set_costs(monkeypatch, request.param)
    seconds: dict[str, float] = request.param
    return seconds


def train(count: int, pace: Pace, kind: type[Adapter] = Adapter) -> Stopwatch:
    framework, network, optimizer = open_toy(kind)
    watch = Stopwatch(lambda *_: None, 0.0, pace)
    framework.train_epoch(network, optimizer, batches(count), watch)
    return watch


def step_seconds(cost: dict[str, float]) -> float:
    """Return the seconds of a step that waits for the device, which synchronises meanwhile."""
    return cost["launch"] + cost["step"] + cost["update"] + cost["read"]


def window_seconds(cost: dict[str, float], steps: int) -> float:
    """Return the seconds of a window: the slower side never pauses, and one loss is read."""
    host, device = cost["launch"], cost["step"] + cost["update"]
    return steps * max(host, device) + min(host, device) + cost["read"]


def near(seconds: float | Sequence[float]) -> Any:
    return pytest.approx(seconds, abs=0.01)


def test_window_hides_launch_or_device_time(cost: dict[str, float]) -> None:
    assert train(6, EVERY_STEP).seconds == near([step_seconds(cost)] * 6)
    watch = train(12, Pace(5, first=1))
    assert watch.seconds == near([step_seconds(cost)])
    assert [window.steps for window in watch.windows] == [5, 5, 1]
    assert [window.seconds for window in watch.windows] == near(
        [window_seconds(cost, 5), window_seconds(cost, 5), step_seconds(cost)]
    )
    assert len(watch.losses) == 12
    assert not watch.held_up


def test_windows_and_single_steps_alternate(cost: dict[str, float]) -> None:
    watch = train(2 + 3 * (4 + 4) + 4, Pace(4, first=2, between=4))
    assert [window.seconds for window in watch.windows] == near([window_seconds(cost, 4)] * 4)
    assert watch.seconds == near([step_seconds(cost)] * (2 + 3 * 4))


class WaitingFramework(Adapter):
    """Framework that stops the clock after every step, whatever window it is asked for."""

    def train_epoch(self, network: Any, optimizer: Any, made: Any, watch: Any) -> None:
        for batch in made:
            placed = self.place(batch)
            watch.begin()
            loss = self.train_step(network, optimizer, placed)
            self.synchronise()
            watch.end(float(loss))


@pytest.mark.usefixtures("cost")
def test_waiting_framework_is_detected() -> None:
    assert train(6, Pace(5, first=1), WaitingFramework).held_up
    assert not train(6, EVERY_STEP, WaitingFramework).held_up


class Task:
    """Epochs of eight steps of four examples. interrupted_in: epoch in which it is interrupted."""

    model, steps_per_epoch, examples_a_step = "lenet", 8, 4

    def __init__(self, interrupted_in: int | None = None) -> None:
        self._interrupted_in = interrupted_in

    def training(self, epoch: int, _: Any) -> Iterator[Batch]:
        if epoch == self._interrupted_in:
            raise KeyboardInterrupt
        return batches(self.steps_per_epoch)

    def learning_rate(self, _: int) -> None: ...

    def validate(self, *_: Any) -> dict[str, float]:
        return {"val/loss": 1.0}


def train_task(task: Any, folder: Path, toy: Any, output: Any) -> TrainingState:
    return cell_measure._train(task, cell(folder), *toy, DevicePeaks(toy[0]), output)


def test_training_runs_freely_after_warmup(tmp_path: Path, cost: dict[str, float]) -> None:
    output = RecordedOutput()
    state = train_task(Task(), tmp_path, open_toy(), output)
    assert len(state.seconds) == 3
    assert [window.steps for window in state.windows] == [4, 1, 4, 4, 4, 4]
    assert (state.steps, output.examples) == (24, [24 * 4])
    # a live metric at most every second, after a window: every window takes longer
    assert [step for step, _ in output.live] == [1, 2, 3, 7, 8, 12, 16, 20, 24]
    assert output.live[3][1] == pytest.approx(16 / window_seconds(cost, 4), rel=1e-3)


@pytest.mark.usefixtures("cost")
def test_resumed_training_keeps_windows_and_warms_up(tmp_path: Path) -> None:
    toy = open_toy()
    with pytest.raises(KeyboardInterrupt):
        train_task(Task(2), tmp_path, toy, RecordedOutput())
    saved = Checkpoint(
        tmp_path / "checkpoint", settings_.cell_values(cell(tmp_path).settings)
    ).load(*toy)
    assert [window.steps for window in saved.windows] == [4, 1, 4, 4]
    state = train_task(Task(), tmp_path, toy, RecordedOutput())
    assert len(state.seconds) == 6
    assert [window.steps for window in state.windows] == [4, 1, 4, 4, 4, 1]
    assert state.windows[:4] == saved.windows
    values = timing.PhaseValues("train", tuple(state.seconds), (4,) * 6, 3, tuple(state.starts))
    assert values.is_warmup == (True,) * 6


@pytest.mark.parametrize(
    ("kind", "window_steps", "most"),
    [("free", 9, 8), ("both", 5, 4), ("step", 9, 0), ("free", 8, 0), ("both", 4, 0)],
)
def test_too_long_windows_are_refused(kind: str, window_steps: int, most: int) -> None:
    """Take eight steps an epoch, of two epochs, whose first holds the warm-up."""
    settings = captioning.Settings(
        timing=kind, window_steps=window_steps, steps_per_epoch=8, epochs=2, warmup_steps=8
    )
    if not most:
        steps.check(settings, 1_000, "training captions", "scenes")
        return
    with refused(ErrorCode.TOO_LARGE, f"window_steps={window_steps}", f"at most {most}"):
        steps.check(settings, 1_000, "training captions", "scenes")


class DivergingFramework(Adapter):
    """Framework in which the loss of the seventh step is the first that is not finite."""

    steps = 0

    def train_step(self, *args: Any) -> Any:
        self.steps += 1
        loss = super().train_step(*args)
        return loss if self.steps < 7 else float("nan")


@pytest.mark.usefixtures("cost")
@pytest.mark.parametrize("kind", ["step", "free", "both"])
def test_infinite_loss_is_detected_in_a_window(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    framework, network, _ = open_toy(DivergingFramework)
    settings = grid.Settings(
        batch_size=4, timing=kind, window_steps=4, seconds=1e-9, least_steps=12
    )
    monkeypatch.setattr(grid_measure, "optimizer_config", lambda _: OptimizerConfig("adam", 0.1))
    batch, spec = framework.place(next(batches(1))), SimpleNamespace(settings=settings)
    peaks = DevicePeaks(framework)
    with pytest.raises(EvenhandError, match="step 6") as error:
        grid_measure._train(framework, network, batch, spec, peaks, RecordedOutput())  # type: ignore[arg-type]
    assert error.value.code is ErrorCode.DIVERGED


@pytest.mark.usefixtures("local_cells")
def test_free_running_campaign_is_judged_by_throughput(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_toy_costs(monkeypatch, step=0.01)
    settings = {"steps_per_epoch": "8", "timing": "free", "window_steps": "4", "protocol": "paper"}
    measure(place, **{**TOYS, **settings}, blocks="2")
    blocks = {metric: row["n_blocks"] for metric, row in comparison(place)["rows"].items()}
    assert "train/step_seconds" not in blocks
    assert blocks["train/examples_per_second"] == 2
    params = [run.data.params for run in cells(place)]
    assert {(each["timing"], each["window_steps"]) for each in params} == {("free", "4")}


# ---- length of a training by the time that a step takes


@pytest.mark.parametrize(
    ("seconds", "changes", "expected"),
    [
        ((0.01, 0.02), {}, 20),
        ((0.01, 0.08), {}, 15),
        ((0.12, 0.01), {}, 10),
        ((3.0,), {}, 5),
        ((3.0,), {"warmup_steps": "70"}, 10),  # fewer would leave nothing to be measured
        ((3.0,), {"timing": "free", "window_steps": "15"}, 15),
        ((), {}, 20),
    ],
)
def test_slowest_framework_decides(
    seconds: tuple[float, ...], changes: dict[str, str], expected: int
) -> None:
    """Take 8 epochs of 20 steps, and 10 s: a step of 80 ms leaves 15 steps to an epoch."""
    texts = {"preset": "demo", "training_seconds": "10", **changes}
    settings = settings_.parse(captioning.Settings, captioning.STUDY.presets, texts)
    findings = [{STEP_SECONDS: repr(each)} for each in seconds]
    info = DatasetInfo("", "", "", {"training_captions": 680}, {})
    shorter = prepare.shortened(settings, Prepared(info, {}), findings)
    assert shorter.steps_per_epoch == expected


@pytest.mark.usefixtures("local_cells")
def test_steps_are_those_of_the_campaign_and_of_what_continues_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take 0.6 s for steps of 30 ms: 10 in each of two epochs."""
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps({"toy+twin": {"step": 0.03}}))
    few = {"data": "scenes", "images": "160", "epochs": "2", "steps_per_epoch": "20"}
    measure(place, **{**TOYS, **few}, blocks="1", training_seconds="0.7")
    (journal,) = place.journal.iterdir()
    assert json.loads((journal / "campaign.json").read_text())["settings"]["steps_per_epoch"] == 10
    set_toy_costs(monkeypatch, step=0.001)
    assert place.resume(blocks="2").returncode == NO_VERDICT
    assert [run.data.params["steps_per_epoch"] for run in cells(place)] == ["10"] * 4

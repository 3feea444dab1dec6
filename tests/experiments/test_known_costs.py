"""Cells of a framework whose costs are known, in every workload: every clock is right.

The table of docs/measurement.md is derived from the framework's log of what it did when.
"""

import io
import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from experiments.cell.checkpoint import TrainingState
from experiments.cell.output import Emitter
from experiments.workloads import __main__ as workloads
from tests.cells import cell_spec
from tests.conftest import ROOT
from tests.experiments.known_device import set_costs
from tracking.records import RunOutcome

# Seconds. The device begins when it is launched and works while the host synchronises.
COSTS = {
    "input": 0.05,
    "copy": 0.012,
    "launch": 0.025,
    "step": 0.025,
    "evaluate": 0.017,
    "infer": 0.02,
    "apply": 0.02,
    "update": 0.005,
    "synchronise": 0.003,
    "read": 0.007,
}
ON_DEVICE = COSTS["step"] + COSTS["update"]
STEP, ANSWER = COSTS["launch"] + ON_DEVICE + COSTS["read"], COSTS["infer"] + COSTS["read"]
LATE = 0.001  # what all readings of the clock take, and milliseconds as stored
STEPS = 8
FEW = {"seed": 1, "threads": 1, "inference_requests": 8, "epochs": 2, "steps_per_epoch": STEPS}
# Workload -> study, settings, examples of a step.
WORKLOADS: dict[str, tuple[str, dict[str, Any], int]] = {
    "captioning": (
        "captioning",
        {**FEW, "data": "synthetic", "vocabulary": 60, "length": 8, "images": 40},
        32,
    ),
    "classification": ("lenet", {**FEW, "input": ("native",), "warmup_steps": 1}, 100),
    "grid": (
        "grid",
        {"models": ("lenet",), "batch_sizes": (4,), "image_sizes": (28,), "seconds": 0.4},
        4,
    ),
    "training_speed": (
        "training_speed",
        {"models": ("lenet",), "size": "tiny", "steps": 7, "warmup_steps": 2, "batch_size": 4},
        4,
    ),
}
# Steps in windows of three, after each step of the warm-up (ten, one, and one) is timed; the last
# window of an epoch is short.
WINDOWS = {
    ("captioning", "free"): (3, 3),
    ("classification", "free"): (3, 3, 1, 3, 3, 2),
    ("classification", "both"): (3, 1, 3),
    ("training_speed", "free"): (3, 3, 1),
    ("grid", "free"): (),  # as many as the budget has time for
}
TABLE = re.compile(
    r"^\| (?P<work>[^|]+?) \(`(?P<event>\w+)`\) \| (?P<step>\w+|–) \| (?P<epoch>\w+|–) "
    r"\| (?P<request>\w+|–) \| (?P<window>[^|]+) \|",
    re.MULTILINE,
)
Span = tuple[float, float]


@dataclass(frozen=True)
class Measured:
    """Cell that was measured.

    Attributes:
        metrics: Metrics of the run.
        events: Log of the framework.
        rows: Steps, windows and requests.
    """

    metrics: dict[str, float]
    events: list[dict[str, Any]]
    rows: list[dict[str, Any]]

    def events_of(self, event: str) -> list[Span]:
        return [(row["began"], row["ended"]) for row in self.events if row["event"] == event]

    def values(self, phase: str, name: str = "seconds") -> list[Any]:
        return [row[name] for row in self.rows if row["phase"].partition("_batch_")[0] == phase]

    def spans(self, phase: str) -> list[Span]:
        ends = [ended_ms / 1_000 for ended_ms in self.values(phase, "ended_ms")]
        return [(end - seconds, end) for end, seconds in zip(ends, self.values(phase), strict=True)]


Measure = Callable[[str, str], Measured]


@pytest.fixture
def measured(tmp_path: Path, toy_installed: None, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Return a function that measures a workload, with a timing, on a clock that costs move."""
    set_costs(monkeypatch, COSTS)
    monkeypatch.setenv("EVENHAND_TOY_EVENTS", str(tmp_path / "events"))

    def run(workload: str, kind: str) -> Measured:
        study, settings, _ = WORKLOADS[workload]
        values = {**settings, "timing": kind, "window_steps": 3}
        spec, stream = cell_spec(tmp_path, study, "toy", "cpu", 0, values), io.StringIO()
        spec.path.mkdir(parents=True)
        closed = workloads.run(spec, Emitter(spec, stream, io.StringIO()))
        assert closed.outcome == RunOutcome.OK, closed.reason
        messages = [json.loads(line) for line in stream.getvalue().splitlines()]
        points = [point for message in messages for point in message.get("points", ())]
        return Measured(
            {point["key"]: point["value"] for point in points},
            [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()],
            pyarrow.parquet.read_table(spec.path / "values.parquet").to_pylist(),
        )

    return run


@pytest.mark.parametrize("name", ["captioning", "classification", "grid"])
def test_clocks_hold_the_device_work_and_one_result(measured: Measure, name: str) -> None:
    cell = measured(name, "step")
    assert STEP <= min(cell.values("train")) <= max(cell.values("train")) < STEP + LATE
    assert STEP <= cell.metrics["train/step_seconds"] < STEP + LATE
    answered = cell.values("inference")
    assert ANSWER <= min(answered) <= max(answered) < ANSWER + LATE
    assert ANSWER <= cell.metrics["inference/latency_seconds_p50"] < ANSWER + LATE


def test_epoch_includes_input_but_not_validation(measured: Measure) -> None:
    """The second epoch lasted from its first batch to its last loss, without validation."""
    cell = measured("classification", "step")
    steps, metrics = cell.spans("train"), cell.metrics
    epoch, mean = metrics["train/epoch_seconds"], metrics["input/seconds_mean"]
    inputs = [span for span in cell.events_of("input") if span[0] < steps[-1][1]]
    assert len(inputs) == len(steps) == 2 * STEPS
    assert epoch >= STEPS * (COSTS["input"] + COSTS["copy"] + COSTS["synchronise"] + STEP)
    assert epoch == pytest.approx(steps[-1][1] - inputs[STEPS][0], abs=LATE)
    throughput = pytest.approx(STEPS * 100 / epoch, rel=1e-3)
    assert metrics["train/epoch_examples_per_second"] == throughput
    spent = statistics.mean(end - start for start, end in inputs)
    assert COSTS["input"] <= spent <= mean < spent + LATE


@pytest.mark.parametrize("key", WINDOWS)
def test_free_running_steps_overlap(measured: Measure, key: tuple[str, str]) -> None:
    """Compare with single steps, which would take 64 ms longer in a window of three."""
    cell = measured(*key)
    examples = cell.values("train_windows", "examples")
    counts = [count // WORKLOADS[key[0]][2] for count in examples]
    assert tuple(counts) == (WINDOWS[key] or tuple(counts))
    expected = [COSTS["launch"] + steps * ON_DEVICE + COSTS["read"] for steps in counts]
    assert cell.values("train_windows") == pytest.approx(expected, abs=LATE)
    assert cell.values("train_windows")[counts.index(3)] < 3 * STEP


def documented(column: str) -> dict[str, str]:
    """Return a column of the table in docs/measurement.md by event."""
    text = (ROOT / "docs/measurement.md").read_text()
    return {row["event"]: row[column] for row in TABLE.finditer(text)}


def is_inside(span: Span, spans: Sequence[Span]) -> bool:
    middle = sum(span) / 2
    return any(start <= middle <= end for start, end in spans)


def test_window_contains_its_steps_and_one_loss(measured: Measure) -> None:
    """Its batches are made and copied before it, and the other losses are read after it."""
    cell = measured("classification", "free")
    outside, inside = ("input", "copy", "evaluate"), ("launch", "step", "update")
    windows, examples = cell.spans("train_windows"), cell.values("train_windows", "examples")
    for window, count in zip(windows, examples, strict=True):
        counts = {
            event: sum(is_inside(span, [window]) for span in cell.events_of(event))
            for event in (*outside, *inside, "read")
        }
        expected = dict.fromkeys(outside, 0) | dict.fromkeys(inside, count // 100) | {"read": 1}
        assert counts == expected
    assert documented("window") == {
        **dict.fromkeys(outside, "outside"),
        **dict.fromkeys(("launch", "step"), "inside"),
        "read": "once, at its end",
    }


def test_documented_columns_match_events(measured: Measure) -> None:
    """`classification` does all of it; an epoch's first batch is made before its first step."""
    cell = measured("classification", "step")
    steps, requests = cell.spans("train"), cell.spans("inference")
    epochs = [(steps[first][0], steps[first + STEPS - 1][1]) for first in (0, STEPS)]
    trained = steps[-1][1]

    def place_of(event: str, spans: Sequence[Span], least: int, *, training: bool) -> str:
        events = [span for span in cell.events_of(event) if (span[0] < trained) == training]
        count = sum(is_inside(span, spans) for span in events)
        return "inside" if count >= least else "outside"

    in_step, in_epoch, in_request = map(documented, ("step", "epoch", "request"))
    for event in ("input", "copy", "launch", "step", "read", "evaluate"):
        assert in_step[event] == place_of(event, steps, STEPS, training=True)
        assert in_epoch[event] == place_of(event, epochs, STEPS - 1, training=True)
    assert len(requests) >= 8
    for event, name in {"copy": "copy", "infer": "step", "read": "read"}.items():
        assert in_request[name] == place_of(event, requests, len(requests), training=False)
    assert {in_request[event] for event in ("input", "evaluate")} == {"–"}


def test_throughput_of_epochs_is_total_over_total_without_the_first() -> None:
    for seconds, expected in (([4.0], 20), ([4.0, 1.0, 3.0], 40)):
        summary = TrainingState(epoch_seconds=seconds).summary(80)
        assert summary["train/epoch_examples_per_second"] == expected

"""Cells of a framework whose costs are known, in every workload: every clock is right.

The table of docs/measurement.md is derived from the framework's log of what it did when.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from experiments.cell.checkpoint import TrainingState
from experiments.cell.timing import summarise_epochs
from experiments.contract import AnyCell
from experiments.run.cell_process import CellProcess
from models import frameworks
from tests.cells import cell_spec
from tests.conftest import PYTHONPATH, ROOT
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
# What our code and a busy machine may add to the quickest step or request: less than a copy.
LATE = 0.008
ROUNDED = 0.002  # clock times are stored in milliseconds, and the two clocks drift
PHASES = ("train", "train_windows", "inference")
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
        spans: Begin and end of the steps, windows and requests, in `time.perf_counter` seconds.
        examples: Examples of each window.
        judged: Seconds of the steps after the warm-up.
        answered: Seconds of all requests.
    """

    metrics: dict[str, float]
    events: list[dict[str, Any]]
    spans: dict[str, list[Span]]
    examples: list[int]
    judged: list[float]
    answered: list[float]

    def events_of(self, event: str) -> list[Span]:
        return [(row["began"], row["ended"]) for row in self.events if row["event"] == event]


def spec_of(place: Path, workload: str, timing: str) -> AnyCell:
    study, settings, _ = WORKLOADS[workload]
    values = {**settings, "timing": timing, "window_steps": 3}
    return cell_spec(place, study, "toy", "cpu", 0, values)


def measure(folder: Path, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Measured]:
    """Run cells at the same time: they sleep most of their time."""
    children = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        patch.setenv("EVENHAND_TOY_COSTS", json.dumps({"toy": COSTS}))
        for entry in PYTHONPATH.split(os.pathsep):
            patch.syspath_prepend(entry)
        frameworks._variants.cache_clear()
        for workload, timing in keys:
            place = folder / f"{workload} {timing}"
            place.mkdir()
            spec = spec_of(place, workload, timing)
            patch.setenv("EVENHAND_TOY_EVENTS", str(place / "events"))
            children[workload, timing] = CellProcess(spec, lambda _: None)
            children[workload, timing].start()
    frameworks._variants.cache_clear()
    return {key: finish(child, folder / " ".join(key)) for key, child in children.items()}


def finish(child: CellProcess, place: Path) -> Measured:
    while child.open:
        child.poll(1.0)
    closed = child.end()
    assert closed is not None
    assert closed.outcome == RunOutcome.OK, closed.reason
    (file,) = place.glob("cells/*/values.parquet")
    rows = pyarrow.parquet.read_table(file).to_pylist()
    for row in rows:
        row["phase"] = row["phase"].partition("_batch_")[0]
    wall = time.time() - time.perf_counter()
    spans: dict[str, list[Span]] = {phase: [] for phase in PHASES}
    for row in rows:
        if row["ended_ms"] is not None:
            end = row["ended_ms"] / 1_000 - wall
            spans[row["phase"]].append((end - row["seconds"], end))
    return Measured(
        child.latest,
        [json.loads(line) for line in (place / "events").read_text().splitlines()],
        spans,
        [row["examples"] for row in rows if row["phase"] == "train_windows"],
        [row["seconds"] for row in rows if row["phase"] == "train" and not row["warmup"]],
        [row["seconds"] for row in rows if row["phase"] == "inference"],
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Measured]:
    keys = [(name, "step") for name in ("captioning", "classification", "grid")]
    results = measure(tmp_path_factory.mktemp("costs"), keys)
    return {name: result for (name, _), result in results.items()}


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Measured]:
    return measure(tmp_path_factory.mktemp("windows"), WINDOWS)


@pytest.mark.parametrize("name", ["captioning", "classification", "grid"])
def test_clocks_hold_the_device_work_and_one_result(
    measured: Mapping[str, Measured], name: str
) -> None:
    cell = measured[name]
    assert STEP <= min(cell.judged) < STEP + LATE
    median = statistics.median(cell.judged)
    assert cell.metrics["train/step_seconds"] == pytest.approx(median, rel=1e-3)
    assert ANSWER <= min(cell.answered) < ANSWER + LATE
    latency = cell.metrics["inference/latency_seconds_p50"]
    assert min(cell.answered) <= latency <= max(cell.answered)


def test_epoch_includes_input_but_not_validation(measured: Mapping[str, Measured]) -> None:
    """The second epoch lasted from its first batch to its last loss, without validation."""
    cell = measured["classification"]
    steps, metrics = cell.spans["train"], cell.metrics
    epoch, mean = metrics["train/epoch_seconds"], metrics["input/seconds_mean"]
    inputs = [span for span in cell.events_of("input") if span[0] < steps[-1][1]]
    assert len(inputs) == len(steps) == 2 * STEPS
    assert epoch >= STEPS * (COSTS["input"] + COSTS["copy"] + COSTS["synchronise"] + STEP)
    assert epoch == pytest.approx(steps[-1][1] - inputs[STEPS][0], abs=STEPS * LATE)
    throughput = pytest.approx(STEPS * 100 / epoch, rel=1e-3)
    assert metrics["train/epoch_examples_per_second"] == throughput
    spent = statistics.mean(end - start for start, end in inputs)
    assert COSTS["input"] <= spent <= mean < spent + LATE


@pytest.mark.parametrize("key", WINDOWS)
def test_free_running_steps_overlap(
    windows: Mapping[tuple[str, str], Measured], key: tuple[str, str]
) -> None:
    """Compare with single steps, which would take 64 ms longer in a window of three."""
    cell = windows[key]
    counts = [examples // WORKLOADS[key[0]][2] for examples in cell.examples]
    assert tuple(counts) == (WINDOWS[key] or tuple(counts))
    whole = []
    for (start, end), steps in zip(cell.spans["train_windows"], counts, strict=True):
        assert end - start >= COSTS["launch"] + steps * ON_DEVICE + COSTS["read"] - ROUNDED
        whole += [end - start] * (steps == 3)
    assert min(whole) < 3 * STEP


def documented(column: str) -> dict[str, str]:
    """Return a column of the table in docs/measurement.md by event."""
    text = (ROOT / "docs/measurement.md").read_text()
    return {row["event"]: row[column] for row in TABLE.finditer(text)}


def is_inside(span: Span, spans: Sequence[Span]) -> bool:
    middle = sum(span) / 2
    return any(start <= middle <= end for start, end in spans)


def test_window_contains_its_steps_and_one_loss(
    windows: Mapping[tuple[str, str], Measured],
) -> None:
    """Its batches are made and copied before it, and the other losses are read after it."""
    cell = windows["classification", "free"]
    outside, inside = ("input", "copy", "evaluate"), ("launch", "step", "update")
    for window, examples in zip(cell.spans["train_windows"], cell.examples, strict=True):
        counts = {
            event: sum(is_inside(span, [window]) for span in cell.events_of(event))
            for event in (*outside, *inside, "read")
        }
        steps = examples // 100
        expected = {**dict.fromkeys(outside, 0), **dict.fromkeys(inside, steps), "read": 1}
        assert counts == expected
    assert documented("window") == {
        **dict.fromkeys(outside, "outside"),
        **dict.fromkeys(("launch", "step"), "inside"),
        "read": "once, at its end",
    }


def test_documented_columns_match_events(measured: Mapping[str, Measured]) -> None:
    """`classification` does all of it; an epoch's first batch is made before its first step."""
    cell = measured["classification"]
    steps, requests = cell.spans["train"], cell.spans["inference"]
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
        summary = summarise_epochs(TrainingState(epoch_seconds=seconds), 80)
        assert summary["train/epoch_examples_per_second"] == expected

"""Real cells of a framework whose costs are known: every clock says what it should, in every workload.

The table of docs/measurement.md is derived here from the framework's own log of what it did when.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from experiments.cell import timing
from experiments.cell.checkpoint import TrainingState
from experiments.config import devices
from experiments.contract import CellSpec
from experiments.run.cell_process import CellProcess
from experiments.studies import captioning, grid, lenet, training_speed
from experiments.workloads.captioning import prepare as captions
from experiments.workloads.classification import prepare as pictures
from models import frameworks
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
}
COSTS |= {"update": 0.005, "synchronise": 0.003, "read": 0.007}
ON_DEVICE = COSTS["step"] + COSTS["update"]
STEP, ANSWER = COSTS["launch"] + ON_DEVICE + COSTS["read"], COSTS["infer"] + COSTS["read"]
# What our code and a busy machine may add to the quickest step or request: less than a copy, which does not belong there.
LATE = 0.008
ROUNDED = 0.002  # clock times are kept in milliseconds, and the two clocks drift
PHASES = ("train", "train_windows", "inference")
STEPS = 8
WORKLOADS = ("captioning", "classification", "grid")
BATCHES = {"captioning": 32, "classification": 100, "grid": 4, "training_speed": 4}
# Steps in windows of each. Before them each step of the warm-up is timed: ten, one, and one; an epoch's last window is short.
FREELY = {
    "captioning, free": (3, 3),
    "classification, free": (3, 3, 1, 3, 3, 2),
    "classification, both": (3, 1, 3),
}
FREELY |= {"training_speed, free": (3, 3, 1)}
TABLE = re.compile(
    r"^\| (?P<work>[^|]+?) \(`(?P<event>\w+)`\) \| (?P<step>\w+|–) \| (?P<epoch>\w+|–) "
    r"\| (?P<request>\w+|–) \| (?P<window>[^|]+) \|",
    re.MULTILINE,
)


@dataclasses.dataclass(frozen=True)
class Measured:
    """metrics: of the run. events: the framework's log. examples: of each window.

    steps, windows, requests: began and ended in seconds of `time.perf_counter`. judged: seconds of the steps after the warm-up,
    answered: of all requests.
    """

    metrics: dict[str, float]
    steps: list[tuple[float, float]]
    windows: list[tuple[float, float]]
    requests: list[tuple[float, float]]
    examples: list[int]
    judged: list[float]
    answered: list[float]
    events: list[dict[str, Any]]


def specs(folder: Path) -> dict[str, CellSpec]:
    """A cell of every workload: batches made between the steps, by the framework's own pipeline, and one again and again."""
    few = {"cache": str(folder), "frameworks": ("toy",), "seed": 1, "inference_requests": 8}
    decoder = captioning.Settings(
        **few, data="synthetic", vocabulary=60, length=8, images=40, epochs=2, steps_per_epoch=STEPS
    )
    network = lenet.Settings(
        **few, input=("native",), epochs=2, steps_per_epoch=STEPS, warmup_steps=1
    )
    point = grid.Settings(
        frameworks=("toy",), models=("lenet",), batch_sizes=(4,), image_sizes=(28,), seconds=0.4
    )
    speed = training_speed.Settings(
        frameworks=("toy",), models=("lenet",), size="tiny", steps=7, warmup_steps=2
    )
    own = {"model": "lenet", "batch_size": 4, "image_size": 28}
    asked = {
        "captioning": (
            captioning.STUDY,
            decoder,
            dict(captions.prepare(decoder, lambda *_: None).inputs),
            {},
            "train",
        ),
        "classification": (
            lenet.STUDY,
            network,
            dict(pictures.prepare(network, lambda *_: None).inputs),
            {"input": "native"},
            "train",
        ),
        "grid": (grid.STUDY, point, {}, own, "measure"),
        "training_speed": (
            training_speed.STUDY,
            speed,
            {},
            {"model": "lenet", "batch_size": 4},
            "measure",
        ),
    }
    for name in (*FREELY, "grid, free"):
        study, settings, inputs, more, stage = asked[name.partition(",")[0]]
        asked[name] = (
            study,
            settings,
            inputs,
            {**more, "timing": name.rpartition(" ")[2], "window_steps": 3},
            stage,
        )
    return {
        name: CellSpec(
            *(
                name,
                study.workload,
                stage,
                "toy",
                "cpu",
                1,
                0,
                {**devices.values_of_cell(settings), **more},
                inputs,
            ),
            *(str(folder / name), "cell", str(folder / name / "checkpoint")),
        )
        for name, (study, settings, inputs, more, stage) in asked.items()
    }


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Measured]:
    return _run(tmp_path_factory.mktemp("costs"), freely=False)


@pytest.fixture(scope="module")
def freely(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Measured]:
    """With `timing` free or both, and windows of three steps."""
    return _run(tmp_path_factory.mktemp("freely"), freely=True)


def _run(folder: Path, *, freely: bool) -> dict[str, Measured]:
    """All cells of one kind side by side: they sleep most of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        patch.setenv("EVENHAND_TOY_COSTS", json.dumps({"toy": COSTS}))
        for entry in PYTHONPATH.split(os.pathsep):
            patch.syspath_prepend(entry)
        frameworks._variants.cache_clear()
        children = {}
        for name, spec in specs(folder).items():
            if name not in ((*FREELY, "grid, free") if freely else WORKLOADS):
                continue
            patch.setenv("EVENHAND_TOY_EVENTS", str(folder / f"{name}.events"))
            (folder / name).mkdir()
            children[name] = CellProcess(spec, lambda _: None)
            children[name].start()
    frameworks._variants.cache_clear()
    return {
        name: _measured(child, folder / f"{name}.events", folder / name / "cell")
        for name, child in children.items()
    }


def _measured(child: CellProcess, log: Path, files: Path) -> Measured:
    while child.open:
        child.poll(1.0)
    closed = child.end()
    assert closed is not None
    assert closed.outcome == RunOutcome.OK, closed.reason
    table = pyarrow.parquet.read_table(files / "values.parquet").to_pydict()
    of_wall = time.time() - time.perf_counter()
    rows = list(zip(*table.values(), strict=True))
    spans = {
        phase: [
            (row[5] / 1_000 - of_wall - row[2], row[5] / 1_000 - of_wall)
            for row in rows
            if row[5] is not None and _phase(row[0]) == phase
        ]
        for phase in PHASES
    }
    examples = [row[3] for row in rows if row[0] == "train_windows"]
    judged = [row[2] for row in rows if row[0] == "train" and not row[4]]
    answered = [row[2] for row in rows if _phase(row[0]) == "inference"]
    events = [json.loads(line) for line in log.read_text().splitlines()]
    return Measured(child.latest, *spans.values(), examples, judged, answered, events)


def _phase(name: str) -> str:
    """Requests have the size of their batch in the name."""
    return name.partition("_batch_")[0]


@pytest.mark.parametrize("name", WORKLOADS)
def test_step_seconds_are_device_work_and_loss(measured: Mapping[str, Measured], name: str) -> None:
    seconds = measured[name].judged
    assert STEP <= min(seconds) < STEP + LATE
    assert measured[name].metrics["train/step_seconds"] == pytest.approx(
        statistics.median(seconds), rel=1e-3
    )


@pytest.mark.parametrize("name", WORKLOADS)
def test_request_seconds_are_device_work_and_answer(
    measured: Mapping[str, Measured], name: str
) -> None:
    seconds = measured[name].answered
    assert ANSWER <= min(seconds) < ANSWER + LATE
    assert min(seconds) <= measured[name].metrics["inference/latency_seconds_p50"] <= max(seconds)


def test_epoch_seconds_include_input_but_not_validation(
    measured: Mapping[str, Measured],
) -> None:
    """Each batch: read, copied, the device waited for, the step. The second epoch lasted from its first batch to its last loss.

    Validation would add half a second to every epoch.
    """
    found = measured["classification"]
    epoch, mean = found.metrics["train/epoch_seconds"], found.metrics["input/seconds_mean"]
    inputs = [
        one for one in found.events if one["event"] == "input" and one["began"] < found.steps[-1][1]
    ]
    assert len(inputs) == len(found.steps) == 2 * STEPS
    assert epoch >= STEPS * (COSTS["input"] + COSTS["copy"] + COSTS["synchronise"] + STEP)
    assert epoch == pytest.approx(found.steps[-1][1] - inputs[STEPS]["began"], abs=STEPS * LATE)
    assert found.metrics["train/epoch_examples_per_second"] == pytest.approx(
        STEPS * 100 / epoch, rel=1e-3
    )
    spent = statistics.mean(one["ended"] - one["began"] for one in inputs)
    assert COSTS["input"] <= spent <= mean < spent + LATE


@pytest.mark.parametrize("name", [*FREELY, "grid, free"])
def test_free_running_steps_overlap(freely: Mapping[str, Measured], name: str) -> None:
    """A window's steps are launched while the device works; one by one, they would take 64 ms longer in a window of three."""
    found, batch = freely[name], BATCHES[name.partition(",")[0]]
    counts = [examples // batch for examples in found.examples]
    assert tuple(counts) == FREELY.get(name, tuple(counts))
    whole = []
    for (began, ended), steps in zip(found.windows, counts, strict=True):
        assert ended - began >= COSTS["launch"] + steps * ON_DEVICE + COSTS["read"] - ROUNDED
        whole += [ended - began] * (steps == 3)
    assert min(whole) < 3 * STEP


def test_window_contains_its_steps_and_one_loss(freely: Mapping[str, Measured]) -> None:
    """Its batches are read and copied before it, and the other losses after; the device is waited for at its end."""
    found = freely["classification, free"]
    for window, examples in zip(found.windows, found.examples, strict=True):
        inside = [
            one["event"] for one in found.events if _inside((one["began"], one["ended"]), [window])
        ]
        counted = {
            event: inside.count(event)
            for event in ("input", "copy", "evaluate", "launch", "step", "update", "read")
        }
        steps = examples // BATCHES["classification"]
        assert counted == {
            "input": 0,
            "copy": 0,
            "evaluate": 0,
            "launch": steps,
            "step": steps,
            "update": steps,
            "read": 1,
        }
    told = {
        row["event"]: row["window"]
        for row in TABLE.finditer((ROOT / "docs/measurement.md").read_text())
    }
    none, each = (
        dict.fromkeys(("input", "copy", "evaluate"), "outside"),
        dict.fromkeys(("launch", "step"), "inside"),
    )
    assert told == {**none, **each, "read": "once, at its end"}


def test_documented_table_matches_events(
    measured: Mapping[str, Measured],
) -> None:
    """Of `classification`, which does all of it. An epoch's spans begin with its first step, whose batch was read before."""
    found = measured["classification"]
    told = {
        row["event"]: (row["step"], row["epoch"])
        for row in TABLE.finditer((ROOT / "docs/measurement.md").read_text())
    }
    training = [one for one in found.events if one["began"] < found.steps[-1][1]]
    epochs = [(found.steps[at][0], found.steps[at + STEPS - 1][1]) for at in (0, STEPS)]
    seen = {}
    for event in ("input", "copy", "launch", "step", "read", "evaluate"):
        mine = [(one["began"], one["ended"]) for one in training if one["event"] == event]
        in_steps = sum(_inside(one, found.steps) for one in mine)
        in_epochs = sum(_inside(one, epochs) for one in mine)
        # an epoch's first batch is made and copied before its first step begins, which is where `epochs` starts
        seen[event] = tuple(
            "inside" if count >= least else "outside"
            for count, least in ((in_steps, STEPS), (in_epochs, STEPS - 1))
        )
    assert {event: told[event] for event in seen} == seen


def test_documented_request_column_matches_events(
    measured: Mapping[str, Measured],
) -> None:
    found = measured["classification"]
    told = {
        row["event"]: row["request"]
        for row in TABLE.finditer((ROOT / "docs/measurement.md").read_text())
    }
    asked = [one for one in found.events if one["began"] > found.steps[-1][1]]
    seen = {}
    for event, named in (("copy", "copy"), ("infer", "step"), ("read", "read")):
        mine = [(one["began"], one["ended"]) for one in asked if one["event"] == event]
        seen[named] = (
            "inside"
            if sum(_inside(one, found.requests) for one in mine) >= len(found.requests)
            else "outside"
        )
    assert len(found.requests) >= 8
    assert {event: told[event] for event in seen} == seen
    assert {told[event] for event in ("input", "evaluate")} == {"–"}


def _inside(one: tuple[float, float], spans: Sequence[tuple[float, float]]) -> bool:
    middle = sum(one) / 2
    return any(began <= middle <= ended for began, ended in spans)


def test_throughput_of_epochs_is_total_over_total_without_the_first() -> None:
    for seconds, expected in (([4.0], 20), ([4.0, 1.0, 3.0], 40)):
        summary = timing.summarise_epochs(TrainingState(epoch_seconds=seconds), 80)
        assert summary["train/epoch_examples_per_second"] == expected

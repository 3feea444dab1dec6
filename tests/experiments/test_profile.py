"""Profile of a step with known costs and operators, and compilations of a training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from experiments.cell import timing
from experiments.cell.loop import Compiling, TrainingLoop
from experiments.cell.profile import GAPS, PARTS, STEPS, covered, parts, profile
from experiments.cell.timing import EVERY_STEP
from models.contract import Profile, Span
from models.frameworks.spans import Event, leaves
from tests.experiments.test_free_running import Time, Told, batches, cell, opened
from tests.toy_framework import costs

LAYERS = ("operators", "copies", "unrecorded", "framework", "steps")


def test_spans_that_overlap_count_once() -> None:
    assert covered([]) == 0
    assert covered([(5, 6), (0, 2), (1, 3), (1, 2)]) == 4


def test_a_moment_belongs_to_the_first_part_that_goes_on_then() -> None:
    """Against a count of whole seconds, one by one."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        drawn = {
            name: [(int(a), int(a + b)) for a, b in rng.integers(0, 12, (5, 2))]
            for name in LAYERS[:-1]
        }
        steps: list[Span] = [(2, 7), (9, 16)]
        spans = {**drawn, "steps": steps}
        expected = dict.fromkeys(PARTS, 0)
        for second in range(30):
            on = [any(start <= second < end for start, end in spans[name]) for name in LAYERS]
            if on[-1]:
                expected[PARTS[on.index(True)]] += 1
        found = parts(
            Profile(
                steps,
                {"mul": drawn["operators"][:3]},
                drawn["operators"][3:],
                *(drawn[name] for name in LAYERS[1:-1]),
            )
        )
        assert found == expected
        assert sum(found.values()) == 12


def test_a_leaf_has_none_of_the_others_inside_of_it() -> None:
    """Against all pairs; events of a thread lie apart or inside of one another, as calls do."""
    rng = np.random.default_rng(0)

    def calls(start: float, end: float, depth: int, thread: int) -> Iterator[Event]:
        cuts = [start, *sorted(rng.uniform(start, end, 2 * rng.integers(0, 3))), end]
        for first, last in zip(cuts[1:-1:2], cuts[2:-1:2], strict=True):
            yield Event("op", first, last, thread)
            if depth:
                yield from calls(first, last, depth - 1, thread)

    for _ in range(50):
        events = [event for thread in (0, 1) for event in calls(0.0, 1.0, 3, thread)]
        events = [events[at] for at in rng.permutation(len(events))]
        inside = {
            one
            for one in events
            if any(
                o is not one
                and o.thread == one.thread
                and one.start <= o.start
                and o.end <= one.end
                for o in events
            )
        }
        assert {*leaves(events)} == {*events} - inside


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    for module in (costs, timing):
        monkeypatch.setattr(module, "time", found)
    return found


COSTS = {
    "launch": 2.0,
    "step": 9.0,
    "update": 1.0,
    "copy": 3.0,
    "synchronise": 0.5,
    "read": 0.25,
    "profiler": 4.9,
}


@pytest.mark.usefixtures("toy_installed", "clock")
@pytest.mark.parametrize("pace", ["step", "free"])
def test_every_part_is_what_it_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: str
) -> None:
    """On a clock that only these costs move. In windows the host launches the next step while the device works."""
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps({"toy": COSTS}))
    framework, network, optimizer = opened()
    told = Told()

    def made() -> Iterator[Any]:
        for batch in repeat(next(batches(1))):
            costs.time.sleep(0.7)
            yield batch

    spec = cell(tmp_path, timing=pace)
    profile(spec, framework, network, optimizer, made, told)  # type: ignore[arg-type]
    windows = {"step": STEPS, "free": STEPS / 4}[
        pace
    ]  # so many times the first launch and the last loss are waited for
    apart = windows / STEPS
    expected = {
        "op": 10.0,
        "copy": 0.0,
        "unrecorded": 0.0,
        "dispatch": apart * (2.0 + 0.25 + 4.9),
        "python": 0.0,
    }
    expected |= {"gap": expected["dispatch"], "step": 10 + expected["dispatch"], "input": 0.7}
    assert {name: told.metric[f"profile/{name}_seconds"] for name in expected} == pytest.approx(
        expected, abs=0.01
    )
    assert told.metric["profile/gap_seconds"] == sum(
        told.metric[f"profile/{part}_seconds"] for part in GAPS
    )
    assert told.metric["profile/ops_per_step"] == 2
    assert "profile/launches_per_step" not in told.metric
    without = 10 / apart + 2.25
    if pace == "step":
        assert told.metric["profile/profiler_cost_ratio"] == pytest.approx(
            (without + 4.9) / without, rel=1e-3
        )
    else:
        assert "profile/profiler_cost_ratio" not in told.metric, "two windows show no cost"
        (reason,) = (
            one.values["not_available.profile/profiler_cost_ratio"] for one in told.records
        )
        assert reason.startswith("2 of 2 ")
    kept = json.loads((tmp_path / "profile.json").read_text())
    assert kept["steps"] == STEPS
    assert [(one["kind"], one["per_step"]) for one in kept["operators"]] == [
        ("step", 1),
        ("update", 1),
    ]
    assert [one["seconds_per_step"] for one in kept["operators"]] == pytest.approx([9, 1], abs=0.01)


class CompiledFramework:
    """Counts of a framework that `Compiling` reads."""

    def __init__(self, breaks: dict[str, int] | None = None) -> None:
        self.count, self.breaks = 7, breaks  # from before the training

    def compilations(self) -> int:
        return self.count

    def graph_breaks(self) -> dict[str, int] | None:
        return self.breaks and dict(self.breaks)

    def train_epoch(self, _: Any, __: Any, compilations: Any, watch: Any) -> None:
        for new in compilations:
            watch.begin()
            self.count += new
            watch.end(0.0)


def train(
    framework: CompiledFramework, epochs: list[list[int]], name: str, validation: int = 1
) -> Told:
    """Train epochs whose steps compile so often, and each validation, too."""
    output = Told()
    loop = TrainingLoop(framework, None, None, output)  # type: ignore[arg-type]
    for epoch in epochs:
        watch = loop.clock(EVERY_STEP, lambda _: False, lambda *_: None, is_warming=False)
        loop.run(epoch, watch)  # type: ignore[arg-type]
        framework.count += validation
    loop.compiling.record(SimpleNamespace(run="1", framework=name), "lenet", output)  # type: ignore[arg-type]
    return output


def test_recompilations_are_those_after_the_first_step() -> None:
    output = train(CompiledFramework(), [[3, 0, 1], [0, 2]], "tensorflow")
    assert output.metric == {"train/compilations": 8, "train/recompilations": 3}
    assert output.records[0].values == {"train.compilations": "8", "train.recompilations": "3"}


def test_graph_breaks_in_training_are_recorded_as_eager() -> None:
    framework = CompiledFramework({"earlier": 2})
    assert "ran_eagerly" not in train(framework, [[1, 0]], "pytorch+compile").records[0].values
    compiling, output = Compiling(framework), Told()  # type: ignore[arg-type]
    framework.breaks = {"earlier": 2, "Unsupported:\n  print": 1, "item": 2}
    framework.count += 2
    compiling.stepped()
    compiling.record(SimpleNamespace(run="1", framework="pytorch+compile"), "lenet", output)  # type: ignore[arg-type]
    assert output.metric["train/graph_breaks"] == 3
    reason = "lenet: 3 graph breaks, first: Unsupported: print"
    assert output.records[0].values["ran_eagerly"] == reason


@pytest.mark.parametrize(
    ("name", "epochs", "is_eager"),
    [
        ("pytorch+compile", [[0]], True),
        ("tensorflow", [[0]], True),
        ("pytorch", [[0]], False),
        ("pytorch+compile", [], False),  # without a step nothing is known
    ],
)
def test_variant_that_compiled_nothing_ran_eagerly(
    name: str, epochs: list[list[int]], is_eager: bool
) -> None:
    tags = train(CompiledFramework(), epochs, name, validation=0).records[0].values
    assert ("ran_eagerly" in tags) == is_eager

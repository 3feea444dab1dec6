"""Where a step's time goes: known costs, known operators, and a training that should have been compiled and was not."""

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
from experiments.cell.compiling import Compiling
from experiments.cell.profile import GAPS, PARTS, STEPS, covered, parts, profile
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


class Programs:
    """A framework as far as `Compiling` looks at it: what each call of `compile` adds."""

    def __init__(self, breaks: dict[str, int] | None = None) -> None:
        self.count, self.breaks = 7, breaks  # of before the training

    def compilations(self) -> int:
        return self.count

    def graph_breaks(self) -> dict[str, int] | None:
        return self.breaks and dict(self.breaks)


def told_of(framework: Programs, programs: list[list[int]], name: str = "pytorch+compile") -> Told:
    """programs: what each step of each epoch compiles; the validation after an epoch compiles one more."""
    told, compiling = Told(), Compiling(framework)  # type: ignore[arg-type]
    for epoch in programs:
        with compiling.epoch():
            for new in epoch:
                framework.count += new
                compiling.stepped()
        framework.count += 1
    compiling.tell(SimpleNamespace(run="1", framework=name), "lenet", told)  # type: ignore[arg-type]
    return told


def test_what_is_compiled_after_the_first_step_is_told_apart() -> None:
    told = told_of(Programs(), [[3, 0, 1], [0, 2]], "tensorflow")
    assert told.metric == {"train/compilations": 8, "train/recompilations": 3}
    assert told.records[0].values == {"train.compilations": "8", "train.recompilations": "3"}


def test_a_training_that_left_its_graphs_is_not_called_compiled() -> None:
    framework = Programs({"of before": 2})
    assert "ran_eagerly" not in told_of(framework, [[1, 0]]).records[0].values
    framework.breaks = {"of before": 2}
    compiling = Compiling(framework)  # type: ignore[arg-type]
    framework.breaks = {"of before": 2, "Unsupported:\n  print": 1, "item": 2}
    framework.count += 2
    compiling.stepped()
    told = Told()
    compiling.tell(SimpleNamespace(run="1", framework="pytorch+compile"), "lenet", told)  # type: ignore[arg-type]
    assert told.metric["train/graph_breaks"] == 3
    assert (
        told.records[0].values["ran_eagerly"] == "lenet: 3 graph breaks, first: Unsupported: print"
    )


@pytest.mark.parametrize(
    ("name", "loud"), [("pytorch+compile", True), ("tensorflow", True), ("pytorch", False)]
)
def test_a_variant_that_compiles_and_compiled_nothing_ran_eagerly(name: str, loud: bool) -> None:
    told = told_of(Programs(), [], name)
    assert not any(
        "ran_eagerly" in one.values for one in told.records
    )  # no step was made: nothing is known
    framework = Programs()
    told, compiling = Told(), Compiling(framework)  # type: ignore[arg-type]
    compiling.stepped()
    compiling.tell(SimpleNamespace(run="1", framework=name), "lenet", told)  # type: ignore[arg-type]
    assert (told.records[0].values.get("ran_eagerly") == "lenet: nothing was compiled") == loud

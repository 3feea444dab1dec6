"""Profile of a step with known costs and operators, and compilations of a training."""

import json
from collections.abc import Iterator
from itertools import permutations, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from experiments.cell.loop import Compiling, TrainingLoop
from experiments.cell.profile import GAPS, PARTS, STEPS, parts, profile
from experiments.cell.timing import EVERY_STEP
from models.contract import Profile, Span
from models.frameworks.spans import Event, leaves
from tests.experiments.known_device import RecordedOutput, batches, cell, open_toy, set_costs
from tests.toy_framework import costs

LAYERS = ("operators", "copies", "unrecorded", "framework", "steps")


def test_moment_belongs_to_the_first_part_that_goes_on() -> None:
    """Compare with a count of whole seconds, one by one."""
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
        operators = {"mul": drawn["operators"][:3]}, drawn["operators"][3:]
        seconds = parts(Profile(steps, *operators, *(drawn[name] for name in LAYERS[1:-1])))
        assert seconds == expected
        assert sum(seconds.values()) == 12


def test_leaf_has_no_other_event_inside() -> None:
    """Compare with all pairs; events of a thread lie apart or inside of one another."""
    rng = np.random.default_rng(0)

    def calls(start: float, end: float, depth: int, thread: int) -> Iterator[Event]:
        cuts = [start, *sorted(rng.uniform(start, end, 2 * rng.integers(0, 3))), end]
        for first, last in zip(cuts[1:-1:2], cuts[2:-1:2], strict=True):
            yield Event("op", first, last, thread)
            if depth:
                yield from calls(first, last, depth - 1, thread)

    for _ in range(50):
        events = [event for thread in (0, 1) for event in calls(0.0, 1.0, 3, thread)]
        events = [events[index] for index in rng.permutation(len(events))]
        parents = {
            outer
            for outer, inner in permutations(events, 2)
            if outer.thread == inner.thread
            and outer.start <= inner.start
            and inner.end <= outer.end
        }
        assert {*leaves(events)} == {*events} - parents


COSTS = {
    "launch": 2.0,
    "step": 9.0,
    "update": 1.0,
    "copy": 3.0,
    "synchronise": 0.5,
    "read": 0.25,
    "profiler": 4.9,
}


@pytest.mark.usefixtures("toy_installed")
@pytest.mark.parametrize("pace", ["step", "free"])
def test_parts_are_what_they_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: str
) -> None:
    """In windows the host launches the next step while the device works."""
    set_costs(monkeypatch, COSTS)
    output = RecordedOutput()

    def slow_batches() -> Iterator[Any]:
        for batch in repeat(next(batches(1))):
            costs.time.sleep(0.7)
            yield batch

    profile(cell(tmp_path, timing=pace), *open_toy(), slow_batches, output)  # type: ignore[arg-type]
    # so many times the first launch and the last loss are waited for
    waits = {"step": STEPS, "free": STEPS / 4}[pace] / STEPS
    dispatch = waits * (2.0 + 0.25 + 4.9)
    expected = {"op": 10.0, "copy": 0.0, "unrecorded": 0.0, "dispatch": dispatch, "python": 0.0}
    expected |= {"gap": dispatch, "step": 10 + dispatch, "input": 0.7}
    seconds = {name: output.metric[f"profile/{name}_seconds"] for name in expected}
    assert seconds == pytest.approx(expected, abs=0.01)
    assert seconds["gap"] == sum(seconds[part] for part in GAPS)
    assert output.metric["profile/ops_per_step"] == 2
    assert "profile/launches_per_step" not in output.metric
    saved = json.loads((tmp_path / "profile.json").read_text())
    assert saved["steps"] == STEPS
    kinds = [(kind["kind"], kind["per_step"]) for kind in saved["operators"]]
    assert kinds == [("step", 1), ("update", 1)]
    assert [kind["seconds_per_step"] for kind in saved["operators"]] == pytest.approx(
        [9, 1], abs=0.01
    )


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


def spec_of(framework: str) -> Any:
    return SimpleNamespace(run="1", framework=framework)


def train(
    framework: CompiledFramework, epochs: list[list[int]], name: str, validation: int = 1
) -> RecordedOutput:
    """Train epochs whose steps compile so often, and each validation, too."""
    output = RecordedOutput()
    peaks = SimpleNamespace(end_warmup=lambda: None)
    loop = TrainingLoop(framework, None, None, output, peaks)  # type: ignore[arg-type]
    for epoch in epochs:
        watch = loop.stopwatch(EVERY_STEP, lambda *_: None)
        loop.run(epoch, watch)  # type: ignore[arg-type]
        framework.count += validation
    loop.compiling.record(spec_of(name), "lenet", output)  # type: ignore[arg-type]
    return output


def test_recompilations_are_those_after_the_first_step() -> None:
    output = train(CompiledFramework(), [[3, 0, 1], [0, 2]], "tensorflow")
    assert output.metric == {"train/compilations": 8, "train/recompilations": 3}
    assert output.tags == {"train.compilations": "8", "train.recompilations": "3"}


def test_graph_breaks_in_training_are_recorded_as_eager() -> None:
    framework = CompiledFramework({"earlier": 2})
    assert "ran_eagerly" not in train(framework, [[1, 0]], "pytorch+compile").tags
    compiling, output = Compiling(framework), RecordedOutput()  # type: ignore[arg-type]
    framework.breaks = {"earlier": 2, "Unsupported:\n  print": 1, "item": 2}
    framework.count += 2
    compiling.stepped()
    compiling.record(spec_of("pytorch+compile"), "lenet", output)  # type: ignore[arg-type]
    assert output.metric["train/graph_breaks"] == 3
    assert output.tags["ran_eagerly"] == "lenet: 3 graph breaks, first: Unsupported: print"


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
    tags = train(CompiledFramework(), epochs, name, validation=0).tags
    assert ("ran_eagerly" in tags) == is_eager

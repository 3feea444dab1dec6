"""Cells that take turns: both sides of the token's protocol, against the log of a toy framework."""

import csv
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from experiments.cell import turns
from experiments.cell.turns import LAST
from experiments.run.backends.local import end_together
from tests.conftest import Place
from tests.experiments import small_campaigns
from tests.experiments.known_device import FakeTime
from tracking.records import RunClosed, StoredRun
from tracking.store import Store

TURN_STEPS, TURN_SECONDS = 5, 0.2
STEPS = 30
# Seconds a step and a request. One framework takes half as long again for a step: both do as many
# of them in a turn.
COSTS = {"toy": {"step": 0.02, "apply": 0.02}, "toy+twin": {"step": 0.03, "apply": 0.02}}
TOYS = {
    "frameworks": "toy,toy+twin",
    "data": "synthetic",
    "vocabulary": "60",
    "length": "8",
    "bleu_images": "1",
    "epochs": "1",
    "steps_per_epoch": str(STEPS),
    "inference_requests": "20",
    "pairing": "interleaved",
}


class Token:
    """Stream that returns the token after a second, for these numbers of steps; then it ends."""

    def __init__(self, clock: FakeTime, steps: Sequence[int]) -> None:
        self._clock, self._steps = clock, list(steps)

    def readline(self) -> str:
        self._clock.now += 1.0
        return json.dumps({"steps": self._steps.pop(0)}) + "\n" if self._steps else ""


def test_turn_has_requested_steps_and_minimum_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take steps of 30 ms: seven of them last 0.2 s. Waiting does not count."""
    clock, messages = FakeTime(), list[Any]()
    monkeypatch.setattr(turns, "time", clock)
    token: Any = Token(clock, [5, 20, 5, 5])
    child = turns.Turns(messages.append, token, enabled=True)
    clock.now += 3.0  # the start is a turn as well
    child.begin(1)
    for _ in range(7 + 20 + 3):
        clock.now += 0.03
        child.step()
    child.begin(2)
    reports = [message["turn"] for message in messages]
    assert [(turn["phase"], turn["steps"]) for turn in reports] == [(1, 0), (1, 7), (1, 20), (2, 3)]
    assert [turn["seconds"] for turn in reports] == pytest.approx([3, 0.21, 0.6, 0.09], rel=1e-3)
    assert child.waited_seconds == pytest.approx(4, rel=1e-3)


@pytest.mark.parametrize(
    ("outcomes", "failed", "expected"),
    [
        (["ok", "ok"], None, ["ok", "ok"]),
        (["ok", "failed", "interrupted"], 1, ["failed: b", "failed", "failed: b"]),
        (["ok", "interrupted"], None, ["interrupted"] * 2),
    ],
    ids=["all well", "one was killed", "stopped"],
)
def test_cells_of_a_group_end_together(
    outcomes: list[str], failed: int | None, expected: list[str]
) -> None:
    closed = [RunClosed(str(n), 0, outcome, "") for n, outcome in enumerate(outcomes)]
    ends = end_together(closed, ["a", "b", "c"][: len(outcomes)], failed)
    partners = [re.search(r"took turns with (\w)", end.reason) for end in ends]
    assert expected == [
        f"{end.outcome}: {partner[1]}" if partner else end.outcome
        for end, partner in zip(ends, partners, strict=True)
    ]


# ---- a campaign


@dataclass(frozen=True)
class Cell:
    """Finished cell: its run, its turns, and the framework's log, in `time.perf_counter`."""

    run: StoredRun
    turns: list[dict[str, Any]]
    events: list[dict[str, Any]]
    folder: Path

    def of_phase(self, phase: int) -> list[dict[str, Any]]:
        return [turn for turn in self.turns if turn["phase"] == phase]


@dataclass(frozen=True)
class Campaign:
    cells: dict[tuple[int, str], Cell]
    rows: dict[str, Mapping[str, Any]]

    def block(self, number: int) -> list[Cell]:
        return [self.cells[number, name] for name in COSTS]


@pytest.fixture(scope="module")
def campaign(module_place: Place) -> Campaign:
    """Campaign of two blocks whose frameworks sleep, so that the machine may be busy."""
    place, log = module_place, module_place.folder / "events"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVENHAND_TOY_COSTS", json.dumps(COSTS))
        patch.setenv("EVENHAND_TOY_EVENTS", str(log))
        small_campaigns.measure(place, **TOYS, blocks="2", inference_batch_sizes="1,2")
    processes: dict[int, list[dict[str, Any]]] = {}
    for event in map(json.loads, log.read_text().splitlines()):
        processes.setdefault(event["pid"], []).append(event)
    trained = [
        events
        for events in processes.values()
        if sum(event["event"] == "step" for event in events) == STEPS
    ]
    cells = {}
    for run in Store(place.uri).runs("captioning", "tags.kind = 'cell'"):
        (path,) = place.journal.glob(f"*/cells/{run.tags['cell']}/*/turns.csv")
        block, name = int(run.tags["block"]), run.tags["framework"]
        of_framework = [events for events in trained if events[0]["framework"] == name]
        cells[block, name] = Cell(run, read_turns(path), of_framework[block - 1], path.parent)
    return Campaign(cells, small_campaigns.comparison(place)["rows"])


def read_turns(path: Path) -> list[dict[str, Any]]:
    """Return turns with their begin in seconds of `time.perf_counter`, rounded down to 1 ms."""
    offset, turns = time.time() - time.perf_counter(), []
    for row in csv.DictReader(path.read_text().splitlines()):
        turn: dict[str, Any] = {name: int(row[name]) for name in ("round", "place", "phase")}
        turn["steps"] = int(row["steps"]) if row["steps"] else None
        turn["began"] = int(row["began_ms"]) / 1_000 - offset
        turns.append({**turn, "seconds": float(row["seconds"])})
    return turns


def test_only_one_interleaved_cell_works_at_a_time(campaign: Campaign) -> None:
    """Take what the cells did from the first timed phase of the block to the last."""
    turns = [turn for cell in campaign.block(1) for turn in cell.turns]
    first = min(turn["began"] for turn in turns if turn["phase"] == 1)
    end = min(turn["began"] for turn in turns if turn["phase"] == LAST)
    events = [event for cell in campaign.block(1) for event in cell.events]
    work = sorted(
        (event["began"], event["ended"], event["pid"])
        for event in events
        if first <= event["began"] < end
    )
    assert len({pid for *_, pid in work}) == 2
    changes, until, last = 0, work[0][1], work[0][2]
    for began, end, pid in work:
        changes += pid != last
        assert pid == last or began >= until
        until, last = max(until, end), pid
    assert changes > 8


def test_turns_have_minimum_steps_and_time(campaign: Campaign) -> None:
    for cell in campaign.cells.values():
        phases = [turn["phase"] for turn in cell.turns]
        assert (phases, set(phases)) == (sorted(phases), {0, 1, 2, 3, LAST})
        for phase in (1, 2, 3):  # training, and requests of two sizes
            *whole, _ = cell.of_phase(phase)
            assert min(turn["steps"] for turn in whole) >= TURN_STEPS
            assert min(turn["seconds"] for turn in whole) >= TURN_SECONDS


@pytest.mark.parametrize("block", [1, 2])
def test_cells_work_side_by_side_only_while_nothing_is_timed(
    campaign: Campaign, block: int
) -> None:
    """After every round they are at most a turn apart, although one is slower at a step."""
    for phase in (0, LAST):
        (first,), (second,) = (cell.of_phase(phase) for cell in campaign.block(block))
        assert first["round"] == second["round"]
        assert first["began"] == pytest.approx(second["began"], abs=0.01)
    both = [[turn["steps"] or 0 for turn in cell.of_phase(1)] for cell in campaign.block(block)]
    rounds = min(map(len, both)) - 1
    first, second = (np.cumsum(steps[:rounds]) for steps in both)
    assert rounds >= 2
    assert np.abs(first - second).max() <= max(*both[0], *both[1])


def test_timed_seconds_exclude_waiting(campaign: Campaign) -> None:
    for cell in campaign.cells.values():
        turns = cell.of_phase(1)
        working = sum(turn["seconds"] for turn in turns)
        steps = [event for event in cell.events if event["event"] == "step"]
        in_steps = sum(event["ended"] - event["began"] for event in steps)
        assert in_steps <= cell.run.metrics["train/total_seconds"] <= working
        assert working < turns[-1]["began"] + turns[-1]["seconds"] - turns[0]["began"]
        table = pyarrow.parquet.read_table(cell.folder / "values.parquet").to_pydict()
        assert table["phase"].count("train") == STEPS


def test_interleaved_totals_are_not_comparable(campaign: Campaign) -> None:
    first, second = ({cell.run.tags["turns"] for cell in campaign.block(n)} for n in (1, 2))
    assert len(first) == len(second) == 1
    assert first != second
    assert {cell.run.params["pairing"] for cell in campaign.cells.values()} == {"interleaved"}
    assert campaign.rows["train/step_seconds"]["n_blocks"] == 2
    for metric in ("train/first_step_seconds", "train/total_seconds"):
        assert campaign.rows[metric]["verdict"] == "not comparable"

"""Cells that take turns: the token's protocol on both sides, held against the log of a framework whose costs are known."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet
import pytest

from experiments.cell import turns as childs
from experiments.contract import CellSpec
from experiments.run.backends import local as parents
from experiments.run.cell_process import CellProcess
from experiments.selftest.cells import cell_spec
from models import frameworks
from tests.conftest import PYTHONPATH, Place
from tests.experiments import test_known_costs as known_costs
from tracking.records import RunClosed, StoredRun
from tracking.store import Store

TURN_STEPS, TURN_SECONDS = 5, 0.2
STEPS, REQUESTS = 30, 20
# Seconds a step and a request. One framework takes half as long again for a step: both do as many of them in a turn.
COSTS = {"toy": {"step": 0.02, "apply": 0.02}, "toy+twin": {"step": 0.03, "apply": 0.02}}
TOYS = {
    "frameworks": "toy,toy+twin",
    "data": "synthetic",
    "vocabulary": "60",
    "length": "8",
    "bleu_images": "1",
}
TOYS |= {
    "epochs": "1",
    "steps_per_epoch": str(STEPS),
    "inference_requests": str(REQUESTS),
    "pairing": "interleaved",
}


class Clock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Token:
    """Gives the token back after a second, for as many steps as it has been told to ask for; at last it breaks."""

    def __init__(self, clock: Clock, asked: Sequence[int]) -> None:
        self._clock, self._asked = clock, list(asked)

    def readline(self) -> str:
        self._clock.now += 1.0
        return json.dumps({"steps": self._asked.pop(0)}) + "\n" if self._asked else ""


def test_turn_has_requested_steps_and_minimum_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of 30 ms: seven of them take 0.2 s. Waiting is not counted, and the phase that comes next is told."""
    clock, said = Clock(), list[Any]()
    monkeypatch.setattr(childs, "time", clock)
    turns = childs.Turns(said.append, Token(clock, [5, 20, 5, 5]), enabled=True)  # type: ignore[arg-type]
    clock.now = 3.0  # its start, which is a turn as well
    turns.begin(1)
    for _ in range(7 + 20 + 3):
        clock.now += 0.03
        turns.step()
    turns.begin(2)
    found = [
        (one["turn"]["phase"], one["turn"]["steps"], round(one["turn"]["seconds"], 2))
        for one in said
    ]
    assert found == [(1, 0, 3.0), (1, 7, 0.21), (1, 20, 0.6), (2, 3, 0.09)]
    assert turns.waited_seconds == pytest.approx(4.0)


# ---- how a block ends


OTHERS = "took turns with b, which failed: killed"


def closings(*outcomes: tuple[str, str]) -> list[RunClosed]:
    return [RunClosed(str(at), 0, outcome, reason) for at, (outcome, reason) in enumerate(outcomes)]


@pytest.mark.parametrize(
    ("ended", "failed", "told"),
    [
        ([("ok", ""), ("ok", "")], None, [("ok", ""), ("ok", "")]),
        (
            [("ok", ""), ("failed", "killed"), ("interrupted", "stopped while it ran")],
            1,
            [("failed", OTHERS), ("failed", "killed"), ("failed", OTHERS)],
        ),
        (
            [("ok", ""), ("interrupted", "the campaign got SIGINT")],
            None,
            [("interrupted", "the campaign got SIGINT")] * 2,
        ),
    ],
    ids=["well", "one was killed", "stopped"],
)
def test_cells_of_a_group_end_together(
    ended: list[tuple[str, str]], failed: int | None, told: list[tuple[str, str]]
) -> None:
    found = parents.end_together(closings(*ended), ["a", "b", "c"][: len(ended)], failed)
    assert [(one.outcome, one.reason) for one in found] == told


# ---- a campaign


@dataclass(frozen=True)
class Cell:
    """A finished cell: its run, its turns, and what the framework wrote down, in seconds of `time.perf_counter`."""

    run: StoredRun
    turns: list[dict[str, Any]]
    events: list[dict[str, Any]]
    folder: Path


@dataclass(frozen=True)
class Campaign:
    cells: dict[tuple[int, str], Cell]
    rows: dict[str, Mapping[str, Any]]

    def block(self, number: int) -> list[Cell]:
        return [self.cells[number, name] for name in COSTS]


@pytest.fixture(scope="module")
def campaign(
    tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, empty_store: Path
) -> Campaign:
    """Two blocks; frameworks that sleep, so that the machine may be busy."""
    folder = tmp_path_factory.mktemp("turns")
    (folder / "mlflow.db").write_bytes(empty_store.read_bytes())
    place, log = Place(folder, shared_cache, f"sqlite:///{folder}/mlflow.db"), folder / "events"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVENHAND_TOY_COSTS", json.dumps(COSTS))
        patch.setenv("EVENHAND_TOY_EVENTS", str(log))
        done = place.run(**TOYS, blocks="2", inference_batch_sizes="1,2")
    assert done.returncode == 3, done.stdout + done.stderr  # two blocks are no verdict
    journal = next(place.journal.iterdir())
    events = [json.loads(line) for line in log.read_text().splitlines()]
    runs = [run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "cell"]
    cells = {}
    for run in runs:
        block, name = int(run.tags["block"]), run.tags["framework"]
        path = next((journal / "cells" / run.tags["cell"]).glob("*/turns.csv"))
        cells[block, name] = Cell(run, _turns(path.read_text()), [], path.parent)
    cells = {key: replace(one, events=_of(one, events)) for key, one in cells.items()}
    rows = json.loads((journal / "report" / "comparison.json").read_text())["rows"]
    return Campaign(cells, {row["metric"]: row for row in rows})


def _turns(text: str) -> list[dict[str, Any]]:
    """With when they began and ended in seconds of `time.perf_counter`, the former rounded down to milliseconds."""
    of_wall = time.time() - time.perf_counter()
    found = []
    for row in csv.DictReader(io.StringIO(text)):
        began, steps = int(row["began_ms"]) / 1_000 - of_wall, row["steps"]
        numbers = {name: int(row[name]) for name in ("round", "place", "phase")}
        found.append(
            {
                **numbers,
                "steps": int(steps) if steps else None,
                "began": began,
                "seconds": float(row["seconds"]),
            }
        )
    return found


def _of(cell: Cell, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the cell's process did: the only one of its framework that began with its first turn."""
    began, ended = cell.turns[0]["began"], cell.turns[-1]["began"] + cell.turns[-1]["seconds"]
    firsts: dict[int, float] = {}
    for one in events:
        if one["framework"] == cell.run.tags["framework"]:
            firsts.setdefault(one["pid"], one["began"])
    (pid,) = (pid for pid, first in firsts.items() if began < first < ended)
    return [dict(one) for one in events if one["pid"] == pid]


def test_only_one_interleaved_cell_works_at_a_time(campaign: Campaign) -> None:
    """By the framework's own log: what one process does has ended when another does something. From start to end."""
    done = sorted(
        (one["began"], one["ended"], one["pid"])
        for cell in campaign.block(1)
        for one in cell.events
    )
    assert len({pid for *_, pid in done}) == 2
    changes, until, last = 0, done[0][1], done[0][2]
    for began, ended, pid in done:
        changes += pid != last
        assert pid == last or began >= until
        until, last = max(until, ended), pid
    assert changes > 8


def test_turns_have_minimum_steps_and_time(campaign: Campaign) -> None:
    for cell in campaign.cells.values():
        assert {one["phase"] for one in cell.turns} == {
            0,
            1,
            2,
            3,
        }  # the start, training, requests of two sizes
        for phase in (1, 2, 3):
            inside = [one for one in cell.turns if one["phase"] == phase]
            assert len(inside) >= 2
            for one in inside[:-1]:
                assert one["steps"] >= TURN_STEPS
                assert one["seconds"] >= TURN_SECONDS
        assert [one["phase"] for one in cell.turns] == sorted(one["phase"] for one in cell.turns)


def test_interleaved_cells_stay_within_one_turn(campaign: Campaign) -> None:
    """After every round they are at most a turn apart, although one of them takes half as long again for a step."""
    for block in (1, 2):
        one, other = (
            [turn["steps"] or 0 for turn in cell.turns if turn["phase"] == 1]
            for cell in campaign.block(block)
        )
        apart = np.abs(
            np.cumsum(one[:-1][: len(other) - 1]) - np.cumsum(other[:-1][: len(one) - 1])
        )
        assert len(apart) >= 2
        assert apart.max() <= max(*one, *other)


def test_timed_seconds_exclude_waiting(campaign: Campaign) -> None:
    """What was timed fits into the cell's own turns, between which the other one worked, and into its log."""
    for cell in campaign.cells.values():
        own = sum(one["seconds"] for one in cell.turns if one["phase"] == 1)
        made = [one["ended"] - one["began"] for one in cell.events if one["event"] == "step"]
        assert sum(made) <= cell.run.metrics["train/total_seconds"] <= own
        first, last = (
            next(one for one in turns if one["phase"] == 1)
            for turns in (cell.turns, cell.turns[::-1])
        )
        assert own < last["began"] + last["seconds"] - first["began"]
        table = pyarrow.parquet.read_table(cell.folder / "values.parquet").to_pydict()
        assert sum(phase == "train" for phase in table["phase"]) == STEPS


def test_interleaved_totals_are_not_comparable(
    campaign: Campaign,
) -> None:
    turns = {block: {cell.run.tags["turns"] for cell in campaign.block(block)} for block in (1, 2)}
    assert all(len(names) == 1 for names in turns.values())
    assert turns[1] != turns[2]
    assert {cell.run.params["pairing"] for cell in campaign.cells.values()} == {"interleaved"}
    assert campaign.rows["train/step_seconds"]["n_blocks"] == 2
    for metric in ("train/first_step_seconds", "train/total_seconds"):
        assert campaign.rows[metric]["verdict"] == "not comparable"
        assert campaign.rows[metric]["reason"].startswith("cells took turns (pairing=interleaved)")


# ---- every workload


WORKLOADS = (
    "captioning",
    "classification",
    "grid",
    "training_speed",
    "overhead",
    "classification, both",
)


def pairs(folder: Path) -> dict[str, list[CellSpec]]:
    """Two cells that take turns, of every workload; of `overhead`, the plain loop and this harness."""
    both = {}
    for name in WORKLOADS:
        workload, _, kind = name.partition(", ")
        if workload != "overhead":
            both[name] = [known_costs.spec_of(folder, workload, kind or "step")] * 2
    point = {"models": ("lenet",), "batch_sizes": (4,), "seconds": 0.4, "timing": "step"}
    plain = cell_spec(folder, "overhead", "toy", "cpu", 0, {"threads": 1, **point})
    both["overhead"] = [plain, replace(plain, stage="measure")]
    return {
        name: [
            replace(
                one,
                run=f"{name} {at}",
                in_turns=True,
                journal=str(folder / f"{name}-{at}"),
                checkpoint=str(folder / f"{name}-{at}" / "none"),
            )
            for at, one in enumerate(several)
        ]
        for name, several in both.items()
    }


class Played(NamedTuple):
    """The cells of a block, their turns, and when each process was about to start."""

    cells: list[CellProcess]
    turns: parents.Turns
    started_ms: list[float]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Played]:
    """All workloads side by side, since the cells sleep; of each, one works at a time."""
    folder = tmp_path_factory.mktemp("workloads")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        patch.setenv("EVENHAND_TOY_COSTS", json.dumps({"toy": known_costs.COSTS}))
        for entry in PYTHONPATH.split(os.pathsep):
            patch.syspath_prepend(entry)
        frameworks._variants.cache_clear()
        with ThreadPoolExecutor(len(WORKLOADS)) as pool:
            found = dict(
                zip(WORKLOADS, pool.map(_played, map(pairs(folder).get, WORKLOADS)), strict=True)
            )
    frameworks._variants.cache_clear()
    return found


def _played(specs: list[CellSpec]) -> Played:
    started_ms = list[float]()

    def start(cell: CellProcess) -> None:
        time.sleep(0.01)
        started_ms.append(1_000 * time.time())
        cell.start()

    cells = [CellProcess(spec, lambda _: None) for spec in specs]
    turns = parents.Turns(cells, np.random.default_rng(0), 2, lambda: "")
    with ExitStack() as alive:
        for cell in cells:
            alive.enter_context(cell)
        turns.play(start)
    return Played(cells, turns, started_ms)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_takes_turns(played: Mapping[str, Played], name: str) -> None:
    cells, turns, started_ms = played[name]
    assert turns.failed is None, turns.failed.closed
    assert [cell.closed and cell.closed.outcome for cell in cells] == ["ok", "ok"]
    phases = {"training_speed": {0, 1}, "grid": {0, 1, 2}, "overhead": {0, 1, 2}}.get(
        name, {0, 1, 2, 3}
    )
    for taken, start_ms in zip(turns.taken, started_ms, strict=True):
        assert taken[0].began_ms <= start_ms - 9, "the first turn begins before its process does"
        assert {one.phase for one in taken} == (
            phases if "classification" not in name else {0, 1, 2}
        )
        for phase in phases - {0}:
            inside = [one for one in taken if one.phase == phase]
            assert all(
                one.steps >= 2 and one.seconds >= TURN_SECONDS
                for one in inside[:-1]
                if one.steps is not None
            )
        assert sum(one.phase == 1 for one in taken) >= 2
    assert sum(taken[-1].steps is None for taken in turns.taken) == 2

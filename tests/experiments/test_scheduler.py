"""Which cells run, in which order and how often: by results that are noted, without a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from experiments.config.settings import CampaignSettings
from experiments.contract import Treatment
from experiments.run.plan import Plan
from experiments.run.scheduler import CellResult, Schedule
from tracking.records import RunOutcome

OK, BUSY = CellResult(RunOutcome.OK), CellResult(RunOutcome.OK, disturbed="others used 30 %")
TOO_LARGE = CellResult(RunOutcome.OUT_OF_MEMORY, phase="train")


def schedule_of(
    *treatments: Treatment, along: str = "", refused: Mapping[str, str] | None = None, **given: str
) -> Schedule:
    """Return that of two blocks."""
    plan = Plan("t", "framework", treatments[0].name, treatments, along=along)
    return Schedule(
        plan,
        replace(CampaignSettings(), **{"pairing": "sequential", **given}, blocks=2),
        refused or {},
    )


def played(schedule: Schedule, results: Mapping[str, CellResult], block: int = 0) -> list[str]:
    """Return the treatments of each step of a block, and why it was skipped or runs once more."""
    steps = []
    for step in schedule.steps(schedule.blocks[block]):
        names = ", ".join(treatment.name for _, treatment in step.cells)
        steps.append(
            names
            + (f": {step.skip.outcome}" if step.skip else "")
            + (" again" if step.repeats else "")
        )
        for cell, treatment in step.cells:
            if not step.skip:
                result = results.get(treatment.name, OK)
                schedule.note(cell, treatment, replace(result, repeat=bool(step.repeats)))
    return steps


A, B, C = (Treatment(name, name) for name in "abc")


def test_disturbed_cell_repeats_at_end_of_block() -> None:
    schedule = schedule_of(A, B)
    order = [cell.treatment for cell in schedule.blocks[0]]
    assert played(schedule, {"a": BUSY, "b": BUSY}) == [
        *order,
        *(f"{name} again" for name in order),
    ]
    assert played(schedule_of(A, B), {"b": BUSY})[2:] == ["b again"]


def test_recall_skips_finished_and_repeats_disturbed_cells() -> None:
    schedule = schedule_of(A, B)
    first, second = schedule.blocks[0]
    schedule.recall({first.key: OK, second.key: BUSY})
    assert schedule.missing() == 2, "of the second block"
    assert not schedule.is_done([first, second])
    assert played(schedule, {}) == [f"{second.treatment} again"]
    schedule.recall({first.key: OK, second.key: replace(BUSY, repeat=True)})
    assert schedule.is_done([first, second])
    assert played(schedule, {}) == []


@pytest.mark.parametrize(
    "outcome", [RunOutcome.FAILED, RunOutcome.INTERRUPTED, RunOutcome.OUT_OF_MEMORY]
)
def test_unsuccessful_cells_run_again(outcome: RunOutcome) -> None:
    schedule = schedule_of(A, B)
    schedule.recall({schedule.blocks[0][0].key: CellResult(outcome)})
    assert len(played(schedule, {})) == 2


def sized(size: int) -> Treatment:
    return Treatment(
        f"a {size}", "a", settings={"batch_size": size, "phases": ("inference", "train")}
    )


def test_larger_cells_are_skipped_but_fitting_phases_run() -> None:
    schedule = schedule_of(sized(8), sized(16), along="batch_size")
    results = {"a 8": TOO_LARGE, "a 16": TOO_LARGE}
    assert sorted(played(schedule, results) + played(schedule, results, block=1)) == sorted(
        [
            *["a 8", "a 8 · inference alone", "a 8: out_of_memory", "a 8 · inference alone"],
            *(["a 16: out_of_memory"] if schedule.blocks[0][0].treatment == "a 8" else ["a 16"]),
            *["a 16: out_of_memory", "a 16 · inference alone", "a 16 · inference alone"],
        ]
    )


def test_unequal_treatment_is_skipped() -> None:
    schedule = schedule_of(A, B, refused={"b": "weights differ"})
    assert sorted(played(schedule, {})) == ["a", "b: not_equal"]
    assert schedule.counts(RunOutcome.NOT_EQUAL)


def test_interleaved_group_runs_as_a_whole() -> None:
    schedule = schedule_of(A, B, C, pairing="interleaved", refused={"c": "weights differ"})
    both = ", ".join(cell.treatment for cell in schedule.blocks[0] if cell.treatment != "c")
    assert played(schedule, {"b": BUSY}) == ["c: not_equal", both, f"{both} again"]
    cells = {cell.treatment: cell for cell in schedule.blocks[0]}
    schedule.recall({cells["a"].key: OK, cells["c"].key: CellResult(RunOutcome.NOT_EQUAL)})
    assert played(schedule, {}) == ["c: not_equal", both]

"""Schedule: which cells run, in which order and how often."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from experiments.config.settings import CampaignSettings
from experiments.contract import Treatment
from experiments.run.plan import Plan
from experiments.run.scheduler import CellResult, Schedule, Skip
from experiments.run.sensing import unusual_loads
from tracking.records import LOADS, OTHERS_CPU, OTHERS_GPU, RunOutcome

OK, BUSY = CellResult(RunOutcome.OK), CellResult(RunOutcome.OK, disturbed="others used 30 %")
TOO_LARGE = CellResult(RunOutcome.OUT_OF_MEMORY, phase="train")
A, B, C = (Treatment(name, name) for name in "abc")


def make_schedule(
    *treatments: Treatment, along: str = "", missing: tuple[str, ...] = (), pairing: str = ""
) -> Schedule:
    """Return a schedule of two blocks."""
    plan = Plan("t", "framework", treatments[0].name, treatments, along=along)
    settings = replace(CampaignSettings(), pairing=pairing or "sequential", blocks=2)
    return Schedule(
        plan, settings, dict.fromkeys(missing, Skip(RunOutcome.NOT_AVAILABLE, "too few cores"))
    )


def play(schedule: Schedule, results: Mapping[str, CellResult], block: int = 0) -> list[str]:
    """Return the treatments of each step of a block, why it is skipped, and if it is repeated."""
    steps = []
    for step in schedule.steps(schedule.blocks[block]):
        names = ", ".join(treatment.name for _, treatment in step.cells)
        skip = f": {step.skip.outcome}" if step.skip else ""
        steps.append(f"{names}{skip}{' again' if step.repeats else ''}")
        for cell, treatment in step.cells if not step.skip else ():
            result = results.get(treatment.name, OK)
            schedule.note(cell, treatment, replace(result, repeat=bool(step.repeats)))
    return steps


def test_disturbed_cell_repeats_at_end_of_block() -> None:
    schedule = make_schedule(A, B)
    order = [cell.treatment for cell in schedule.blocks[0]]
    again = [f"{name} again" for name in order]
    assert play(schedule, {"a": BUSY, "b": BUSY}) == [*order, *again]
    assert play(make_schedule(A, B), {"b": BUSY})[2:] == ["b again"]


def test_recall_skips_finished_and_repeats_disturbed_cells() -> None:
    schedule = make_schedule(A, B)
    first, second = schedule.blocks[0]
    schedule.recall({first.key: OK, second.key: BUSY})
    assert schedule.missing() == 2, "of the second block"
    assert not schedule.is_done([first, second])
    assert play(schedule, {}) == [f"{second.treatment} again"]
    schedule.recall({first.key: OK, second.key: replace(BUSY, repeat=True)})
    assert schedule.is_done([first, second])
    assert play(schedule, {}) == []


def test_usual_load_is_the_median_of_three_cells_or_more() -> None:
    schedule = make_schedule(A, B)
    cells = [cell for block in schedule.blocks for cell in block]
    usual = []
    for cell, percent in zip(cells, (30.0, 2.0, 31.0, 90.0), strict=True):
        result = replace(OK, metrics={OTHERS_CPU: percent, "train/step_seconds": 1.0})
        schedule.note(cell, schedule.treatments[cell.treatment], result)
        usual.append(schedule.usual_loads())
    assert usual == [{}, {}, {OTHERS_CPU: 30.0}, {OTHERS_CPU: 30.5}]
    failed = CellResult(RunOutcome.FAILED, metrics={OTHERS_CPU: 0.0})
    schedule.note(replace(cells[0], block=9), A, failed)
    assert schedule.usual_loads() == usual[-1]
    resumed = make_schedule(A, B)
    resumed.recall({cell.key: replace(OK, metrics={OTHERS_GPU: 60.0}) for cell in cells[:3]})
    assert resumed.usual_loads() == {OTHERS_GPU: 60.0}


@pytest.mark.parametrize(
    ("loads", "usual", "unusual"),
    [
        ({OTHERS_CPU: 90.0}, {}, []),  # nothing is known yet
        ({OTHERS_CPU: 90.0}, {OTHERS_CPU: 88.0}, []),  # a steady load
        ({OTHERS_CPU: 38.0}, {OTHERS_CPU: 28.0}, []),  # the limit itself
        ({OTHERS_CPU: 38.1}, {OTHERS_CPU: 28.0}, [OTHERS_CPU]),
        ({OTHERS_CPU: 2.0}, {OTHERS_CPU: 28.0}, []),
        ({OTHERS_GPU: 80.0}, dict.fromkeys(LOADS, 0.0), [OTHERS_GPU]),
        ({}, dict.fromkeys(LOADS, 0.0), []),  # not counted
    ],
)
def test_unusual_load_is_above_that_of_other_cells(
    loads: Mapping[str, float], usual: Mapping[str, float], unusual: list[str]
) -> None:
    assert unusual_loads(loads, usual, 10.0) == unusual


@pytest.mark.parametrize(
    "outcome", [RunOutcome.FAILED, RunOutcome.INTERRUPTED, RunOutcome.OUT_OF_MEMORY]
)
def test_unsuccessful_cells_run_again(outcome: RunOutcome) -> None:
    schedule = make_schedule(A, B)
    schedule.recall({schedule.blocks[0][0].key: CellResult(outcome)})
    assert len(play(schedule, {})) == 2


def test_larger_cells_are_skipped_but_fitting_phases_run() -> None:
    phases = {"phases": ("inference", "train")}
    sizes = [
        Treatment(f"a {size}", "a", settings={"batch_size": size, **phases}) for size in (8, 16)
    ]
    schedule = make_schedule(*sizes, along="batch_size")
    results = {"a 8": TOO_LARGE, "a 16": TOO_LARGE}
    is_small_first = schedule.blocks[0][0].treatment == "a 8"
    first_large = "a 16: out_of_memory" if is_small_first else "a 16"
    separate = ["a 8 · inference alone", "a 16 · inference alone"] * 2
    whole = ["a 8", "a 8: out_of_memory", first_large, "a 16: out_of_memory"]
    steps = [step for block in (0, 1) for step in play(schedule, results, block)]
    assert sorted(steps) == sorted([*whole, *separate])


def test_interleaved_group_runs_as_a_whole_without_what_is_not_available() -> None:
    schedule = make_schedule(A, B, C, pairing="interleaved", missing=("c",))
    both = ", ".join(cell.treatment for cell in schedule.blocks[0] if cell.treatment != "c")
    assert play(schedule, {"b": BUSY}) == ["c: not_available", both, f"{both} again"]
    assert schedule.counts(RunOutcome.NOT_AVAILABLE)
    cells = {cell.treatment: cell for cell in schedule.blocks[0]}
    schedule.recall({cells["a"].key: OK, cells["c"].key: CellResult(RunOutcome.NOT_AVAILABLE)})
    assert play(schedule, {}) == ["c: not_available", both]

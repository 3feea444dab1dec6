"""A job's part of a campaign that was begun before: on the same machine it goes on, on another its blocks begin anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.planning.design import Cell
from experiments.run.cell_run import checkpoint_of
from experiments.run.scheduler import CellResult
from tracking import journal, provenance
from tracking.journal import Journal
from tracking.records import RunClosed, RunOpened, RunOutcome

pytest.importorskip("submitit", reason="extra slurm")
from experiments.run import journal_runs
from experiments.run.backends.slurm import MAX_FRUITLESS, SlurmTask

CELLS = [Cell(treatment, block, 0) for block in (1, 2) for treatment in ("a", "b")]


def a_task(folder: Path, **more: Any) -> SlurmTask:
    """Two blocks of two cells, each with a checkpoint; what the blocks are of does not matter here."""
    for cell in CELLS:
        checkpoint_of(folder, cell.key).mkdir(parents=True)
    Journal(folder / "own").close()
    nothing: Any = None
    return SlurmTask(folder, folder / "own", nothing, (tuple(CELLS[:2]), tuple(CELLS[2:])), **more)


def write(work: SlurmTask, cell: Cell, machine: str, outcome: RunOutcome | None) -> None:
    records = Journal(work.journal_folder)
    tags = {"cell": cell.key, "block": str(cell.block), "machine": machine}
    records.append(RunOpened(cell.key, 1, "none", cell.key, tags))
    if outcome:
        records.append(RunClosed(cell.key, 2, outcome))
    records.close()


def kept(folder: Path) -> list[str]:
    return [cell.key for cell in CELLS if checkpoint_of(folder, cell.key).exists()]


def test_task_keeps_results_and_checkpoints_of_same_machine(tmp_path: Path) -> None:
    here = provenance.fingerprint()
    work = a_task(tmp_path, results={CELLS[0].key: CellResult(RunOutcome.OK, machine=here)})
    write(work, CELLS[2], here, RunOutcome.OK)
    write(work, CELLS[3], here, None)
    assert set(work._results(CELLS)) == {CELLS[0].key, CELLS[2].key}
    assert kept(tmp_path) == [cell.key for cell in CELLS]


@pytest.mark.parametrize("outcome", [RunOutcome.OK, None], ids=["ended there", "begun there"])
def test_task_restarts_blocks_of_another_machine(
    tmp_path: Path, outcome: RunOutcome | None
) -> None:
    work = a_task(
        tmp_path,
        results={CELLS[0].key: CellResult(RunOutcome.OK, machine=provenance.fingerprint())},
    )
    write(work, CELLS[2], "elsewhere", outcome)
    assert set(work._results(CELLS)) == {CELLS[0].key}
    assert kept(tmp_path) == [cell.key for cell in CELLS[:2]]


def test_task_restarts_blocks_of_earlier_launch_elsewhere(tmp_path: Path) -> None:
    work = a_task(tmp_path, results={CELLS[0].key: CellResult(RunOutcome.OK, machine="elsewhere")})
    assert work._results(CELLS) == {}
    assert kept(tmp_path) == [cell.key for cell in CELLS[2:]]


def test_task_is_requeued_while_it_makes_progress(tmp_path: Path) -> None:
    work = a_task(tmp_path)
    for life in range(1, MAX_FRUITLESS + 1):
        work._progress_before = work._progress()
        again = work.checkpoint()
        if life < MAX_FRUITLESS:
            work = again.function
            assert work.fruitless == life
    assert again is None
    write(work, CELLS[0], provenance.fingerprint(), RunOutcome.OK)  # a cell has ended meanwhile
    assert work.checkpoint().function.fruitless == 0


def test_open_cell_is_closed_with_reason(tmp_path: Path) -> None:
    work = a_task(tmp_path)
    write(work, CELLS[0], "elsewhere", None)
    records = Journal(work.journal_folder)
    journal_runs.close_open_runs(records, "its node failed")
    journal_runs.close_open_runs(records, "again")
    records.close()
    closed = [one for one in journal.read_all(work.journal_folder) if isinstance(one, RunClosed)]
    assert [(one.run, one.outcome, one.reason) for one in closed] == [
        (CELLS[0].key, "interrupted", "its node failed")
    ]

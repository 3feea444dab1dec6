"""Task of a restarted Slurm job: blocks that another machine started begin anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.planning.design import Cell
from experiments.run import journal_runs
from experiments.run.cell_run import checkpoint_of
from experiments.run.scheduler import CellResult
from tracking import journal, provenance
from tracking.journal import Journal
from tracking.records import RunClosed, RunOpened, RunOutcome

pytest.importorskip("submitit", reason="extra slurm")
from experiments.run.backends.slurm import REQUEUED, SlurmTask

CELLS = [Cell(treatment, block, 0) for block in (1, 2) for treatment in ("a", "b")]


def make_task(folder: Path, machine: str) -> SlurmTask:
    """Return a task of two blocks of two cells with checkpoints; the first cell ran before."""
    for cell in CELLS:
        checkpoint_of(folder, cell.key).mkdir(parents=True)
    Journal(folder / "job").close()
    results = {CELLS[0].key: CellResult(RunOutcome.OK, machine=machine)}
    prepared: Any = None
    blocks = (tuple(CELLS[:2]), tuple(CELLS[2:]))
    return SlurmTask(folder, folder / "job", prepared, blocks, results=results)


def write_run(task: SlurmTask, cell: Cell, machine: str, outcome: RunOutcome | None) -> None:
    records = Journal(task.journal_folder)
    tags = {"cell": cell.key, "block": str(cell.block), "machine": machine}
    records.append(RunOpened(cell.key, 1, "none", cell.key, tags))
    if outcome:
        records.append(RunClosed(cell.key, 2, outcome))
    records.close()


HERE = provenance.fingerprint()


@pytest.mark.parametrize(
    ("first", "runs", "results", "checkpoints"),
    [
        (HERE, [(2, HERE, RunOutcome.OK), (3, HERE, None)], [0, 2], [0, 1, 2, 3]),
        (HERE, [(2, "elsewhere", RunOutcome.OK)], [0], [0, 1]),
        (HERE, [(2, "elsewhere", None)], [0], [0, 1]),
        ("elsewhere", [], [], [2, 3]),
    ],
    ids=["same machine", "ended elsewhere", "begun elsewhere", "earlier launch elsewhere"],
)
def test_task_restarts_blocks_of_another_machine(
    tmp_path: Path,
    first: str,
    runs: list[tuple[int, str, RunOutcome | None]],
    results: list[int],
    checkpoints: list[int],
) -> None:
    task = make_task(tmp_path, first)
    for index, machine, outcome in runs:
        write_run(task, CELLS[index], machine, outcome)
    assert set(task._results()) == {CELLS[index].key for index in results}
    saved = [cell for cell in CELLS if checkpoint_of(tmp_path, cell.key).exists()]
    assert saved == [CELLS[index] for index in checkpoints]


def test_open_cell_is_closed_once_with_reason(tmp_path: Path) -> None:
    task = make_task(tmp_path, HERE)
    write_run(task, CELLS[0], "elsewhere", None)
    records = Journal(task.journal_folder)
    for reason in (REQUEUED, "again"):
        journal_runs.close_open_runs(records, reason)
    records.close()
    ends = [end for end in journal.read_all(task.journal_folder) if isinstance(end, RunClosed)]
    assert [(end.run, end.outcome, end.reason) for end in ends] == [
        (CELLS[0].key, "interrupted", REQUEUED)
    ]

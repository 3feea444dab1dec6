"""Cells one by one, in blocks, on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence

from experiments.config import devices
from experiments.contract import Job
from experiments.planning.design import Cell
from experiments.run import cell_run
from experiments.run.backends import BlockResult
from experiments.run.campaign import Campaign
from experiments.run.cell_run import CellTask
from experiments.run.scheduler import CellResult, Step


class Sequential:
    """One block after the other, and in it one cell after the other."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign, self._recorder, self._prepared = (
            campaign,
            campaign.recorder,
            campaign.prepared,
        )

    def extract(self, jobs: Sequence[Job]) -> list[bool]:
        """See `Backend`."""
        return [cell_run.extract(self._recorder, self._prepared, job) for job in jobs]

    def blocks(self, blocks: Sequence[Sequence[Cell]]) -> Generator[BlockResult]:
        """See `Backend`."""
        schedule = self._campaign.schedule
        for block in blocks:
            ran_now = not schedule.is_done(block)
            results = [self._run(step) for step in schedule.steps(block)]
            yield BlockResult(block[0].block, ran_now, all(results))

    def _run(self, step: Step) -> bool:
        """Run a step, unless its result is known. Return whether it ended well."""
        tasks = [
            self._campaign.task(cell, treatment, step.repeats) for cell, treatment in step.cells
        ]
        if step.unplanned:
            self._recorder.display.expect_more(len(tasks), step.unplanned)
        if step.skip:
            cell_run.leave_out(self._recorder, self._prepared, tasks[0], step.skip)
            return True
        own = [task.treatment.merged(self._prepared.settings) for task in tasks]
        cooled = self._recorder.cool_down(tasks[0].name, max(map(devices.cool_down_seconds, own)))
        tasks = [dataclasses.replace(task, tags={**task.tags, **cooled}) for task in tasks]
        results = self._measure(tasks, step.cells[0][0])
        pairs = zip(step.cells, results, strict=True)
        endings = [self._campaign.schedule.note(*cell, result) for cell, result in pairs]
        return all(endings)

    def _measure(self, tasks: Sequence[CellTask], first: Cell) -> list[CellResult]:
        """Measure the cells of a step, of which this is the first."""
        del first
        return [cell_run.measure(self._recorder, self._prepared, task) for task in tasks]

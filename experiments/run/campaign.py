"""Campaign in one launch: its preparation, the records of its run, and its schedule."""

from __future__ import annotations

from pathlib import Path

from experiments.config import devices
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.contract import Treatment
from experiments.planning.design import Cell
from experiments.run import journal_runs
from experiments.run.cell_run import CellTask
from experiments.run.prepared import PreparedCampaign
from experiments.run.recorder import Recorder
from experiments.run.scheduler import CellResult, Schedule, Skip
from tracking.journal import Journal
from tracking.records import RunKind, RunOutcome


class Campaign:
    """Campaign, built by `pipeline.open_new` or `pipeline.reopen`, and by each job of a cluster.

    Args:
        part_of: See `Recorder`.

    Attributes:
        looks: The blocks after which it was judged.
        results: Results of cells of earlier launches, by key.
    """

    def __init__(
        self,
        prepared: PreparedCampaign,
        records: Journal,
        display: Display,
        part_of: Path | None = None,
    ):
        self.prepared = prepared
        merged = [treatment.merged(prepared.settings) for treatment in prepared.plan.treatments]
        used = [devices.resolve(settings.device, settings) for settings in merged]
        self.devices = tuple(dict.fromkeys(used))
        self.recorder = Recorder(records, display, self.devices[0], part_of)
        self.recorder.warnings = list(prepared.data.warnings)
        skips = {
            name: Skip(RunOutcome.NOT_AVAILABLE, reason)
            for name, reason in prepared.data.not_available.items()
        }
        self.schedule = Schedule(prepared.plan, prepared.settings, skips)
        self.looks: tuple[int, ...] = ()
        self.results: dict[str, CellResult] = {}

    @property
    def settings(self) -> CampaignSettings:
        return self.prepared.settings

    def load_previous_results(self) -> None:
        folder = self.recorder.folder
        self.looks = journal_runs.looks(folder, self.recorder.run)
        self.results = journal_runs.cell_results(folder)
        self.schedule.recall(self.results)

    def note_look(self, block: int) -> None:
        """Record a look at the runs up to this block, before its result is computed."""
        if block not in self.looks:
            self.looks = tuple(sorted({*self.looks, block}))
            self.recorder.tag(looks=",".join(map(str, self.looks)))

    def task(self, cell: Cell, treatment: Treatment, repeats: CellResult | None = None) -> CellTask:
        """Return the task that runs a cell.

        Args:
            cell: The cell.
            treatment: Of the cell.
            repeats: The result because of which it runs once more.
        """
        tags = {
            "kind": RunKind.CELL,
            "framework": treatment.framework,
            "treatment": treatment.name,
            "block": str(cell.block),
            "order_in_block": str(cell.order_in_block),
            **self.recorder.machine.tags,
            "cell": cell.key,
        }
        if treatment.control:
            tags["control"] = treatment.control
        if self.looks:
            tags["looks"] = ",".join(map(str, self.looks))
        if repeats:
            tags |= {"repeats": repeats.disturbed, "repeats.cause": repeats.cause}
        inputs = self.prepared.data_for(treatment).inputs
        name = f"{treatment.name} · block {cell.block}{' · repeated' if repeats else ''}"
        loads = self.schedule.usual_loads()
        return CellTask(treatment, cell.key, name, tags, inputs, cell.block, usual_loads=loads)

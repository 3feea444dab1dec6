"""One launch of a campaign: what was prepared, the records of its run, and the schedule of its cells."""

from __future__ import annotations

from pathlib import Path

from experiments.config import devices
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.contract import Treatment
from experiments.planning.design import Cell
from experiments.run import journal_runs
from experiments.run.cell_run import CellTask
from experiments.run.preparation import PreparedCampaign
from experiments.run.recorder import Recorder
from experiments.run.scheduler import CellResult, Schedule
from tracking.journal import Journal
from tracking.records import RunKind


class Campaign:
    """Built by `pipeline.start` or `pipeline.resume`, and for its part by a job of a cluster.

    part_of: see `Recorder`. looks: the blocks after which it was judged. results: of cells of earlier
    launches, by key.
    """

    def __init__(
        self,
        prepared: PreparedCampaign,
        records: Journal,
        display: Display,
        part_of: Path | None = None,
    ):
        self.prepared = prepared
        treatments = prepared.plan.treatments
        own = [treatment.merged(prepared.settings) for treatment in treatments]
        self.devices = tuple(
            dict.fromkeys(devices.resolve(settings.device, settings) for settings in own)
        )
        self.recorder = Recorder(records, display, self.devices[0], part_of)
        self.recorder.warnings = list(prepared.data.warnings)
        self.schedule = Schedule(prepared.plan, prepared.settings, prepared.data.refused)
        self.looks: tuple[int, ...] = ()
        self.results: dict[str, CellResult] = {}

    @property
    def settings(self) -> CampaignSettings:
        return self.prepared.settings

    def recall(self) -> None:
        """Take in what the journal has of this and of earlier launches."""
        folder = self.recorder.folder
        self.looks = journal_runs.looks(folder, self.recorder.run)
        self.results = journal_runs.cell_results(folder)
        self.schedule.recall(self.results)

    def note_look(self, block: int) -> None:
        """Record that the runs up to this block have been judged, before anything is known of it."""
        if block not in self.looks:
            self.looks = tuple(sorted({*self.looks, block}))
            self.recorder.tag(looks=journal_runs.as_text(self.looks))

    def task(self, cell: Cell, treatment: Treatment, repeats: CellResult | None = None) -> CellTask:
        """Return what runs a cell. repeats: the result because of which it runs once more."""
        machine = self.recorder.machine
        tags = {
            "kind": RunKind.CELL,
            "framework": treatment.framework,
            "treatment": treatment.name,
            "block": str(cell.block),
            "order_in_block": str(cell.order_in_block),
            "idle": str(machine),
            **machine.tags,
            "cell": cell.key,
            **({"control": treatment.control} if treatment.control else {}),
            **({"looks": journal_runs.as_text(self.looks)} if self.looks else {}),
            **({"repeats": repeats.disturbed, "repeats.cause": repeats.cause} if repeats else {}),
        }
        inputs = self.prepared.data_for(treatment).inputs
        return CellTask(
            treatment, cell.key, f"{treatment.name} · block {cell.block}", tags, inputs, cell.block
        )

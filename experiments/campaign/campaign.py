"""The campaign: every treatment in random blocks of fresh processes, resumed where it stopped."""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

import numpy as np

from experiments import workloads
from experiments.campaign.repeats import ODD_BLOCK, REASON, OddBlock
from experiments.campaign.runner import Ended, Runner, Setup, Work
from experiments.config import devices
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.contract import Job, Treatment
from experiments.planning import design, treatments
from experiments.planning.design import Cell
from experiments.planning.frontier import Frontier
from experiments.planning.plan import Plan
from tracking import journal
from tracking.errors import EvenhandError
from tracking.journal import Journal
from tracking.records import RepeatCause, RunClosed, RunKind, RunOpened, RunOutcome, Tags


@dataclasses.dataclass(frozen=True)
class Measured:
    """What came of a block. fresh: whether any of its cells was run now. well: whether all that were run ended well."""

    block: int
    fresh: bool
    well: bool


class Executor(Protocol):
    """Where the work of a campaign is done."""

    def extract(self, jobs: Sequence[Job]) -> list[bool]:
        """Pieces of work that cells need, in this order: whether each ended well."""

    def blocks(self, blocks: Sequence[Sequence[Cell]]) -> Generator[Measured]:
        """Every cell that is not there yet, block by block. Closed before its end, what is still at work is stopped."""


class Campaign:
    """One launch of a plan. Built by `start` or `resume`; `run` does the work; the runner's `close` ends its run.

    part_of: see `Runner`. ended: how cells of earlier launches did, by key.
    """

    def __init__(self, setup: Setup, plan: Plan, records: Journal, display: Display, part_of: Path | None = None):
        self.setup, self.plan = setup, plan
        self.settings, self.prepared = setup.settings, setup.prepared
        own = [one.merged(setup.settings) for one in plan.treatments]
        self.devices = tuple(dict.fromkeys(devices.resolve(one.device, one) for one in own))
        self.runner = Runner(records, display, self.devices[0], part_of)
        self.runner.warnings = list(setup.prepared.warnings)
        self.treatments = {one.name: one for one in plan.treatments}
        self._frontier = Frontier(plan.along)
        self.looks: tuple[int, ...] = ()
        self.ended: Mapping[str, Ended] = {}
        self._display = display

    # ---- the whole

    def run(
        self,
        enough: Callable[[int, bool], bool],
        executor: Executor,
        find_odd_block: Callable[[], OddBlock | None] = lambda: None,
    ) -> bool:
        """What comes before the blocks, then every cell that is not there yet. True if all ended well.

        enough: whether a block was the last, from its number and whether any of its cells was run now.
        find_odd_block: called after the last block; what it returns is measured once more as a whole.
        """
        with self.runner.signals():
            self.runner.check_stop()
            self.looks = looks_so_far(self.runner.folder, self.runner.run)
            cells = cells_of(self.plan, self.settings)
            self.ended = ended_cells(self.runner.folder)
            self.recall(cells, self.ended)
            self.runner.warn(self.prepared.warnings)
            self._display.expect(len(self.prepared.before) + sum(cell.key not in self._done for cell in cells))
            results = executor.extract(self.prepared.before)
            for job, well in zip(self.prepared.before, results, strict=True):
                if job.framework == self.settings.frameworks[0] and not well:
                    raise EvenhandError("the baseline's feature extraction failed, which all cells need; the reason stands above")
            self.runner.warn(self._after_extraction())
            blocks = [list(block) for _, block in itertools.groupby(cells, key=lambda cell: cell.block)]
            with closing(executor.blocks(blocks)) as all_measured:
                for measured in all_measured:
                    results.append(measured.well)
                    if enough(measured.block, measured.fresh):
                        break
            if odd := find_odd_block():
                self.runner.write(Tags(self.runner.run, odd.tags))  # one record: from here on it is owed, after a kill too
                self.ended = ended_cells(self.runner.folder)
                self.recall(cells, self.ended)
                with closing(executor.blocks([cells for cells in blocks if cells[0].block == odd.number])) as repeated:
                    results += [measured.well for measured in repeated]
        return all(results)

    def recall(self, cells: Sequence[Cell], ended: Mapping[str, Ended]) -> None:
        """What earlier launches have measured of these cells, and what they found not to fit. ended: see `ended_cells`."""
        self._done = {key for key, end in ended.items() if self.counts(end.outcome)}
        self._disturbed = {key: end for key, end in ended.items() if end.outcome == RunOutcome.OK and end.disturbed}
        if self._in_turns:
            for group in self._groups(cells):
                if not (keys := {cell.key for cell in group}) <= self._done:
                    self._done -= keys
        self._remember_what_did_not_fit(cells, ended)

    def counts(self, outcome: RunOutcome | None) -> bool:
        """Whether a cell that ended so need not be run again."""
        too_large = outcome == RunOutcome.OUT_OF_MEMORY and bool(self._frontier.along)
        return outcome in (RunOutcome.OK, RunOutcome.NOT_EQUAL) or too_large

    def is_done(self, cells: Iterable[Cell]) -> bool:
        """Whether none of these cells is still to be run, or to be run once more."""
        return all(cell.key in self._done and not self._is_owed(cell) for cell in cells)

    def _is_owed(self, cell: Cell) -> bool:
        """Whether a cell that ended well is to be run once more."""
        end = self._disturbed.get(cell.key)
        return end is not None and not end.repeat

    def extract(self, job: Job) -> bool:
        """A piece of work that cells need, in a process of its own."""
        return extract(self.runner, self.setup, job)

    def _after_extraction(self) -> tuple[str, ...]:
        after_extraction = workloads.load(self.setup.module.workload).after_extraction
        of_data = {id(self.setup.prepared_for(one)): one for one in self.plan.treatments}
        warnings: dict[str, None] = {}
        for one in of_data.values():
            prepared = self.setup.prepared_for(one)
            if after_extraction:
                warnings |= dict.fromkeys(after_extraction(one.merged(self.settings), prepared))
        return tuple(warnings)

    def block(self, cells: Sequence[Cell]) -> Measured:
        """Runs what is missing of a block, here and now."""
        fresh = not self.is_done(cells)
        return Measured(cells[0].block, fresh, all(self._block(cells)))

    def _block(self, cells: Sequence[Cell]) -> list[bool]:
        """Every cell of a block; then once more those that others disturbed, whatever they measured, each at most once."""
        if self._in_turns:
            return self._block_in_turns(cells)
        results = [self._cell(cell) for cell in cells]
        parts: dict[Cell, Treatment] = {}
        for cell in cells:
            whole: Treatment | None = self.treatments[cell.treatment]
            while whole:
                part = dataclasses.replace(cell, treatment=whole.name, order_in_block=len(cells) + len(parts))
                if self._is_owed(part):
                    parts[part] = whole
                whole = self._frontier.alone(whole)
        for part, treatment in parts.items():
            first = self._disturbed[part.key]
            self._display.expect_more(1, f"{part.treatment} · block {part.block} runs once more: {first.disturbed}")
            results.append(self._try(part, treatment, repeats=first))
        return results

    # ---- cells that take turns

    @property
    def _in_turns(self) -> bool:
        return self.settings.pairing == "interleaved"

    def _groups(self, cells: Iterable[Cell]) -> list[list[Cell]]:
        """The cells of each block that are compared with each other, in their order."""
        found: dict[tuple[int, str], list[Cell]] = {}
        for cell in cells:
            found.setdefault((cell.block, self.treatments[cell.treatment].group), []).append(cell)
        return list(found.values())

    def _block_in_turns(self, cells: Sequence[Cell]) -> list[bool]:
        """Groups whole or not at all: what is missing one cell runs again, and what others disturbed does so once."""
        groups = self._groups(cells)
        results = [self._together(group) for group in groups if not {cell.key for cell in group} <= self._done]
        for group in groups:
            if owed := [cell for cell in group if self._is_owed(cell)]:
                first = self._disturbed[owed[0].key]
                self._display.expect_more(len(group), f"block {group[0].block} runs once more: {first.disturbed}")
                again = [dataclasses.replace(cell, order_in_block=len(cells) + cell.order_in_block) for cell in group]
                results.append(self._together(again, repeats=first))
        return results

    def _together(self, group: list[Cell], repeats: Ended | None = None) -> bool:
        """repeats: how a cell ended because of which cells that ended well are run once more."""
        refused = [cell for cell in group if cell.treatment in self.prepared.refused]
        for cell in refused if not repeats else ():
            self._try(cell, self.treatments[cell.treatment])
        if not (group := [cell for cell in group if cell not in refused]):
            return True
        turns = {"turns": uuid.uuid4().hex[:8]}
        works = [self._work(cell, self.treatments[cell.treatment], {**turns, **_repeating(repeats)}) for cell in group]
        longest = max(devices.cool_down_seconds(work.treatment.merged(self.settings)) for work in works)
        if cooled := self.runner.cool_down(works[0].name, longest):
            works = [dataclasses.replace(work, tags={**work.tags, "cool_down": cooled}) for work in works]
        rng = np.random.default_rng([self.settings.seed, 2, group[0].block, group[0].order_in_block])
        ended = self.runner.measure_in_turns(self.setup, works, rng)
        self._disturbed |= {
            cell.key: end for cell, end in zip(group, ended, strict=True) if end.disturbed and end.outcome == RunOutcome.OK
        }
        return all(end.outcome == RunOutcome.OK for end in ended)

    # ---- one cell

    def _cell(self, cell: Cell) -> bool:
        """Runs a missing cell; after running out of memory, retries the phases that fit."""
        whole = self.treatments[cell.treatment]
        well = cell.key in self._done or self._try(cell, whole)
        if alone := self._frontier.alone(whole):
            part = dataclasses.replace(cell, treatment=alone.name)
            if part.key not in self._done:
                self._display.expect_more(1, f"{part.treatment} · block {part.block}, since the whole ran out of memory")
                well = self._try(part, alone) and well
        return well

    def _try(self, cell: Cell, treatment: Treatment, repeats: Ended | None = None) -> bool:
        """repeats: how a cell that is run once more ended."""
        work = self._work(cell, treatment, _repeating(repeats))
        if different := self.prepared.refused.get(treatment.name):
            self.runner.leave_out(self.setup, work, RunOutcome.NOT_EQUAL, different)
            return True
        reason, phase = self._frontier.implied(treatment)
        if reason:
            implied = dataclasses.replace(work, tags={**work.tags, "phase": phase, "implied": "true"})
            self.runner.leave_out(self.setup, implied, RunOutcome.OUT_OF_MEMORY, reason)
            return True
        longest = devices.cool_down_seconds(treatment.merged(self.settings))
        if cooled := self.runner.cool_down(work.name, longest):
            work = dataclasses.replace(work, tags={**work.tags, "cool_down": cooled})
        ended = self.runner.measure(self.setup, work)
        if ended.disturbed and ended.outcome == RunOutcome.OK:
            self._disturbed[cell.key] = ended
        if ended.outcome == RunOutcome.OUT_OF_MEMORY:
            self._frontier.note(treatment, ended.phase)
            return bool(self._frontier.along)
        return ended.outcome == RunOutcome.OK

    def leave_out(self, cell: Cell, outcome: RunOutcome, reason: str) -> None:
        """A cell that did not come to run has a run all the same, which says why."""
        self.runner.leave_out(self.setup, self._work(cell, self.treatments[cell.treatment], {}), outcome, reason)

    def _work(self, cell: Cell, treatment: Treatment, more: Mapping[str, str]) -> Work:
        """more: tags beside those that every cell has."""
        tags = {
            "kind": RunKind.CELL,
            "framework": treatment.framework,
            "treatment": treatment.name,
            "block": str(cell.block),
            "order_in_block": str(cell.order_in_block),
            "idle": str(self.runner.idle),
            **self.runner.idle.tags,
            "cell": cell.key,
            **({"control": treatment.control} if treatment.control else {}),
            **({"looks": _listed(self.looks)} if self.looks else {}),
            **more,
        }
        inputs = self.setup.prepared_for(treatment).inputs
        return Work(treatment, cell.key, f"{treatment.name} · block {cell.block}", tags, inputs, cell.block)

    def note_look(self, block: int) -> None:
        """Records that the runs up to this block have been judged, before anything is known of it."""
        if block not in self.looks:
            self.looks = tuple(sorted({*self.looks, block}))
            self.runner.write(looks_tag(self.runner.run, self.looks))

    def _remember_what_did_not_fit(self, cells: Iterable[Cell], ended: Mapping[str, Ended]) -> None:
        for cell in cells:
            treatment: Treatment | None = self.treatments[cell.treatment]
            while treatment:
                end = ended.get(dataclasses.replace(cell, treatment=treatment.name).key)
                if end and end.outcome == RunOutcome.OUT_OF_MEMORY:
                    self._frontier.note(treatment, end.phase)
                treatment = self._frontier.alone(treatment)


def cells_of(plan: Plan, settings: CampaignSettings) -> list[Cell]:
    """Every cell there can be, in the order in which they run."""
    rng = np.random.default_rng([settings.seed, 1])
    return design.blocks(treatments.groups(plan.treatments), settings.most_blocks, rng)


def extract(runner: Runner, setup: Setup, job: Job) -> bool:
    """A piece of work that cells need, in a process of its own."""
    tags = {"kind": RunKind.EXTRACTION, "framework": job.framework}
    treatment = Treatment(job.framework, job.framework, job.stage)
    work = Work(treatment, f"extraction-{job.framework}", f"features · {job.framework}", tags, job.inputs)
    return runner.measure(setup, work).outcome == RunOutcome.OK


def _repeating(first: Ended | None) -> dict[str, str]:
    return {"repeats": first.disturbed, "repeats.cause": first.cause} if first else {}


def _listed(looks: Iterable[int]) -> str:
    return ",".join(map(str, looks))


def looks_tag(campaign: str, looks: Iterable[int]) -> Tags:
    """The record of the blocks after which a campaign has been judged."""
    return Tags(campaign, {"looks": _listed(looks)})


def looks_so_far(folder: Path, campaign: str) -> tuple[int, ...]:
    """The blocks after which a campaign has been judged, though more were or may be to come."""
    tags = (record for record in journal.read_all(folder) if isinstance(record, Tags) and record.run == campaign)
    found = [text for one in tags if (text := one.values.get("looks"))]
    return tuple(map(int, found[-1].split(","))) if found else ()


def _owed(key: str, end: Ended, odd: Mapping[str, str]) -> tuple[str, Ended]:
    """Return how a cell ended; in the odd block of a campaign with these tags it is to be run once more."""
    if key.startswith(f"block-{int(odd[ODD_BLOCK]):03d}-"):
        end = dataclasses.replace(end, disturbed=odd[REASON], cause=RepeatCause.ODD_BLOCK, repeat=False)
    return key, end


def ended_cells(folder: Path) -> dict[str, Ended]:
    """Key of every cell that has a closed run in the journal -> how the last ended, or the last that ended well."""
    opened: dict[str, RunOpened] = {}
    tags: dict[str, dict[str, str]] = {}
    ends: list[tuple[str, Ended]] = []
    for record in journal.read_all(folder):
        if isinstance(record, RunOpened):
            opened[record.run] = record
        elif isinstance(record, Tags):
            tags.setdefault(record.run, {}).update(record.values)
            if ODD_BLOCK in record.values:
                ends = [_owed(key, end, record.values) for key, end in ends]
        elif isinstance(record, RunClosed) and record.outcome in set(RunOutcome):
            first = opened[record.run].tags if record.run in opened else {}
            told = tags.get(record.run, {})
            end = Ended(
                *(RunOutcome(record.outcome), told.get("phase", "")),
                disturbed=told.get("disturbed", ""),
                repeat="repeats" in first,
                machine=first.get("machine", ""),
            )
            ends.append((first.get("cell", ""), end))
    ok = [(key, end) for key, end in ends if end.outcome == RunOutcome.OK]
    return {key: end for key, end in (*ends, *ok) if key}

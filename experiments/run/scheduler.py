"""Schedule of a campaign: missing cells, their order, repetitions and stopping. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from experiments.comparison.statistics.sequential import batches, schedule
from experiments.comparison.verdicts.decision import MINIMUM_BLOCKS
from experiments.config import durations
from experiments.config.settings import CampaignSettings
from experiments.contract import Treatment
from experiments.planning import design, treatments
from experiments.planning.design import Cell
from experiments.run.plan import Plan
from tracking.errors import ErrorCode, UsageError
from tracking.records import LOADS, RepeatCause, RunOutcome

PHASES = "phases"
# Fewer cells do not show which load is usual.
FEWEST_CELLS = 3
Pair = tuple[Cell, Treatment]


@dataclass(frozen=True)
class CellResult:
    """Result of a cell.

    Attributes:
        phase: Where it ran out of memory, or empty.
        metrics: Their latest values.
        disturbed: Why it has to run once more, though it succeeded, or empty.
        repeat: True if it is such a repetition.
        machine: Fingerprint of the machine that it ran on, if that was read back.
        cause: Code of the reason to run it once more.
    """

    outcome: RunOutcome
    phase: str = ""
    reason: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    disturbed: str = ""
    repeat: bool = False
    machine: str = ""
    cause: RepeatCause = RepeatCause.BUSY_MACHINE

    @property
    def ok(self) -> bool:
        return self.outcome == RunOutcome.OK


@dataclass(frozen=True)
class Skip:
    """Result of a cell that is not run because it is known before."""

    outcome: RunOutcome
    reason: str
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """Next cell, or several that take turns, each with its treatment.

    Attributes:
        repeats: The result because of which they run once more.
        unplanned: Why there are more cells than the plan has, or empty.
    """

    cells: tuple[Pair, ...]
    skip: Skip | None = None
    repeats: CellResult | None = None
    unplanned: str = ""


class MemoryFrontier:
    """Limit of the memory: nothing larger of a series is tried after a cell that did not fit.

    Args:
        along: The setting that memory grows with; empty for a study in which running out of
            memory is a failure like any other.
    """

    def __init__(self, along: str) -> None:
        self.along = along
        self._least_too_large: dict[tuple[Any, ...], tuple[int, str]] = {}

    def note(self, treatment: Treatment, phase: str) -> None:
        """Record that a treatment ran out of memory in that phase."""
        if self.along:
            limit = (treatment.settings[self.along], phase)
            series = self._series(treatment)
            self._least_too_large[series] = min(limit, self._least_too_large.get(series, limit))

    def skip(self, treatment: Treatment) -> Skip | None:
        """Return why a treatment need not run, with the phase that would not fit."""
        if not (limit := self._limit_below(treatment)):
            return None
        reason = f"implied: {self.along} {limit[0]} did not fit"
        return Skip(RunOutcome.OUT_OF_MEMORY, reason, {"phase": limit[1], "implied": "true"})

    def fitting_part(self, treatment: Treatment) -> Treatment | None:
        """Return the phases of a treatment before the one in which memory ran out."""
        limit = self._limit_below(treatment)
        phases: tuple[str, ...] = treatment.settings.get(PHASES, ())
        before = phases[: phases.index(limit[1])] if limit and limit[1] in phases else ()
        if not before:
            return None
        name = f"{treatment.name} · {', '.join(before)} alone"
        return replace(treatment, name=name, settings={**treatment.settings, PHASES: before})

    def _limit_below(self, treatment: Treatment) -> tuple[int, str] | None:
        limit = self._least_too_large.get(self._series(treatment)) if self.along else None
        return limit if limit and treatment.settings[self.along] >= limit[0] else None

    def _series(self, treatment: Treatment) -> tuple[Any, ...]:
        settings = {name: value for name, value in treatment.settings.items() if name != self.along}
        variables = sorted(treatment.environment.items())
        return treatment.framework, treatment.stage, *sorted(settings.items()), *variables


class Schedule:
    """Cells of a campaign in their order, and their results so far.

    Args:
        skipped: Treatments that do not run, with the reason.
    """

    def __init__(self, plan: Plan, settings: CampaignSettings, skipped: Mapping[str, Skip]) -> None:
        self.cells = cells_of(plan, settings)
        self.treatments = {treatment.name: treatment for treatment in plan.treatments}
        self._is_interleaved = settings.pairing == "interleaved"
        self._skipped = skipped
        self._frontier = MemoryFrontier(plan.along)
        self._done: set[str] = set()
        self._results: dict[str, CellResult] = {}

    @property
    def blocks(self) -> list[tuple[Cell, ...]]:
        blocks = itertools.groupby(self.cells, key=lambda cell: cell.block)
        return [tuple(block) for _, block in blocks]

    def recall(self, results: Mapping[str, CellResult]) -> None:
        """Load results of cells of earlier launches, by key."""
        self._done = {key for key, result in results.items() if self.counts(result.outcome)}
        self._results = {key: result for key, result in results.items() if result.ok}
        if self._is_interleaved:
            for group in self._groups(self.cells):
                if not (keys := {cell.key for cell in group}) <= self._done:
                    self._done -= keys
        for cell in self.cells:
            for part, treatment in self._parts(cell):
                if (result := results.get(part.key)) and result.outcome == RunOutcome.OUT_OF_MEMORY:
                    self._frontier.note(treatment, result.phase)

    def note(self, cell: Cell, treatment: Treatment, result: CellResult) -> bool:
        """Record the result of a cell. Return True if it need not run again."""
        if result.ok:
            self._results[cell.key] = result
        if result.outcome == RunOutcome.OUT_OF_MEMORY:
            self._frontier.note(treatment, result.phase)
        return self.counts(result.outcome)

    def usual_loads(self) -> dict[str, float]:
        """Return the median load by others over the cells so far, by metric, if three have it."""
        usual = {}
        for name in LOADS:
            cells = [result.metrics for result in self._results.values() if name in result.metrics]
            if len(cells) >= FEWEST_CELLS:
                usual[name] = float(np.median([metrics[name] for metrics in cells]))
        return usual

    def counts(self, outcome: RunOutcome | None) -> bool:
        """Return True if a cell with this outcome need not run again."""
        is_limit = outcome == RunOutcome.OUT_OF_MEMORY and bool(self._frontier.along)
        return outcome in (RunOutcome.OK, RunOutcome.NOT_AVAILABLE) or is_limit

    def is_done(self, cells: Iterable[Cell]) -> bool:
        return all(cell.key in self._done and not self._is_owed(cell) for cell in cells)

    def missing(self) -> int:
        return sum(cell.key not in self._done for cell in self.cells)

    def steps(self, block: Sequence[Cell]) -> Iterator[Step]:
        """Yield what is missing of a block, then repetitions of disturbed cells, each at most once.

        The results of a step have to be noted before the next is taken.
        """
        return self._interleaved_steps(block) if self._is_interleaved else self._steps(block)

    def _steps(self, block: Sequence[Cell]) -> Iterator[Step]:
        for cell in block:
            treatment = self.treatments[cell.treatment]
            if cell.key not in self._done:
                yield self._step(cell, treatment)
            if part := self._frontier.fitting_part(treatment):
                smaller = replace(cell, treatment=part.name)
                if smaller.key not in self._done:
                    why = f"{part.name} · block {cell.block}, since the whole ran out of memory"
                    yield replace(self._step(smaller, part), unplanned=why)
        parts = [pair for cell in block for pair in self._parts(cell)]
        again = [(cell, treatment) for cell, treatment in parts if self._is_owed(cell)]
        for number, (cell, treatment) in enumerate(again):
            first = self._results[cell.key]
            why = f"{cell.treatment} · block {cell.block} runs once more: {first.disturbed}"
            repeated = replace(cell, order_in_block=len(block) + number)
            yield replace(self._step(repeated, treatment), repeats=first, unplanned=why)

    def _step(self, cell: Cell, treatment: Treatment) -> Step:
        skip = self._skipped.get(treatment.name) or self._frontier.skip(treatment)
        return Step(((cell, treatment),), skip)

    def _interleaved_steps(self, block: Sequence[Cell]) -> Iterator[Step]:
        """Yield whole groups: one that is missing a cell runs again."""
        groups = self._groups(block)
        for group in groups:
            if {cell.key for cell in group} <= self._done:
                continue
            for cell in group:
                if skip := self._skipped.get(cell.treatment):
                    yield Step(((cell, self.treatments[cell.treatment]),), skip)
            if equal := self._equal(group):
                yield Step(equal)
        for group in groups:
            if disturbed := [cell for cell in group if self._is_owed(cell)]:
                first = self._results[disturbed[0].key]
                again = [
                    replace(cell, order_in_block=len(block) + cell.order_in_block) for cell in group
                ]
                why = f"block {group[0].block} runs once more: {first.disturbed}"
                yield Step(self._equal(again), repeats=first, unplanned=why)

    def _groups(self, cells: Iterable[Cell]) -> list[list[Cell]]:
        groups: dict[tuple[int, str], list[Cell]] = {}
        for cell in cells:
            groups.setdefault((cell.block, self.treatments[cell.treatment].group), []).append(cell)
        return list(groups.values())

    def _equal(self, cells: Iterable[Cell]) -> tuple[Pair, ...]:
        return tuple(
            (cell, self.treatments[cell.treatment])
            for cell in cells
            if cell.treatment not in self._skipped
        )

    def _parts(self, cell: Cell) -> Iterator[Pair]:
        """Yield a cell as a whole, then the part of it that fits."""
        treatment: Treatment | None = self.treatments[cell.treatment]
        while treatment:
            yield replace(cell, treatment=treatment.name), treatment
            treatment = self._frontier.fitting_part(treatment)

    def _is_owed(self, cell: Cell) -> bool:
        result = self._results.get(cell.key)
        return result is not None and bool(result.disturbed) and not result.repeat


def cells_of(plan: Plan, settings: CampaignSettings) -> list[Cell]:
    rng = np.random.default_rng([settings.seed, 1])
    return design.blocks(treatments.groups(plan.treatments), settings.most_blocks, rng)


def planned_looks(settings: CampaignSettings) -> tuple[int, ...]:
    """Return the blocks after which a campaign with `until=settled` is judged."""
    looks = batches if settings.on_cluster else schedule
    return tuple(looks(settings.blocks, settings.max_blocks))


def check_stopping(settings: CampaignSettings) -> None:
    durations.seconds("budget", settings.budget)
    if not settings.until_settled:
        defaults = CampaignSettings()
        for name in ("max_blocks", "budget"):
            if (value := getattr(settings, name)) != getattr(defaults, name):
                raise UsageError(ErrorCode.CONFLICT, f"{name}={value} needs until=settled")
    elif not MINIMUM_BLOCKS <= settings.blocks <= settings.max_blocks:
        raise UsageError(
            ErrorCode.INVALID_VALUE,
            f"until=settled: blocks={settings.blocks} is the first look; "
            f"from {MINIMUM_BLOCKS} to max_blocks={settings.max_blocks}",
        )

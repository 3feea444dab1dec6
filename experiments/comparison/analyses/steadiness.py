"""Which runs came to rest, by level, and which were summarised too early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report.sections import Cell, Header, Line, Section
from experiments.comparison.report.tables import Link, decimal, number, under
from experiments.comparison.runs.raw import WINDOWS, RawRun
from experiments.comparison.statistics.steady import KINDS, Steady, classify


@dataclass(frozen=True)
class RunSteadiness:
    """One run's classification, and how many of its first steps its summaries leave out."""

    run: RawRun
    phase: str
    steady: Steady
    warmup_steps: int

    @property
    def measured_too_early(self) -> bool:
        """Whether steps from before the steady state went into the run's summaries."""
        return (self.steady.first_steady_step or 0) > max(1, self.warmup_steps)


def of_runs(raw: Sequence[RawRun]) -> tuple[RunSteadiness, ...]:
    """Every run's training (or, without one, its first phase) classified: window by window, where steps ran freely."""
    found = []
    for run in raw:
        name = next(
            (name for name in (WINDOWS, "train") if name in run.phases), next(iter(run.phases), "")
        )
        if name:
            phase = run.phases[name]
            warm = int(np.argmin(phase.warmup)) if not phase.warmup.all() else len(phase.warmup)
            seconds = (
                phase.seconds / phase.examples if name == WINDOWS else phase.seconds
            )  # the last window may be short
            found.append(RunSteadiness(run, name, classify(seconds), warm))
    return tuple(found)


@dataclass(frozen=True)
class LevelSteadiness:
    """A level's runs by kind. first_steady: the median over the runs that have one; warmup: how many steps were left out."""

    level: str
    n_runs: int
    counts: Mapping[str, int]
    first_steady: float | None
    warmup: tuple[int, ...]
    too_early: int


def by_level(found: Sequence[RunSteadiness]) -> tuple[LevelSteadiness, ...]:
    """What the runs of every level came to."""
    return tuple(
        _of_level(level, [one for one in found if one.run.level == level])
        for level in dict.fromkeys(one.run.level for one in found)
    )


def _of_level(level: str, inside: Sequence[RunSteadiness]) -> LevelSteadiness:
    first = [
        one.steady.first_steady_step for one in inside if one.steady.first_steady_step is not None
    ]
    return LevelSteadiness(
        level,
        len(inside),
        {kind: sum(one.steady.kind == kind for one in inside) for kind in KINDS},
        float(np.median(first)) if first else None,
        tuple(sorted({one.warmup_steps for one in inside})),
        sum(one.measured_too_early for one in inside),
    )


def tables(evidence: Evidence) -> list[Section]:
    """What the steps of the runs that were read came to: by level, the runs that never rested, and every run."""
    comparison, link = evidence.comparison, evidence.link
    place = {level: at for at, level in enumerate(comparison.levels)}
    found = of_runs(sorted(evidence.raw, key=lambda run: place.get(run.level, len(place))))
    if not found:
        return []
    shown = (
        f"all {len(found):,} runs"
        if len(found) >= comparison.n_runs
        else f"{len(found):,} of {comparison.n_runs:,} runs"
    )
    caption = (
        f"The steps of {shown}: changepoints of the medians of five, the first step apart; a run is steady from where no"
        " stretch differs by more than 2 % from its last, unless its steps drift. Nothing is left out for it: a run "
        "without a steady state counts like any other, and is named here."
        + " Where steps ran freely, a window of them stands for a step."
        * any(one.phase == WINDOWS for one in found)
    )
    counts = (
        "steady from step, median",
        "steps left out as warm-up",
        "runs summarised before they were steady",
    )
    header: Header = (comparison.factor, *map(number, ("runs read", *KINDS, *counts)))
    rows: list[Line] = [
        (
            *(one.level, str(one.n_runs)),
            *(_count(one.counts[kind], alarming=kind == "no steady state") for kind in KINDS),
            *(
                decimal(one.first_steady, "{:.0f}"),
                ", ".join(map(str, one.warmup)),
                _count(one.too_early, alarming=True),
            ),
        )
        for one in by_level(found)
    ]
    restless = [one for one in found if one.steady.kind == "no steady state"]
    runs: Header = ("run", comparison.factor, under(""), "block")
    named = [(*_run(one, link), f"{one.phase}: {one.steady.reason}") for one in restless]
    of_all: list[Line] = [
        (
            *(*_run(one, link), one.steady.kind, one.steady.reason),
            *(
                decimal(one.steady.first_steady_step, "{:.0f}"),
                decimal(one.steady.drift_percent, "{:+.1f} %"),
            ),
        )
        for one in found
    ]
    every: Header = (
        *runs,
        "found",
        under(""),
        number("steady from step"),
        number("drift of the last stretch"),
    )
    return [
        Section("Was steady state reached?", caption, header, rows),
        *(
            [Section("Runs without a steady state", "", (*runs, "why"), named, level=3)]
            if named
            else []
        ),
        Section("Every run that was read", "", every, of_all, folded=True),
    ]


def _count(count: int, *, alarming: bool) -> Cell:
    return Cell(str(count or "·"), "alarm" if alarming and count else "")


def _run(one: RunSteadiness, link: Link) -> tuple[Cell, str, str, str]:
    return (
        Cell(one.run.run_id, link=link(one.run.run_id)),
        one.run.level,
        one.run.stratum,
        one.run.block,
    )


ANALYSIS = Analysis(tables={120: tables})

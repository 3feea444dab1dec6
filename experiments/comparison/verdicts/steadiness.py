"""Which runs came to rest, by level, and which were summarised too early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

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
        name = next((name for name in (WINDOWS, "train") if name in run.phases), next(iter(run.phases), ""))
        if name:
            phase = run.phases[name]
            warm = int(np.argmin(phase.warmup)) if not phase.warmup.all() else len(phase.warmup)
            seconds = phase.seconds / phase.examples if name == WINDOWS else phase.seconds  # the last window may be short
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
    first = [one.steady.first_steady_step for one in inside if one.steady.first_steady_step is not None]
    return LevelSteadiness(
        level,
        len(inside),
        {kind: sum(one.steady.kind == kind for one in inside) for kind in KINDS},
        float(np.median(first)) if first else None,
        tuple(sorted({one.warmup_steps for one in inside})),
        sum(one.measured_too_early for one in inside),
    )


__all__ = ["KINDS", "LevelSteadiness", "RunSteadiness", "by_level", "of_runs"]

"""Analyses of a comparison: a module each, with its numbers, tables, sentences and figure.

A module declares in `ANALYSIS` what it adds to a report, and at which place. Nothing else lists it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from experiments.comparison.report import canvas, tables
from experiments.comparison.report.canvas import Colours, Drawing
from experiments.comparison.report.sections import Section
from experiments.comparison.runs.raw import RawRun
from experiments.comparison.runs.warning import ComparisonWarning
from experiments.comparison.verdicts.findings import Comparison

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
# Places: of a study's tables, of the first table after the figures, and beyond all. Before 0
# stands what heads a report.
STUDY, BELOW, LAST = 30, 100, 1_000


@dataclass(frozen=True)
class Evidence:
    """Everything that an analysis reads.

    Attributes:
        comparison: the verdicts.
        runs: the table that was compared.
        raw: the runs whose steps and sensors were read.
        protocol: `paper` shows the published procedure beside the verdicts.
        published: figures with `what`, `published` and `metric`, which may be empty, and `model`
            where it is that model's only.
        source: where they were published.
        link: run id → its page in MLflow, empty where none is known.
    """

    comparison: Comparison
    runs: pd.DataFrame | None = None
    raw: Sequence[RawRun] = ()
    protocol: str = "sound"
    published: Sequence[Mapping[str, str]] = ()
    source: str = ""
    link: tables.Link = tables.nowhere

    @cached_property
    def colours(self) -> Colours:
        """The colour of every level."""
        return canvas.colours_of(self.comparison.levels)

    @property
    def of_runs(self) -> str:
        """Number of runs that the steps come from: `all 12 runs`, `48 of 1,000 runs`."""
        shown, of = len(self.raw), max(self.comparison.n_runs, len(self.raw))
        return (
            f"all {of:,} runs"
            if shown == of
            else f"{shown:,} of {of:,} runs, taken evenly over time,"
        )


Parts = Mapping[int, Callable[[Evidence], T]]


@dataclass(frozen=True)
class Analysis:
    """Parts that an analysis adds to a report: functions of the evidence by place, ascending.

    Attributes:
        warnings: lines before everything else.
        sentences: lines of the terminal and the description, after the verdicts.
        tables: sections; those from `BELOW` on stand after the figures.
        figures: a drawing, or None if there is nothing to show.
    """

    warnings: Parts[Sequence[ComparisonWarning]] = field(default_factory=dict)
    sentences: Parts[Sequence[str]] = field(default_factory=dict)
    tables: Parts[Sequence[Section]] = field(default_factory=dict)
    figures: Parts[Drawing | None] = field(default_factory=dict)


def load() -> tuple[Analysis, ...]:
    """Return the analyses of this folder."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").ANALYSIS for name in names)


def in_order(
    parts: Iterable[Parts[T]], evidence: Evidence, start: int = -LAST, end: int = LAST
) -> list[T]:
    """Return the parts of the evidence in order of their places, from `start` to before `end`."""
    placed = [(place, make) for part in parts for place, make in part.items()]
    chosen = [placed_part for placed_part in placed if start <= placed_part[0] < end]
    return [make(evidence) for _, make in sorted(chosen, key=lambda item: item[0])]


def drawings(evidence: Evidence) -> list[Drawing]:
    """Return every figure that there is something to show in."""
    return [
        drawing
        for drawing in in_order([analysis.figures for analysis in load()], evidence)
        if drawing
    ]


__all__ = ["BELOW", "LAST", "STUDY", "Analysis", "Evidence", "drawings", "in_order", "load"]

"""Evidence that all analyses of a report read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from experiments.comparison.report import canvas, tables
from experiments.comparison.report.canvas import Colours, Drawing
from experiments.comparison.report.sections import Section
from experiments.comparison.runs.raw import RawRun
from experiments.comparison.verdicts.findings import Comparison


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
        study_sections: tables that a study adds.
    """

    comparison: Comparison
    runs: pd.DataFrame | None = None
    raw: Sequence[RawRun] = ()
    protocol: str = "sound"
    published: Sequence[Mapping[str, str]] = ()
    source: str = ""
    link: tables.Link = tables.nowhere
    study_sections: Sequence[Section] = ()

    @cached_property
    def colours(self) -> Colours:
        """The colour of every level."""
        return canvas.colours_of(self.comparison.levels)

    @property
    def shown_runs(self) -> str:
        """Number of runs that the steps come from: `all 12 runs`, `48 of 1,000 runs`."""
        shown, total = len(self.raw), max(self.comparison.n_runs, len(self.raw))
        return f"all {total:,} runs" if shown == total else f"{shown:,} of {total:,} runs"


Part = Callable[[Evidence], Sequence[Section | Drawing]]

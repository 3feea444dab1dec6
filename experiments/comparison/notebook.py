"""Comparison as an object of a notebook: a table, figures and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.comparison import analyses, judgement
from experiments.comparison.analyses import Evidence
from experiments.comparison.judgement import ComparisonSpec, ReportOptions
from experiments.comparison.report import canvas, rendering, tables, wording
from experiments.comparison.report.canvas import Drawing, Figure
from experiments.comparison.runs import inputs, names, raw
from experiments.comparison.runs.raw import RawRun
from experiments.comparison.verdicts.findings import Comparison
from tracking.errors import ErrorCode, EvenhandError, UsageError


@dataclass(frozen=True, repr=False)
class Result(Comparison):
    """Result of `compare`.

    Attributes:
        runs: the table that was compared.
        on_server: whether raw values can be fetched.
    """

    spec: ComparisonSpec = field(default=ComparisonSpec(), repr=False, compare=False)
    runs: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)
    on_server: bool = field(default=False, repr=False, compare=False)

    @property
    def sentences(self) -> list[str]:
        """Results as text, the most important first."""
        return wording.sentences(self)

    @property
    def figures(self) -> tuple[str, ...]:
        """Names that `figure` takes."""
        return tuple(self._drawings)

    def figure(self, name: str) -> Figure:
        """Return a figure of the report, with `.svg` and `.png`.

        Raises:
            UsageError: for an unknown name.
        """
        if name not in self._drawings:
            names = ", ".join(self._drawings) or "none"
            raise UsageError(
                ErrorCode.NOT_FOUND, f"no figure '{name}' of this comparison; have {names}"
            )
        return canvas.draw(self._drawings[name])

    def save(
        self, folder: str | Path = "comparison", *, title: str = "Comparison", figures: bool = True
    ) -> Path:
        """Write report.html, report.md, comparison.csv, comparison.json and figures/ into a folder.

        Returns:
            The path of report.html.

        Raises:
            EvenhandError: if the folder cannot be written.
        """
        options = ReportOptions(title, figures=figures)
        written = judgement.answer(
            self.spec, self.runs, Path(folder).expanduser().resolve(), options, self._fetch
        )
        if written.report is None:
            raise EvenhandError(ErrorCode.UNWRITABLE, written.trouble)
        return written.report

    def __repr__(self) -> str:
        return "\n".join(
            [
                f"{tables.versus(self)} by {self.factor}, {self.n_runs:,} runs",
                *map(str, self.warnings),
                *self.sentences,
            ]
        )

    def _repr_html_(self) -> str:
        return rendering.render(
            "notebook.html.j2",
            warnings=self.warnings,
            sentences=self.sentences,
            table=tables.verdicts(self),
        )

    @cached_property
    def _drawings(self) -> dict[str, Drawing]:
        raw = judgement.steps_or_reason(self._fetch, self.spec, self.runs)[0]
        return {result.name: result for result in analyses.drawings(Evidence(self, self.runs, raw))}

    def _fetch(self, shown: Sequence[RawRun]) -> list[RawRun]:
        if not self.on_server:
            return []
        from tracking.reader import Reader

        return raw.fetch(Reader(), shown)


def result(spec: ComparisonSpec, runs: Any) -> Result:
    """Judge the runs that `compare` received.

    Raises:
        UsageError: if the call is at fault or no run can be used.
    """
    table = inputs.table(runs)
    inputs.check_level_and_block(table, spec.factor, spec.pair_by)
    called = names.names_by_run(table)
    spec = replace(spec, baseline=called.get(spec.baseline or "", spec.baseline))
    comparison = judgement.judged(spec, table)
    if not comparison.n_runs or not comparison.findings:
        (reason,) = wording.sentences(comparison)
        raise UsageError(ErrorCode.NOT_FOUND, f"compare: {reason}")
    fields: Mapping[str, Any] = vars(comparison)
    return Result(**fields, spec=spec, runs=table, on_server=inputs.has_runs_of_mlflow(runs))

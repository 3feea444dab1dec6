"""Verdict and report of finished runs, for campaigns and `compare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from experiments.comparison import analyses
from experiments.comparison.analyses import Evidence, controls, memory_limits, roofline
from experiments.comparison.report import canvas, tables, wording, writing
from experiments.comparison.report.card import AnswerCard, MoreBlocks, build_card
from experiments.comparison.report.sections import Section
from experiments.comparison.runs import environment, pairing, raw
from experiments.comparison.runs.raw import RawRun
from experiments.comparison.verdicts.findings import Comparison
from experiments.comparison.verdicts.verdict import ComparisonSpec, judge
from experiments.contract import ReportAddition
from tracking.errors import EvenhandError

Steps = Callable[[Sequence[RawRun]], list[RawRun]]
TEXTS = {"markdown": "report.md", "csv": "comparison.csv", "json": "comparison.json"}


@dataclass(frozen=True)
class ReportOptions:
    """Options of a report.

    Attributes:
        also: returns what a study adds to the verdicts.
        notes: lines at the end.
        more_blocks: returns how more blocks are measured.
        link: run → its page in MLflow.
    """

    title: str
    published: Sequence[Mapping[str, str]] = ()
    source: str = ""
    also: Callable[[Comparison], ReportAddition] | None = None
    figures: bool = True
    notes: Sequence[str] = ()
    more_blocks: MoreBlocks | None = None
    link: tables.Link | None = None


@dataclass(frozen=True)
class ComparisonResult:
    """Result of a comparison.

    Attributes:
        report: the HTML file; None if it could not be written.
        trouble: why it could not be written.
    """

    comparison: Comparison
    card: AnswerCard
    sentences: list[str]
    report: Path | None
    trouble: str = ""

    def text(self, form: str) -> str:
        """Return the report as `markdown`, `csv` or `json`."""
        assert self.report is not None
        return (self.report.parent / TEXTS[form]).read_text(encoding="utf-8")


def answer(
    spec: ComparisonSpec, runs: pd.DataFrame, folder: Path, options: ReportOptions, steps: Steps
) -> ComparisonResult:
    """Judge a table of runs and write the report into a folder.

    Args:
        steps: fetches steps and sensors of the few runs that figures show.

    Raises:
        UsageError: if there is nothing to compare.
    """
    with ThreadPoolExecutor(1) as background:
        fetching = background.submit(steps_or_reason, steps, spec, runs)
        comparison = judged(spec, runs)
        raw_runs, missing_steps = fetching.result()
    addition = ReportAddition([])
    if options.also and not comparison.smoke:
        addition = options.also(comparison)
    evidence = Evidence(
        comparison,
        runs,
        raw_runs,
        spec.protocol,
        options.published,
        options.source,
        options.link or tables.nowhere,
        addition.sections,
    )
    comparison = replace(comparison, warnings=(*analyses.warnings(evidence), *comparison.warnings))
    card = build_card(comparison, options.title, environment.span(runs), options.more_blocks)
    unread = [
        f"The steps of {run.level}, block {run.block} are not shown: {run.trouble}"
        for run in raw_runs
        if run.trouble
    ]
    notes = [*unread, *options.notes, *addition.sentences, *missing_steps]
    body = _body(evidence, figures=options.figures)
    lines = wording.sentences(comparison)
    if not comparison.smoke:
        lines += [
            *roofline.sentences(evidence),
            *controls.sentences(evidence),
            *addition.sentences,
        ]
    result = ComparisonResult(comparison, card, lines, folder / "report.html")
    try:
        writing.write(comparison, card, body, notes, folder)
        for name, text in addition.files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        return replace(result, report=None, trouble=f"No report: {error.strerror}: {folder}")
    return result


def _body(evidence: Evidence, *, figures: bool) -> list[Section | canvas.Figure]:
    """Return the parts of all analyses, drawn or without figures."""
    body: list[Section | canvas.Figure] = []
    parts = analyses.SMOKE if evidence.comparison.smoke else analyses.BODY
    for part in (part for make in parts for part in make(evidence)):
        if isinstance(part, Section):
            body.append(part)
        elif figures:
            body.append(canvas.draw(part))
    return body


def judged(spec: ComparisonSpec, runs: pd.DataFrame) -> Comparison:
    """Return the verdicts with controls and memory limits, without a report.

    Raises:
        UsageError: if there is nothing to compare.
    """
    control_findings, candidates = _against_itself(spec, runs)
    return replace(
        judge(candidates, control_findings),
        controls=controls.judged(runs, spec),
        frontier=memory_limits.edges(
            pairing.without_controls(runs), factor=spec.factor, strata=spec.strata
        ),
    )


def _against_itself(
    spec: ComparisonSpec, runs: pd.DataFrame
) -> tuple[ComparisonSpec, pd.DataFrame]:
    """Drop the controls, but compare a single level with its controls."""
    candidates = pairing.without_controls(runs)
    if len(candidates) == len(runs):
        return spec, candidates
    cells = candidates[pairing.are_cells(candidates)]
    levels = set(cells[pairing.column_of(cells, spec.factor)])
    if len(levels) != 1 or spec.baseline not in {None, *levels}:
        return spec, candidates
    control_spec = replace(
        spec,
        factor=pairing.plain_name(controls.TREATMENT),
        baseline=str(cells[controls.TREATMENT].iloc[0]),
        allowed_to_differ=(*spec.allowed_to_differ, "inject_delay"),
    )
    return control_spec, runs.assign(**{pairing.CONTROL: ""})


def steps_or_reason(
    steps: Steps, spec: ComparisonSpec, runs: pd.DataFrame
) -> tuple[list[RawRun], list[str]]:
    """Return the steps of the runs that figures show, or the line on what is missing."""
    try:
        shown = raw.shown(runs, factor=spec.factor, strata=spec.strata, pair_by=spec.pair_by)
        return steps(shown), []
    except EvenhandError as error:
        return [], [f"Figures of single steps and sensors are missing: {error}"]


__all__ = [
    "ComparisonResult",
    "ComparisonSpec",
    "ReportAddition",
    "ReportOptions",
    "answer",
    "judged",
    "steps_or_reason",
]

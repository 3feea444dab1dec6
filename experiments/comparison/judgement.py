"""Verdict and report of finished runs, for campaigns and `compare`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pandas as pd

from experiments.comparison import analyses
from experiments.comparison.analyses import BELOW, STUDY, Evidence, controls, memory_limits
from experiments.comparison.report import canvas, remarks, tables, wording, writing
from experiments.comparison.report import card as cards
from experiments.comparison.report.card import AnswerCard
from experiments.comparison.report.remarks import Measured
from experiments.comparison.report.rendering import Document
from experiments.comparison.report.sections import Section
from experiments.comparison.runs import environment, pairing, raw
from experiments.comparison.runs.raw import RawRun, ShownRun
from experiments.comparison.verdicts.findings import Comparison
from experiments.comparison.verdicts.verdict import ComparisonSpec, judge
from experiments.contract import ReportAddition
from tracking.errors import EvenhandError

T = TypeVar("T")
Steps = Callable[[Sequence[ShownRun]], list[RawRun]]
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
    more_blocks: Measured | None = None
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
    extra: ReportAddition
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
    with ThreadPoolExecutor(1) as meanwhile:
        fetching = meanwhile.submit(steps_or_why, steps, spec, runs)
        comparison = judged(spec, runs)
        shown, missing = fetching.result()
    link = options.link or tables.nowhere
    evidence = Evidence(
        comparison, runs, shown, spec.protocol, options.published, options.source, link
    )
    parts = analyses.load()
    loud = _all(analyses.in_order([analysis.warnings for analysis in parts], evidence))
    comparison = replace(comparison, warnings=(*loud, *comparison.warnings))
    evidence = replace(evidence, comparison=comparison)
    extra = options.also(comparison) if options.also else ReportAddition([])
    advice = (
        remarks.on_more_blocks(comparison, options.more_blocks) if options.more_blocks else None
    )
    card = cards.build_card(comparison, options.title, environment.span(runs), advice)
    analysis_sentences = _all(
        analyses.in_order([analysis.sentences for analysis in parts], evidence)
    )
    sentences = [
        *map(str, loud),
        *wording.sentences(comparison),
        *analysis_sentences,
        *extra.sentences,
    ]
    unasked = [] if options.figures else ["Without figures, as asked for (figures=false)."]
    notes = [*options.notes, *extra.sentences, *missing, *unasked]
    try:
        path = write(
            evidence, folder, card, sections=extra.sections, notes=notes, figures=options.figures
        )
        for name, text in extra.files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        return ComparisonResult(
            comparison, card, sentences, None, extra, f"No report: {error.strerror}: {folder}"
        )
    return ComparisonResult(comparison, card, sentences, path, extra)


def write(
    evidence: Evidence,
    folder: Path,
    card: AnswerCard | str,
    *,
    sections: Sequence[Section] = (),
    notes: Sequence[str] = (),
    figures: bool = True,
) -> Path:
    """Write the report of a comparison: what every analysis adds, in its place.

    Args:
        card: what stands at the top, or the title of a card without dates and advice.
        sections: tables of the study.
        notes: lines at the end.

    Returns:
        The path of the HTML file.
    """
    comparison, parts = evidence.comparison, analyses.load()
    if isinstance(card, str):
        card = cards.build_card(comparison, card)
    of_tables = [*(analysis.tables for analysis in parts), {STUDY: lambda _: sections}]

    def placed(start: int, end: int) -> list[Section]:
        return _all(analyses.in_order(of_tables, evidence, start, end))

    def drawn(start: int, end: int) -> list[canvas.Figure]:
        drawings = (
            analyses.in_order([analysis.figures for analysis in parts], evidence, start, end)
            if figures
            else []
        )
        return [canvas.made(drawing) for drawing in drawings if drawing]

    last = analyses.LAST
    others = drawn(0, last)
    heading = [Section("Figures", "", (), ())] if others else []
    body: list[Section | canvas.Figure] = [*placed(-last, 0), *drawn(-last, 0), *placed(0, BELOW)]
    body += [*heading, *others, *placed(BELOW, last)]
    unread = [
        f"The steps of {run.level}, block {run.block} are not shown: {run.trouble}"
        for run in evidence.raw
        if run.trouble
    ]
    document = Document(
        card,
        writing.subtitle(comparison),
        [warning.text for warning in comparison.warnings],
        wording.sentences(comparison),
        body,
        [*unread, *writing.missing(comparison), *notes],
    )
    return writing.write(comparison, document, folder)


def _all(several: Iterable[Sequence[T]]) -> list[T]:
    return list(itertools.chain.from_iterable(several))


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
    cells = candidates[pairing.are_cells(candidates)]
    levels = set(cells[spec.factor]) if spec.factor in cells else set()
    if len(candidates) == len(runs) or len(levels) != 1 or spec.baseline not in {None, *levels}:
        return spec, candidates
    control_spec = replace(
        spec,
        factor=pairing.plain_name(controls.TREATMENT),
        baseline=str(cells[controls.TREATMENT].iloc[0]),
        allowed_to_differ=(*spec.allowed_to_differ, "inject_delay"),
    )
    return control_spec, runs.assign(**{pairing.CONTROL: ""})


def steps_or_why(
    steps: Steps, spec: ComparisonSpec, runs: pd.DataFrame
) -> tuple[list[RawRun], list[str]]:
    """Return the steps of the runs that figures show, or the line on what is missing."""
    try:
        return steps(raw.shown(runs, factor=spec.factor, strata=spec.strata)), []
    except EvenhandError as error:
        return [], [f"Figures of single steps and sensors are missing: {error}"]


__all__ = [
    "ComparisonResult",
    "ComparisonSpec",
    "ReportAddition",
    "ReportOptions",
    "answer",
    "judged",
    "steps_or_why",
    "write",
]

"""From finished runs to a verdict and its report: the call that every campaign ends with, and `compare` is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd
from rich.table import Table

from experiments.comparison import batches, compare, learning, papers, profiles, raw, report, survival, words
from experiments.comparison.findings import Comparison
from experiments.comparison.outcomes import Outcome
from experiments.comparison.raw import RawRun, ShownRun
from experiments.comparison.sections import Section
from tracking.errors import EvenhandError

Steps = Callable[[Sequence[ShownRun]], list[RawRun]]
TEXTS = {"markdown": "report.md", "csv": "comparison.csv", "json": "comparison.json"}


@dataclass(frozen=True)
class Question:
    """What is asked of the runs, in `compare`'s words. protocol: `paper` shows the published procedure beside the verdicts."""

    factor: str = "framework"
    baseline: str | None = None
    outcomes: Sequence[str | Outcome] | None = None
    margin: float = 0.03
    strata: Sequence[str] = ()
    spans: Sequence[str] = ()
    all_pairs: bool = False
    protocol: str = "sound"


@dataclass(frozen=True)
class Extra:
    """What a study adds to its verdicts: sentences, tables for the terminal, files (name → text) beside the report, metrics.

    sections: tables of its own in the report.
    """

    sentences: list[str]
    tables: Sequence[Table] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    sections: Sequence[Section] = ()


@dataclass(frozen=True)
class Telling:
    """How a report is headed, and what it sets beside the verdicts. `also`: what a study has to add to them."""

    title: str
    published: Sequence[Mapping[str, str]] = ()
    source: str = ""
    also: Callable[[Comparison], Extra] | None = None


@dataclass(frozen=True)
class Answer:
    """What was found, in order of telling. `report`: the HTML file, None if it could not be written (`trouble` says why)."""

    comparison: Comparison
    sentences: list[str]
    report: Path | None
    extra: Extra
    trouble: str = ""

    def text(self, form: str) -> str:
        """The report as `markdown`, `csv` or `json`."""
        assert self.report is not None
        return (self.report.parent / TEXTS[form]).read_text(encoding="utf-8")


def answer(question: Question, runs: pd.DataFrame, folder: Path, telling: Telling, steps: Steps) -> Answer:
    """Judges a table of runs and writes the report into the folder. Raises WrongCall where there is nothing to compare.

    steps: fetches what lies behind the metrics, for the few runs that figures show.
    """
    with ThreadPoolExecutor(1) as meanwhile:
        fetching = meanwhile.submit(_steps, steps, question, runs)
        comparison = compare(
            runs,
            factor=question.factor,
            baseline=question.baseline,
            outcomes=question.outcomes,
            margin=question.margin,
            strata=question.strata,
            spans=question.spans,
            all_pairs=question.all_pairs,
        )
        shown, missing = fetching.result()
    if question.protocol == "paper":
        comparison = replace(comparison, papers=papers.rows(comparison, shown))
    loud, alike = learning.sentences(learning.agreements(shown, comparison.baseline))
    comparison = replace(comparison, warnings=(*loud, *comparison.warnings))
    extra = telling.also(comparison) if telling.also else Extra([])
    tested = map(words.control_sentence, comparison.controls)
    found = [*loud, *words.sentences(comparison), *tested, *alike, *extra.sentences]
    if question.factor.rpartition(".")[2] == "batch_size":
        found += batches.sentences(batches.curves(comparison))
    own = [survival.section(comparison), profiles.section(comparison, runs)]
    try:
        path = report.write(
            comparison,
            folder,
            title=telling.title,
            runs=runs,
            published=telling.published,
            published_source=telling.source,
            notes=[*alike, *extra.sentences, *missing],
            raw=shown,
            sections=[*extra.sections, *(one for one in own if one)],
        )
        for name, text in extra.files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        return Answer(comparison, found, None, extra, f"No report: {error.strerror}: {folder}")
    return Answer(comparison, found, path, extra)


def _steps(steps: Steps, question: Question, runs: pd.DataFrame) -> tuple[list[RawRun], list[str]]:
    """The steps of the runs that figures show; without them the verdicts stand, and the report says what is missing."""
    try:
        return steps(raw.shown(runs, factor=question.factor, strata=question.strata)), []
    except EvenhandError as error:
        return [], [f"Figures of single steps and sensors are missing: {error}"]

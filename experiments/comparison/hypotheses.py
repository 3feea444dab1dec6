"""Hypotheses declared beforehand, each answered by one metric of a comparison: Goal-Question-Metric (Basili et al., 1994)."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.comparison import words
from experiments.comparison.findings import Comparison, Finding
from experiments.comparison.outcomes import outcome
from experiments.comparison.sections import Section

HEADER = ("", "question: metric", "answer", "effect", "95 % interval", "p", "p (Holm)", "equivalent", "blocks", "published p")
NOT_TESTABLE = "not testable here"
SENSORS = {"gpu/temperature": "gpu", "cpu/temperature": "cpu_temperature", "gpu/utilization": "gpu"}


@dataclass(frozen=True)
class Hypothesis:
    """H0: the metric is the same on both sides; H1: it differs. published_p: what the study reported."""

    name: str
    question: str
    phase: str
    metric: str
    published_p: str


@dataclass(frozen=True)
class Answer:
    """One hypothesis against one level, in one stratum. finding: None where it could not be tested; `reason` says why."""

    hypothesis: Hypothesis
    level: str
    stratum: str
    finding: Finding | None
    reason: str = ""

    @property
    def text(self) -> str:
        """What is said of H0."""
        found = self.finding
        if found is None:
            return f"{NOT_TESTABLE}: {self.reason}"
        if not found.judged:
            return f"H0 neither rejected nor confirmed ({found.row.reason or found.row.verdict})"
        if found.different:
            return f"H0 rejected: {self.level} is {found.row.verdict}"
        return f"H0 stands: {found.row.verdict}"

    @property
    def cells(self) -> tuple[str, ...]:
        """As `HEADER` says."""
        one, found = self.hypothesis, self.finding
        where = f", {self.stratum}" if self.stratum else ""
        of = f"{one.question} ({one.phase}{where}): {outcome(one.metric).label}"
        if found is None:
            return (one.name, of, self.text, *("—",) * 5, "0", one.published_p)
        row = found.row
        alike = {True: "yes", False: "no", None: "—"}[row.equivalent]
        numbers = (words.effect(found), words.effect_interval(found), words.p_value(row.p), words.p_value(row.p_holm))
        return (one.name, of, self.text, *numbers, alike, str(row.n_blocks), one.published_p)


def answered(hypotheses: Sequence[Hypothesis], comparison: Comparison) -> list[Answer]:
    """Every hypothesis, in order, for every pair of levels and stratum that was compared."""
    found = []
    for one in hypotheses:
        rows = [finding for finding in comparison.findings if finding.row.metric == one.metric and finding.row.n_blocks]
        found += [Answer(one, finding.row.b, finding.row.stratum, finding) for finding in rows]
        if not rows:
            found.append(Answer(one, "", "", None, _why(one, comparison)))
    return found


def _why(one: Hypothesis, comparison: Comparison) -> str:
    plain = one.metric.removeprefix("inference/")
    for beginning, sensor in SENSORS.items():
        if plain.startswith(beginning):
            told = [reason for name, reason in comparison.missing_sensors.items() if name.startswith(sensor)]
            if told:
                return told[0]
    return "no two runs of one block have it"


def sentence(answers: Sequence[Answer]) -> str:
    """How many were answered which way."""
    untested = sum(one.finding is None for one in answers)
    judged = [one for one in answers if one.finding and one.finding.judged]
    rejected = sum(one.finding is not None and one.finding.different for one in judged)
    parts = [
        f"{rejected} rejected",
        f"{len(judged) - rejected} confirmed as equal",
        f"{len(answers) - untested - len(judged)} open",
    ]
    return f"Of {len(answers)} null hypotheses {', '.join(parts)}, {untested} not testable here."


def section(answers: Sequence[Answer], goal: str) -> Section:
    """For the report."""
    caption = f"{goal} H0 of each: the metric is the same on both sides; H1: it differs. Declared before measuring."
    return Section("The hypotheses, one by one", caption, HEADER, [one.cells for one in answers])


def as_csv(answers: Sequence[Answer]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["hypothesis", *HEADER[1:]])
    rows.writerows(one.cells for one in answers)
    return text.getvalue()

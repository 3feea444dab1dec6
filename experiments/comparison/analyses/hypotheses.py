"""Hypotheses declared beforehand, each answered by one metric of a comparison: Goal-Question-Metric (Basili et al., 1994)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.comparison.analyses import Analysis
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Section
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Comparison, Finding
from experiments.metrics import Hypothesis, outcome
from tracking import spreadsheet

SENSORS = {"gpu/temperature": "gpu", "cpu/temperature": "cpu_temperature", "gpu/utilization": "gpu"}
HEADER = (
    "",
    "question: metric",
    "answer",
    "effect",
    "95 % interval",
    "p",
    "p (Holm)",
    "equivalent",
    "blocks",
    "published p",
)
# What is said of the margin once a difference is shown.
SIZES = {
    Decision.DIFFERENT: "by more than the margin",
    Decision.WITHIN_MARGIN: "by less than the margin",
    Decision.CONSTANT: "by less than the margin",
    Decision.SIZE_OPEN: "whether by more than the margin is open",
}


@dataclass(frozen=True)
class HypothesisResult:
    """One hypothesis against one level, in one stratum. finding: None where it could not be tested; `reason` says why."""

    hypothesis: Hypothesis
    level: str
    stratum: str
    finding: Finding | None
    reason: str = ""


def answered(hypotheses: Sequence[Hypothesis], comparison: Comparison) -> list[HypothesisResult]:
    """Every hypothesis, in order, for every pair of levels and stratum that was compared."""
    found = []
    for one in hypotheses:
        rows = [
            finding
            for finding in comparison.findings
            if finding.row.metric == one.metric and finding.row.n_blocks
        ]
        found += [
            HypothesisResult(one, finding.row.b, finding.row.stratum, finding) for finding in rows
        ]
        if not rows:
            found.append(HypothesisResult(one, "", "", None, _why(one, comparison)))
    return found


def _why(one: Hypothesis, comparison: Comparison) -> str:
    plain = one.metric.removeprefix("inference/")
    for beginning, sensor in SENSORS.items():
        if plain.startswith(beginning):
            told = [
                reason
                for name, reason in comparison.missing_sensors.items()
                if name.startswith(sensor)
            ]
            if told:
                return told[0]
    unpaired = (
        finding.row.reason for finding in comparison.findings if finding.row.metric == one.metric
    )
    return next(unpaired, "no two runs of one block have it")


def text(answer: HypothesisResult) -> str:
    """What is said of H0, that nothing differs; and of the margin, which is another question."""
    found = answer.finding
    if found is None:
        return f"not testable here: {answer.reason}"
    if found.different:
        return f"H0 rejected: {answer.level} is {found.way}, {SIZES[found.decision]} ({wording.margin(found)})"
    if not found.judged:
        return f"H0 neither rejected nor confirmed ({found.row.reason or found.row.verdict})"
    if found.identical:
        return f"H0 stands: identical in all {wording.blocks(found.row.n_blocks)}"
    return f"H0 stands: {found.row.verdict} within the margin ({wording.margin(found)})"


def cells(answer: HypothesisResult) -> tuple[str, ...]:
    """As `HEADER` says."""
    one, found = answer.hypothesis, answer.finding
    where = f", {answer.stratum}" if answer.stratum else ""
    of = f"{one.question} ({one.phase}{where}): {outcome(one.metric).label}"
    if found is None:
        return (one.name, of, text(answer), *(wording.NONE,) * 5, "0", one.published_p)
    row = found.row
    alike = {True: "yes", False: "no", None: wording.NONE}[row.equivalent]
    numbers = (
        wording.effect(found),
        wording.effect_interval(found),
        wording.p_value(row.p),
        wording.p_value(row.p_holm),
    )
    return (one.name, of, text(answer), *numbers, alike, str(row.n_blocks), one.published_p)


def sentence(answers: Sequence[HypothesisResult]) -> str:
    """How many were answered which way."""
    untested = sum(one.finding is None for one in answers)
    rejected = [one.finding for one in answers if one.finding and one.finding.different]
    equal = sum(one.finding.judged and not one.finding.different for one in answers if one.finding)
    parts = (
        *(f"{len(rejected)} rejected", f"{equal} confirmed as equal"),
        *(
            f"{len(answers) - len(rejected) - equal - untested} open",
            f"{untested} not testable here",
        ),
    )
    told = f"Of {len(answers)} null hypotheses {', '.join(parts)}."
    if not rejected:
        return told
    sizes = Counter(SIZES[finding.decision] for finding in rejected)
    return f"{told} Of those rejected: {', '.join(f'{count} {size}' for size, count in sizes.items())}."


def section(answers: Sequence[HypothesisResult], goal: str) -> Section:
    """For the report."""
    caption = (
        f"{goal} H0 of each: the metric is the same on both sides; H1: it differs. Declared before measuring. "
        "Whether a difference exceeds the margin is another question, answered beside it. Holm’s correction spans the primary "
        "outcomes of the report, and all others apart."
    )
    return Section("The hypotheses, one by one", caption, HEADER, [cells(one) for one in answers])


def as_csv(answers: Sequence[HypothesisResult]) -> str:
    return spreadsheet.as_csv([("hypothesis", *HEADER[1:]), *(cells(one) for one in answers)])


ANALYSIS = Analysis()  # its study adds the table

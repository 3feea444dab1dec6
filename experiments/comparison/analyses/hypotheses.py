"""Declared hypotheses, each answered by one metric: Goal-Question-Metric (Basili et al., 1994)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.comparison.report import wording
from experiments.comparison.report.sections import Section
from experiments.comparison.verdicts import reasons
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Comparison, Finding
from experiments.metrics import Hypothesis, outcome
from tracking import plain

SENSORS = {"gpu/temperature": "gpu", "cpu/temperature": "cpu_temperature", "gpu/utilization": "gpu"}
HEADER = (
    *("", "question: metric", "answer", "effect", "95 % interval", "p", "p (Holm)", "equivalent"),
    *("blocks", "published p"),
)
CAPTION = (
    "{goal} H0 of each: the metric is the same on both sides; H1: it differs. Declared before "
    "measuring. The answer also states whether a difference exceeds the margin. "
    "Holm’s correction spans the primary outcomes, and separately all others."
)
# Text on the margin of a difference that is shown.
SIZES = {
    Decision.DIFFERENT: "by more than the margin",
    Decision.WITHIN_MARGIN: "by less than the margin",
    Decision.CONSTANT: "by less than the margin",
    Decision.SIZE_OPEN: "perhaps by less than the margin",
}


@dataclass(frozen=True)
class HypothesisResult:
    """Result of one hypothesis for one level in one stratum.

    Attributes:
        finding: None if it could not be tested.
        reason: why it could not be tested.
    """

    hypothesis: Hypothesis
    finding: Finding | None
    reason: str = ""


def answered(hypotheses: Sequence[Hypothesis], comparison: Comparison) -> list[HypothesisResult]:
    """Answer every hypothesis for every pair of levels and stratum that was compared."""
    results = []
    for hypothesis in hypotheses:
        findings = [
            finding for finding in comparison.findings if finding.row.metric == hypothesis.metric
        ]
        tested = [
            HypothesisResult(hypothesis, finding) for finding in findings if finding.row.n_blocks
        ]
        if not tested:
            causes = [
                reason
                for prefix, sensor in SENSORS.items()
                if hypothesis.metric.removeprefix("inference/").startswith(prefix)
                for name, reason in comparison.missing_sensors.items()
                if name.startswith(sensor)
            ]
            causes += [finding.row.reason for finding in findings]
            reason = next(iter(causes), "no block measured it on both sides")
            tested = [HypothesisResult(hypothesis, None, reason)]
        results += tested
    return results


def text(result: HypothesisResult) -> str:
    """Return the answer on H0, that nothing differs, and on the margin."""
    finding = result.finding
    if finding is None:
        return f"not testable here: {result.reason}"
    row, margin = finding.row, f"±{wording.amount(finding.row.margin, finding)}"
    if finding.different:
        name = wording.names(finding)[1]
        return f"H0 rejected: {name} is {finding.way}, {SIZES[finding.decision]} ({margin})"
    if not finding.judged:
        return f"open: {reasons.phrase(finding)}"
    if finding.identical:
        return f"no difference: identical in {wording.blocks(row.n_blocks)}"
    return f"no difference beyond the margin ({margin})"


def cells(result: HypothesisResult) -> tuple[str, ...]:
    """Return the cells of `HEADER`."""
    hypothesis, finding = result.hypothesis, result.finding
    numbers, stratum = ((wording.NONE,) * 5 + ("0",)), ""
    if finding:
        row = finding.row
        stratum = f", {row.stratum}" if row.stratum else ""
        numbers = (
            *(wording.effect(finding), wording.effect_interval(finding)),
            *(wording.p_value(row.p), wording.p_value(row.p_holm)),
            {True: "yes", False: "no", None: wording.NONE}[row.equivalent],
            str(row.n_blocks),
        )
    label = outcome(hypothesis.metric).label
    return (
        hypothesis.name,
        f"{hypothesis.question} ({hypothesis.phase}{stratum}): {label}",
        text(result),
        *numbers,
        hypothesis.published_p,
    )


def sentence(results: Sequence[HypothesisResult]) -> str:
    """Return how many hypotheses have which answer."""
    findings = [result.finding for result in results if result.finding]
    rejected = [finding for finding in findings if finding.different]
    equal = sum(finding.judged and not finding.different for finding in findings)
    still_open, untested = len(findings) - len(rejected) - equal, len(results) - len(findings)
    return (
        f"Null hypotheses (the metric is the same): {len(results)}. Rejected: {len(rejected)}, "
        f"no difference beyond the margin: {equal}, open: {still_open}, not testable: {untested}."
    )


def section(results: Sequence[HypothesisResult], goal: str) -> Section:
    """Return the table of hypotheses."""
    caption, rows = CAPTION.format(goal=goal), list(map(cells, results))
    return Section("The hypotheses, one by one", caption, HEADER, rows)


def as_csv(results: Sequence[HypothesisResult]) -> str:
    """Return the table of hypotheses as CSV."""
    return plain.as_csv([("hypothesis", *HEADER[1:]), *map(cells, results)])

"""Conditions on verdicts, by which a call fails: `slower:throughput`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from experiments.comparison.runs.pairing import FailedRuns
from experiments.comparison.statistics import outliers
from experiments.comparison.verdicts.decision import ALPHA, Decision
from experiments.comparison.verdicts.findings import Comparison, Finding
from experiments.metrics import SHORT, Outcome, without_batch
from tracking import plain
from tracking.errors import ErrorCode, UsageError, suggestion

WORSE, RUNS_FAILED = "worse", "failed"
VERDICTS = (WORSE, "slower", "faster", "higher", "lower")


@dataclass(frozen=True)
class Condition:
    """Verdict beyond the margin of any level against its baseline.

    Attributes:
        verdict: As in the verdict table; `worse` is the side that the metric's `better` excludes.
        metric: Its key, with or without a batch size; empty for the primary outcomes, or for all
            outcomes if none is declared.
        limit_percent: Of `failed`, the share of failed runs that is still accepted.
    """

    verdict: str
    metric: str = ""
    limit_percent: float | None = None

    def __str__(self) -> str:
        limit = "" if self.limit_percent is None else f"{self.limit_percent:g}"
        return ":".join(filter(None, (self.verdict, self.metric, limit)))

    def names(self, metric: str) -> bool:
        """Return whether the condition is about a metric."""
        return self.metric in ("", metric, without_batch(metric))

    def findings(self, comparison: Comparison) -> list[Finding]:
        """Return the rows and summaries that the condition is about."""
        rows = [*comparison.findings, *comparison.summaries]
        if self.metric:
            return [finding for finding in rows if self.names(finding.row.metric)]
        if comparison.primary:
            return [finding for finding in rows if finding.primary]
        return rows

    def failures(self, comparison: Comparison) -> list[FailedRuns]:
        """Return the levels by whose failed runs the condition holds.

        Of `worse`, those that fail more often than the baseline by Fisher's exact test at 5 %.
        """
        by_level = {failure.level: failure for failure in comparison.failures}
        baseline = by_level.pop(comparison.baseline, None)
        if self.limit_percent is not None:
            limit = self.limit_percent / 100
            return [level for level in by_level.values() if level.failed > limit * level.runs]
        if self.verdict != WORSE or self.metric:
            return []
        failed, runs = (baseline.failed, baseline.runs) if baseline else (0, None)
        return [
            level
            for level in by_level.values()
            if outliers.more_p(level.failed, level.runs, failed, runs or level.runs) <= ALPHA
        ]

    def can_match(self, outcome: Outcome) -> bool:
        """Return whether the verdict is one that this outcome can have."""
        if self.verdict == WORSE:
            return outcome.better != "neither"
        return self.verdict in outcome.words

    def matches(self, finding: Finding) -> bool:
        """Return whether a finding is settled beyond its margin, with this verdict."""
        if finding.decision is not Decision.DIFFERENT:
            return False
        return (
            finding.good is False if self.verdict == WORSE else finding.row.verdict == self.verdict
        )


def parse(texts: Iterable[str]) -> tuple[Condition, ...]:
    """Return the conditions of the setting `fail_if`. Raises UsageError for an unknown verdict."""
    conditions = []
    for text in texts:
        verdict, _, metric = text.partition(":")
        if verdict == RUNS_FAILED:
            conditions.append(Condition(verdict, limit_percent=_percent(text, metric or "0")))
            continue
        if verdict not in VERDICTS:
            raise UsageError(
                ErrorCode.UNKNOWN_NAME,
                f"fail_if={plain.short(text)} is no verdict; write one of {', '.join(VERDICTS)}, "
                "with a metric if you like: slower:throughput; or failed:PERCENT",
            )
        conditions.append(Condition(verdict, SHORT.get(metric, metric)))
    return tuple(conditions)


def _percent(text: str, number: str) -> float:
    if not re.fullmatch(r"\d{1,2}|\d{0,2}\.\d+", number):
        raise UsageError(
            ErrorCode.INVALID_VALUE,
            f"fail_if={plain.short(text)}: write the accepted share of failed runs in percent, "
            "from 0 to below 100: failed:10",
        )
    return float(number)


def check(
    conditions: Iterable[Condition],
    outcomes: Collection[Outcome],
    primary: Collection[str] = (),
    hint: str = "",
) -> None:
    """Check that conditions are about outcomes that are judged, and about verdicts of these.

    Args:
        conditions: Those of a call.
        outcomes: All that are judged.
        primary: Keys of the primary ones.
        hint: What makes another metric an outcome, as the end of a sentence.

    Raises:
        UsageError: For a condition that can never hold.
    """
    for condition in conditions:
        if condition.limit_percent is not None:
            continue
        text = f"fail_if={plain.short(str(condition))}"
        named = [outcome for outcome in outcomes if condition.names(outcome.metric)]
        if condition.metric and not named:
            right = suggestion(condition.metric, [outcome.metric for outcome in outcomes])
            raise UsageError(ErrorCode.UNKNOWN_NAME, f"{text} names no outcome here{hint}{right}")
        if primary and not condition.metric:
            named = [outcome for outcome in named if outcome.metric in primary]
        if named and not any(map(condition.can_match, named)):
            metrics = ", ".join(outcome.metric for outcome in named)
            possible = [
                verdict for verdict in VERDICTS if any(map(Condition(verdict).can_match, named))
            ]
            raise UsageError(
                ErrorCode.INVALID_VALUE,
                f"{text} can never hold; write {' or '.join(possible)} for {metrics}",
            )


def are_settled(conditions: Iterable[Condition], comparison: Comparison) -> bool:
    """Return whether every condition has a verdict to hold or not; without any, if there is one."""
    return comparison.has_verdict and all(
        any(finding.judged for finding in condition.findings(comparison))
        for condition in conditions
        if condition.limit_percent is None
    )


def matching(
    conditions: Iterable[Condition], comparison: Comparison
) -> dict[str, list[Finding | FailedRuns]]:
    """Return the conditions that hold, with the findings or failed runs by which they do."""
    by_text: dict[str, list[Finding | FailedRuns]] = {
        str(condition): [
            *condition.failures(comparison),
            *filter(condition.matches, condition.findings(comparison)),
        ]
        for condition in conditions
    }
    return {text: evidence for text, evidence in by_text.items() if evidence}


def without_runs(conditions: Iterable[Condition], comparison: Comparison) -> list[Condition]:
    """Return the conditions about outcomes that no run has."""
    return [
        condition
        for condition in conditions
        if condition.limit_percent is None and not condition.findings(comparison)
    ]

"""Hypotheses declared beforehand, each answered by one metric of a comparison: Goal-Question-Metric (Basili et al., 1994)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.comparison.verdicts.findings import Comparison, Finding
from experiments.config.outcomes import Hypothesis

SENSORS = {"gpu/temperature": "gpu", "cpu/temperature": "cpu_temperature", "gpu/utilization": "gpu"}


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
        rows = [finding for finding in comparison.findings if finding.row.metric == one.metric and finding.row.n_blocks]
        found += [HypothesisResult(one, finding.row.b, finding.row.stratum, finding) for finding in rows]
        if not rows:
            found.append(HypothesisResult(one, "", "", None, _why(one, comparison)))
    return found


def _why(one: Hypothesis, comparison: Comparison) -> str:
    plain = one.metric.removeprefix("inference/")
    for beginning, sensor in SENSORS.items():
        if plain.startswith(beginning):
            told = [reason for name, reason in comparison.missing_sensors.items() if name.startswith(sensor)]
            if told:
                return told[0]
    unpaired = (finding.row.reason for finding in comparison.findings if finding.row.metric == one.metric)
    return next(unpaired, "no two runs of one block have it")

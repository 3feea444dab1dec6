"""Decision procedure, on effects whose answer is certain."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.comparison import compare
from experiments.comparison.report import wording
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.decision import Decision, Effect, paired
from tests.experiments.comparison.campaigns import paired as table_of


@pytest.mark.parametrize(
    ("low", "high", "different", "equivalent", "decision"),
    [
        (0.2, 0.4, True, False, Decision.DIFFERENT),
        (-0.4, -0.2, True, False, Decision.DIFFERENT),
        (0.05, 0.3, True, False, Decision.SIZE_OPEN),
        (0.01, 0.05, True, True, Decision.WITHIN_MARGIN),
        (-0.05, 0.05, False, True, Decision.EQUIVALENT),
        (-0.3, 0.3, False, False, Decision.OPEN),
        # beyond the margin, but not after the correction for many tests
        (0.2, 0.4, False, False, Decision.OPEN),
    ],
)
def test_evidence_decides(low, high, different, equivalent, decision):
    effect = Effect(
        Estimate((low + high) / 2, low, high), 0.1, different=different, equivalent=equivalent
    )
    assert effect.decision is decision
    assert decision.is_verdict == (decision not in (Decision.OPEN, Decision.SIZE_OPEN))


@pytest.mark.parametrize(
    ("shift", "decision"),
    [(0.0, Decision.EQUIVALENT), (0.5, Decision.DIFFERENT), (-0.5, Decision.DIFFERENT)],
)
def test_size_decides_on_constant_shifts(shift, decision):
    assert paired([shift] * 6, 0.1).decision is decision


def test_interval_and_equivalence_decide_on_paired_shifts():
    rng = np.random.default_rng(0)
    assert paired(rng.normal(0, 0.01, 12), 0.1).decision is Decision.EQUIVALENT
    assert paired(rng.normal(0.05, 0.01, 12), 0.1).decision is Decision.WITHIN_MARGIN
    assert paired(rng.normal(0, 1, 12), 0.1).decision is Decision.OPEN


def test_interval_wider_than_floats_is_open():
    """The logarithms' interval is ±790: as ratios its ends are 0 and beyond the greatest float."""
    finding = compare(table_of([1.0] * 6, [1e300, 1e-300] * 3)).findings[0]
    row = finding.row
    assert (row.verdict, row.ci_low, row.ci_high) == ("inconclusive", 0.0, None)
    assert wording.sentence(finding)

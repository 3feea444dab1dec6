"""Tests of reasons in tables: a few words for every code."""

from __future__ import annotations

import pytest

from experiments.comparison import compare
from experiments.comparison.runs.pairing import Mismatch
from experiments.comparison.verdicts import reasons
from experiments.comparison.verdicts.decision import Decision, NoEstimate, Withheld
from tests.experiments.comparison.campaigns import frame

CODES = {*Mismatch, *NoEstimate, *Withheld, *Decision}
# Codes that come with another one, or whose words hold a number.
OTHERS = {NoEstimate.NOT_COMPARABLE, Decision.TOO_FEW, Withheld.TOO_FEW_BLOCKS}


def test_every_reason_code_has_three_to_eight_words() -> None:
    assert reasons.PHRASES.keys() == CODES - OTHERS
    assert all(3 <= len(phrase.split()) <= 8 for phrase in reasons.PHRASES.values())


@pytest.mark.parametrize("blocks", [1, 2, 5, 8])
@pytest.mark.parametrize("pairing", ["isolated", "interleaved"])
def test_every_row_has_a_phrase_and_an_explanation(blocks: int, pairing: str) -> None:
    table = frame(blocks=blocks, factors={"tensorflow": 1.04}, params={"pairing": pairing})
    for finding in compare(table, baseline="pytorch").findings:
        assert 3 <= len(reasons.phrase(finding).split()) <= 8
        explanation = reasons.explanation(finding)
        assert explanation.endswith(".")
        assert not explanation[0].islower()

"""Error rates in the small, and limits that can be refuted."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.error_rates import LIMITS, OUTCOMES, keeps, shares


@pytest.mark.parametrize("outcomes", OUTCOMES)
def test_limits_are_not_refuted(outcomes: int) -> None:
    rates = shares(outcomes, 400)
    assert rates.keys() == LIMITS.keys()
    assert [rate for rate, values in rates.items() if not keeps(rate, values)] == []


def test_wrong_rates_are_refuted() -> None:
    """Four rows of ten wrong, or every report without power."""
    for rate, (least, _) in LIMITS.items():
        assert not keeps(rate, np.full(400, 0.4) if least < 0.9 else np.zeros(400)), rate

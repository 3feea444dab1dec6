"""Fixtures of the tests of experiments."""

from __future__ import annotations

import pytest

from experiments.comparison.statistics import power


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict further blocks at a probability of 90 %: at 95 % they are rare for one outcome."""
    monkeypatch.setattr(power, "PREDICTED", 0.9)

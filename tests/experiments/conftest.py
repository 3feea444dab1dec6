"""Of the tests of plans."""

from __future__ import annotations

import pytest

from experiments.comparison.statistics import power


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of further blocks as often as at a predicted probability of 90 %: of single outcomes they are rare."""
    monkeypatch.setattr(power, "PREDICTED", 0.9)

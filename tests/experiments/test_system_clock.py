"""Jumps of the system's clock: detected, and not followed by the times of a campaign."""

from __future__ import annotations

import pytest

from tracking import clock


@pytest.mark.parametrize(
    ("moved", "said"), [(-3_600.0, 3_600.0), (-1.0, 0.0), (0.5, 0.0), (120.0, -120.0)]
)
def test_clock_jump_differs_from_drift(
    monkeypatch: pytest.MonkeyPatch, moved: float, said: float
) -> None:
    """moved: by which the system's clock is set."""
    system = clock.time.time
    own = clock.Clock()
    before = own.now()
    monkeypatch.setattr(clock.time, "time", lambda: system() + moved)
    assert own.set_back() == pytest.approx(said, abs=0.1)
    assert own.set_back() == 0
    assert 0 <= own.now() - before < 10

"""Jumps of the system's clock: detected, and not followed by the times of a campaign."""

from __future__ import annotations

import pytest

from tracking import clock


@pytest.mark.parametrize(
    ("moved", "reported"), [(-3_600.0, 3_600.0), (-1.0, 0.0), (0.5, 0.0), (120.0, -120.0)]
)
def test_clock_jump_differs_from_drift(
    monkeypatch: pytest.MonkeyPatch, moved: float, reported: float
) -> None:
    system_time = clock.time.time
    campaign_clock = clock.Clock()
    before = campaign_clock.now()
    monkeypatch.setattr(clock.time, "time", lambda: system_time() + moved)
    assert campaign_clock.set_back() == pytest.approx(reported, abs=0.1)
    assert campaign_clock.set_back() == 0
    assert 0 <= campaign_clock.now() - before < 10

"""Campaigns that stop when they know, simulated and judged by the same code as real ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from experiments.calibration import stopping
from experiments.calibration.simulation import MARGIN, Share
from experiments.calibration.stopping import TRUTHS, Stops, Truth, calibrate, meets


def few(truth: Truth) -> Truth:
    """With two metrics, so that twenty campaigns take seconds."""
    return replace(truth, noise=replace(truth.noise, metrics=2))


def test_promises_hold_in_the_small() -> None:
    found = calibrate([few(TRUTHS[0])], campaigns=20)
    assert all(claim.holds for claim in meets(found)), meets(found)
    assert found[0].settled.value > 0.9, "of SD 4 % and no difference"
    assert 6 < found[0].blocks < 48


def test_a_true_difference_takes_fewer_blocks_than_a_fixed_design() -> None:
    (found,) = calibrate([few(truth) for truth in TRUTHS if truth.ratio == 1.2], campaigns=12)
    assert found.settled.value > 0.9
    assert found.fixed is not None
    assert found.blocks < found.fixed


@pytest.mark.parametrize(("ratio", "spread", "wanted"), [(1.1, 0.1, 0.9), (1.2, 0.2, 0.8)])
def test_a_fixed_design_has_the_power_it_is_said_to_have(ratio: float, spread: float, wanted: float) -> None:
    """Against 40,000 simulated campaigns of that many blocks, and of one less: shares are known to 0.6 %."""
    blocks = stopping._fixed(ratio, spread, wanted)
    assert blocks is not None

    def shown(count: int) -> float:
        drawn = np.random.default_rng(0).normal(math.log(ratio), spread, (40_000, count))
        half = stats.t.isf(0.025, count - 1) * stats.sem(drawn, axis=1)
        return float((drawn.mean(axis=1) - half > math.log1p(MARGIN)).mean())

    assert shown(blocks) >= wanted - 0.006
    assert shown(blocks - 1) <= wanted + 0.006


def test_no_fixed_design_shows_what_is_not_there() -> None:
    assert stopping._fixed(1.0, 0.1, 0.9) is None
    assert stopping._fixed(1 + MARGIN, 0.1, 0.9) is None


def test_promises_can_break() -> None:
    rare, often = Share(0.03, 0.01, 0.05), Share(0.2, 0.15, 0.25)
    base = Stops(TRUTHS[0], 500, often, 20.0, 40, rare, rare, rare, rare, rare)
    assert all(claim.holds for claim in meets([base]))
    assert sum(not claim.holds for claim in meets([replace(base, primary_false_alarms=often, missed=often)])) == 2
    edge = replace(base, truth=TRUTHS[1])
    assert all(claim.holds for claim in meets([edge]))
    assert sum(not claim.holds for claim in meets([replace(edge, equivalent=often, beyond=often)])) == 2
    gain = replace(base, truth=Truth(TRUTHS[0].noise, 1.1, gain=0.7))
    assert [claim.holds for claim in meets([gain, replace(gain, blocks=30.0)]) if "fixed" in claim.claim] == [True, False]
    assert "**does not hold**" in stopping.as_markdown([replace(base, missed=often)])


@pytest.mark.slow
def test_promises_hold_for_500_campaigns() -> None:
    found = calibrate(campaigns=500)
    print(stopping.as_markdown(found))
    assert all(claim.holds for claim in meets(found)), [claim for claim in meets(found) if not claim.holds]

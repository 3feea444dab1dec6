"""Campaigns that stop when they are settled, simulated and judged by the same code as real ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.calibration.simulation import MAIN, MARGIN, Proportion
from tests.benchmarks import stopping
from tests.benchmarks.stopping import TRUTHS, Stops, Truth, calibrate, meets


def few(truth: Truth) -> Truth:
    """Return the truth with two metrics, so that twenty campaigns take seconds."""
    return replace(truth, noise=replace(truth.noise, metrics=2))


@pytest.mark.slow
def test_promises_hold_in_the_small() -> None:
    quick = Truth(stopping._noise("run-to-run spread", 0.015), 1.0)
    stops = calibrate([few(quick)], campaigns=8)
    assert all(claim.holds for claim in meets(stops)), meets(stops)
    assert stops[0].settled.value == 1, "of SD 2 % and no difference"
    assert 6 <= stops[0].blocks < 18


@pytest.mark.slow
def test_a_true_difference_takes_fewer_blocks_than_a_fixed_design() -> None:
    (stops,) = calibrate([few(truth) for truth in TRUTHS if truth.ratio == 1.2], campaigns=12)
    assert stops.settled.value > 0.9
    assert stops.fixed is not None
    assert stops.blocks < stops.fixed


@pytest.mark.slow
def test_the_fixed_design_is_the_least_that_has_a_verdict_as_often() -> None:
    """Against the number before, and against a plain t interval without wider alternatives."""
    truth, rng = few(TRUTHS[-1]), np.random.default_rng(4)
    campaigns = [stopping.simulate(truth, 40, rng) for _ in range(8)]
    fixed = stopping._fixed(campaigns, 0.5)
    assert fixed is not None
    judged = [
        np.mean([stopping._judged(runs, blocks) for runs in campaigns])
        for blocks in (fixed - 1, fixed)
    ]
    assert judged[0] < 0.5 <= judged[1]

    def beyond(runs: pd.DataFrame, blocks: int) -> bool:
        times = runs.assign(block=pd.to_numeric(runs["block"])).pivot(
            index="block", columns="framework", values=MAIN
        )
        drawn = np.log(times["b"] / times["a"]).loc[:blocks]
        return bool(
            drawn.mean() - stats.t.isf(0.025, blocks - 1) * stats.sem(drawn) > math.log1p(MARGIN)
        )

    least = next(n for n in range(6, 40) if np.mean([beyond(runs, n) for runs in campaigns]) >= 0.5)
    assert least <= fixed <= 2 * least


def test_no_fixed_design_for_effects_inside_the_margin() -> None:
    quick = Truth(stopping._noise("run-to-run spread", 0.01), 1.03)
    (stops,) = calibrate([few(quick)], campaigns=1)
    assert stops.fixed is None


def test_promises_can_break() -> None:
    rare, often = Proportion(0.03, 0.01, 0.05), Proportion(0.2, 0.15, 0.25)
    base = Stops(TRUTHS[0], 500, often, 20.0, 40, rare, rare, rare, rare, rare)
    assert all(claim.holds for claim in meets([base]))
    assert (
        sum(
            not claim.holds
            for claim in meets([replace(base, primary_false_alarms=often, missed=often)])
        )
        == 2
    )
    edge = replace(base, truth=TRUTHS[1])
    assert all(claim.holds for claim in meets([edge]))
    assert (
        sum(not claim.holds for claim in meets([replace(edge, equivalent=often, beyond=often)]))
        == 2
    )
    gain = replace(base, truth=Truth(TRUTHS[0].noise, 1.1, gain=0.7))
    assert [
        claim.holds for claim in meets([gain, replace(gain, blocks=30.0)]) if "fixed" in claim.claim
    ] == [True, False]
    assert "**does not hold**" in stopping.as_markdown([replace(base, missed=often)])


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_promises_hold_for_60_campaigns() -> None:
    stops = calibrate(campaigns=60)
    print(stopping.as_markdown(stops))
    assert [claim for claim in meets(stops) if not claim.holds] == []

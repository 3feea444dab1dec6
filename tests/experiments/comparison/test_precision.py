"""Where the spread of runs comes from: simulated campaigns whose parts are known, and what a report says of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from experiments.comparison import compare
from experiments.comparison.analyses import precision
from experiments.comparison.runs.raw import RawRun
from experiments.comparison.statistics.components import (
    Components,
    Slope,
    components,
    error_of_steps,
    slope,
)
from tests.experiments.comparison.campaigns import paired
from tests.experiments.comparison.steps import phase


def campaign(
    blocks: int,
    *,
    process: float = 0.02,
    block: float = 0.04,
    drift: float = 0.0,
    apart: float = 0.0,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of both sides, block by block; drift, apart: rises over the whole campaign."""
    rng, time = np.random.default_rng(seed), np.arange(blocks) / max(1, blocks - 1)
    shared = rng.normal(0, block, blocks) + drift * time
    return shared + rng.normal(0, process, blocks), 0.1 + shared + apart * time + rng.normal(
        0, process, blocks
    )


@pytest.mark.parametrize(
    "known",
    [
        {"process": 0.02, "block": 0.04},
        {"process": 0.05, "block": 0.01, "drift": 0.3},
        {"process": 0.01, "block": 0.03, "apart": 0.2},
        {"process": 0.03, "block": 0.05, "drift": -0.2, "apart": 0.1},
    ],
)
def test_parts_that_are_known_are_found(known: dict[str, float]) -> None:
    """4,000 blocks know an SD to 1.1 %, and one of blocks beside processes five times as large to 40 %: 0.004."""
    found = components(*campaign(4_000, seed=1, **known))
    assert found.process == pytest.approx(known["process"], rel=0.05)
    assert found.block == pytest.approx(known["block"], rel=0.05, abs=0.005)
    drift = (
        known.get("drift", 0.0) + known.get("apart", 0.0) / 2
    )  # the mean of both sides has half of one side's
    assert found.drift.rise == pytest.approx(
        drift, abs=4 * found.drift.residual * np.sqrt(12 / 4_000)
    )
    assert found.apart.rise == pytest.approx(
        known.get("apart", 0.0), abs=4 * found.apart.residual * np.sqrt(12 / 4_000)
    )
    assert found.drift.sd == pytest.approx(abs(drift) / np.sqrt(12), abs=0.003), (
        "of values evenly on a line"
    )


def test_few_blocks_are_right_on_average() -> None:
    """The variance between processes over 3,000 campaigns of 8 blocks: their mean is known to 1 %."""
    found = [components(*campaign(8, drift=0.5, seed=seed)).process ** 2 for seed in range(3_000)]
    assert np.mean(found) == pytest.approx(0.02**2, rel=0.04)


def test_the_line_is_that_of_least_squares() -> None:
    values = np.random.default_rng(3).normal(0, 1, 14) + 0.2 * np.arange(14)
    line, found = stats.linregress(np.arange(14), values), slope(values)
    half = stats.t.ppf(0.975, 12) * line.stderr
    assert (found.rise, found.low, found.high) == pytest.approx(
        [13 * (line.slope + at * half) for at in (0, -1, 1)]
    )


def test_steps_that_resemble_each_other_leave_a_larger_error() -> None:
    """AR(1) with 0.5: √3 times the error of independent steps; ten batches of 40 find all but a few percent of it."""
    rng, found = np.random.default_rng(2), []
    for _ in range(300):
        noise = rng.normal(0, 0.1 * np.sqrt(1 - 0.25), 400)
        values = np.zeros(400)
        for at in range(1, 400):
            values[at] = 0.5 * values[at - 1] + noise[at]
        found.append(error_of_steps(values) ** 2)
    assert np.sqrt(np.mean(found)) == pytest.approx(0.1 / 20 * np.sqrt(3), rel=0.1)
    few = rng.normal(0, 0.1, 12)
    assert error_of_steps(few) == pytest.approx(stats.sem(few))


# ---- what is said


def judged(
    a: np.ndarray, b: np.ndarray, raw: list[RawRun] | None = None
) -> tuple[precision.Precision, str]:
    (finding,) = compare(paired(np.exp(a), np.exp(b))).findings
    found = precision.of_findings([finding], raw or [])
    return found[0], precision.sentence(found)


def test_the_limit_is_what_makes_most_of_a_difference() -> None:
    one, told = judged(*campaign(24, seed=5))
    assert one.limit == precision.PROCESSES
    assert "The limit is the spread between processes (SD " in told
    assert "more blocks narrow it" in told
    one, told = judged(*campaign(24, process=0.01, apart=0.3, seed=5))
    assert one.limit == precision.APART
    assert "The limit is a drift of b against a, +3" in told
    # each run's value is what its own 40 steps of 20 % leave: 3 %
    a, b = campaign(24, process=0.2 / np.sqrt(40), seed=5)
    rng = np.random.default_rng(6)
    steps = [phase("train", np.exp(rng.normal(0, 0.2, 41)), examples=1) for _ in range(48)]
    raw = [
        RawRun(f"{at}", "ab"[at % 2], "", str(at // 2), {"train": one})
        for at, one in enumerate(steps)
    ]
    one, told = judged(a, b, raw)
    assert one.limit == precision.STEPS
    assert "The limit is the spread of steps inside a process (SD 2" in told


def test_the_shares_add_up_and_the_largest_comes_first() -> None:
    one, told = judged(*campaign(48, process=0.01, block=0.05, seed=7))
    shares = precision.shares(one.parts)
    assert sum(shares.values()) == pytest.approx(1)
    assert max(shares, key=lambda name: shares[name]) == "block"
    assert "Of the variance of runs 9" in told
    assert " % lies between blocks" in told
    assert precision.shares(components(np.zeros(8), np.zeros(8))) == dict.fromkeys(shares, 0.0)


@pytest.mark.parametrize(
    ("low", "limit"), [(-0.013, precision.PROCESSES), (0.013, precision.APART)]
)
def test_a_drift_that_chance_explains_is_no_limit(low: float, limit: str) -> None:
    """Six blocks, where a line fits much by chance."""
    drift = Slope(rise=-0.05, low=-0.25, high=0.15, sd=0.0, residual=0.061)
    apart = Slope(rise=0.13, low=low, high=0.26 - low, sd=0.045, residual=0.043)
    parts = Components(process=0.0305, block=0.057, drift=drift, apart=apart)
    assert precision.Precision(None, parts, None).limit == limit  # type: ignore[arg-type]

"""Tests of the speed-up of several workers and of the cost of the exchange, on known values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import workers
from experiments.comparison.report import wording
from tests.experiments.comparison.campaigns import RATE, STEP, frame

GROUPS = {"1": (1, "none"), "2": (2, "none"), "4": (4, "none"), "4 fp16": (4, "fp16")}


def campaign(blocks: int = 6) -> pd.DataFrame:
    """Steps take 1, 1.1, 1.25 and 1.2 times as long as one worker's; a tenth is exchange."""
    table = frame(
        list(GROUPS),
        blocks,
        factors={"2": 1.1, "4": 1.25, "4 fp16": 1.2},
        params={"scaling": "weak"},
    )
    counts = table["framework"].map(lambda level: GROUPS[level][0])
    table[RATE] *= counts
    table["train/alone_step_seconds"] = 0.9 * table[STEP]
    table["check/workers"] = counts.astype(float)
    several = counts > 1
    table.loc[several, "check/weights_error"], table.loc[several, "check/weights_error_limit"] = (
        2e-16,
        1e-12,
    )
    return table


def test_overhead_is_published_formula_and_exposed_is_measured() -> None:
    table = campaign()
    gains = {gain.finding.row.b: gain for gain in workers.gains(compare(table))}
    assert {level: gain.workers for level, gain in gains.items()} == {"2": 2, "4": 4, "4 fp16": 4}
    rates = {
        level: 1 / table[table["framework"] == level].sort_values("block")[STEP].to_numpy()
        for level in GROUPS
    }
    for level, gain in gains.items():
        # Steps a second of k workers over those of one, block by block.
        logs, row = np.log(rates[level] / rates["1"]), gain.finding.row
        assert gain.overhead.value == pytest.approx(1 - np.exp(logs.mean()))
        assert gain.overhead.low == pytest.approx(1 - row.ci_high / gain.workers)
        assert gain.overhead.high == pytest.approx(1 - row.ci_low / gain.workers)
        assert gain.exposed is not None
        assert gain.exposed.value == pytest.approx(0.1)
        assert gain.speedup.value == pytest.approx(gain.efficiency.value * gain.workers)


def test_table_has_overhead_exposed_and_rest() -> None:
    speedups, proofs = workers.sections(compare(campaign()), GROUPS, "weak")
    assert [row[1] for row in speedups.rows] == ["2", "4", "4 fp16"]
    for line in speedups.rows:
        overhead, exposed, rest = (
            float(line[at].removesuffix(" %").replace("−", "-")) / 100 for at in (5, 8, 10)
        )
        assert exposed == pytest.approx(0.1, abs=0.001)
        assert (1 - exposed) * (1 - rest) == pytest.approx(1 - overhead, abs=0.002)
    assert list(proofs.rows[-1]) == ["", "4 fp16", "fp16", "2.0e-16", "1.0e-12"]


def test_one_block_has_no_interval_and_no_exchange_no_share() -> None:
    missing = ["train/alone_step_seconds", "check/weights_error", "check/weights_error_limit"]
    assert workers.sections(compare(campaign(1).drop(columns=missing)), GROUPS, "weak") == []
    (speedups,) = workers.sections(compare(campaign(3).drop(columns=missing)), GROUPS, "weak")
    assert list(speedups.rows[0][7:]) == [wording.NONE] * 4
    assert workers.gains(compare(frame())) == []

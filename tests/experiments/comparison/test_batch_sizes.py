"""Tests of throughput by batch size and of its limits."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import Evidence, batch_sizes
from experiments.comparison.analyses.batch_sizes import Limit, LimitReason, curves, find_limit
from tests.experiments.comparison.campaigns import RATE, STEP, frame


def _rates(
    means: dict[int, float], blocks: int = 12, spread: float = 0.005, seed: int = 0
) -> dict[int, dict[str, float]]:
    """Return rates of blocks that drift, which pairing must take out."""
    rng = np.random.default_rng(seed)
    drift = rng.normal(0, 0.1, blocks)
    return {
        size: {
            str(block): float(mean * np.exp(drift[block] + rng.normal(0, spread)))
            for block in range(blocks)
        }
        for size, mean in means.items()
    }


@pytest.mark.parametrize(
    ("means", "limit", "reason"),
    [
        ({1: 100, 2: 190, 4: 350, 8: 600}, None, LimitReason.NONE_NEAR_BEST),
        ({1: 100, 8: 600, 16: 601, 32: 603}, 8, LimitReason.NEAR_BEST),
        ({1: 100, 8: 600, 16: 500, 32: 520}, 8, LimitReason.NEAR_BEST),
        ({1: 100, 2: 101.5, 4: 103, 8: 104.6, 16: 106.1}, None, LimitReason.NONE_NEAR_BEST),
        ({1: 100, 2: 95, 4: 90}, None, LimitReason.NO_TREND),
        ({1: 100, 8: 100.1}, 1, LimitReason.NEAR_BEST),
    ],
)
def test_limit_is_smallest_size_within_two_percent_of_best(
    means: dict[int, float], limit: int | None, reason: LimitReason
) -> None:
    result = find_limit(_rates(means))
    assert (result.size, result.reason) == (limit, reason)
    assert (result.trend_p is None) == (len(means) == 2)


def test_limit_needs_blocks_that_hold_every_size() -> None:
    rates = _rates({1: 100, 8: 300}, blocks=8)
    rates[8] = {f"other {block}": value for block, value in rates[8].items()}
    assert find_limit(rates) == Limit(LimitReason.TOO_FEW_BLOCKS)


def test_false_limits_are_rare() -> None:
    """Gains of 5 % a step: TOST passes at most 5 % of the pairs, here hardly any."""
    limits = [
        find_limit(_rates({1: 100, 2: 105, 4: 110.25}, blocks=8, spread=0.01, seed=seed)).size
        for seed in range(60)
    ]
    assert sum(size is not None for size in limits) <= 3


def with_inference(table: pd.DataFrame, sizes: tuple[int, ...] = (1, 8, 16)) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    for size in sizes:
        prefix = "inference/" if size == sizes[0] else f"inference/batch_{size}/"
        rate = 50.0 * min(size, 8) * np.exp(rng.normal(0, 0.004, len(table)))
        table[f"{prefix}examples_per_second"] = rate
        table[f"{prefix}latency_seconds_p50"] = size / rate
    return table.assign(**{"params.inference_batch_sizes": ",".join(map(str, sizes))})


def test_inference_has_curve_for_each_level() -> None:
    table = with_inference(frame(blocks=10))
    results = batch_sizes.from_evidence(Evidence(compare(table), table))
    assert [(curve.phase, curve.level, curve.limit.size) for curve in results] == [
        ("inference", "pytorch", 8),
        ("inference", "tensorflow", 8),
    ]
    assert list(results[0].rates) == [1, 8, 16]
    assert results[0].rates[1] == pytest.approx(50, rel=0.01)


def test_no_curve_without_first_size_or_with_one_size() -> None:
    assert curves(compare(with_inference(frame(), (1,))), 1) == ()
    assert curves(compare(with_inference(frame(), (1, 8))), None) == ()
    mixed = with_inference(frame())
    mixed.loc[0, "params.inference_batch_sizes"] = "2,8"
    results = batch_sizes.from_evidence(Evidence(compare(mixed), mixed))
    assert [list(curve.rates) for curve in results] == [[8, 16]] * 2


def sized() -> pd.DataFrame:
    tables = []
    for size in (8, 16, 32):
        table = frame(blocks=8, seed=size, params={"batch_size": str(size)}, spread=0.003)
        table["run_id"] += f"-{size}"
        table[RATE] *= min(size, 16) / 16
        table[STEP] *= size / 16
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def test_training_has_curve_if_batch_size_is_stratum_or_factor() -> None:
    table = sized()
    results = curves(compare(table, strata=["batch_size"]))
    assert [(curve.phase, curve.level, curve.stratum, curve.limit.size) for curve in results] == [
        ("training", "pytorch", "", 16),
        ("training", "tensorflow", "", 16),
    ]
    comparison = compare(table[table["framework"] == "pytorch"], factor="batch_size")
    (curve,) = curves(comparison)
    assert (curve.level, curve.limit.size) == ("", 16)
    assert list(curve.rates) == [8, 16, 32]

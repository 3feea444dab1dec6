"""Simulated campaigns for the comparison's tests: runs, and tables of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.comparison.runs.query import table
from experiments.comparison.verdicts.findings import Comparison, Finding
from tracking.records import StoredRun

STEP, RATE, LATENCY = (
    "train/step_seconds",
    "train/examples_per_second",
    "inference/latency_seconds_p50",
)
RSS, BLEU, LOSS = "memory/peak_rss_bytes", "val/bleu4", "val/loss"
ORIGIN_MS = 1_760_000_000_000


def runs(
    levels: Sequence[str] = ("pytorch", "tensorflow"),
    blocks: int = 8,
    *,
    seed: int = 0,
    factors: Mapping[str, float] | None = None,
    spread: float = 0.01,
    campaign: str = "c1",
    tags: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
) -> Iterator[StoredRun]:
    """Yield each level once a block in random order.

    Args:
        factors: multiply the time of a step.
        spread: SD of its logarithm.
    """
    rng = np.random.default_rng(seed)
    for block in range(blocks):
        drift = 0.02 * block
        for order, at in enumerate(rng.permutation(len(levels)).tolist()):
            level = levels[at]
            step = 0.03 * (factors or {}).get(level, 1.0) * np.exp(drift + rng.normal(0, spread))
            metrics = {
                STEP: float(step),
                RATE: float(32 / step),
                LATENCY: float(0.01 * np.exp(drift + rng.normal(0, spread))),
                RSS: float(7e8 * np.exp(rng.normal(0, 0.001))),
                LOSS: 3.2 + block,
                BLEU: 0.0,
            }
            defaults = {
                "kind": "cell",
                "campaign": campaign,
                "framework": level,
                "model": "m",
                "dataset": "d",
                "block": str(block),
                "order_in_block": str(order),
                "settings_hash": "h",
                "machine": "box",
                "environment": "e",
                "outcome": "ok",
            }
            started = ORIGIN_MS + 60_000 * block + 1_000 * (order + 1)
            yield StoredRun(
                f"{campaign}-{block}-{level}",
                f"{level} · block {block}",
                "FINISHED",
                started,
                started + 900,
                {"batch_size": "32", "framework": level, **(params or {})},
                metrics,
                {**defaults, **(tags or {})},
            )


def frame(*args: object, **kwargs: object) -> pd.DataFrame:
    """Return the runs as a table."""
    return table(runs(*args, **kwargs))  # type: ignore[arg-type]


def paired(a: Sequence[float], b: Sequence[float], metric: str = STEP) -> pd.DataFrame:
    """Return the least that can be compared: a metric of two levels, block by block."""
    rows = [
        {
            "run_id": f"{level}{block}",
            "status": "FINISHED",
            "framework": level,
            "block": block,
            metric: value,
        }
        for level, values in (("a", a), ("b", b))
        for block, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def finding(comparison: Comparison, metric: str = STEP) -> Finding:
    """Return the first finding on a metric."""
    return next(finding for finding in comparison.findings if finding.row.metric == metric)

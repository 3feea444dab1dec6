"""Simulated steps and requests of the runs that `campaigns.frame` makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from experiments.comparison.runs.raw import Phase, RawRun, shown


def phase(
    name: str, seconds: Sequence[float] | np.ndarray, examples: int = 32, warmup: int = 1
) -> Phase:
    """Return steps of which the first `warmup` do not count."""
    values = np.asarray(seconds, dtype=float)
    return Phase(
        name, values, np.full(len(values), float(examples)), np.arange(len(values)) < warmup
    )


def raw_runs(
    table: pd.DataFrame,
    *,
    strata: Sequence[str] = (),
    sizes: Sequence[int] = (1, 8),
    requests: int = 400,
    steps: int = 120,
    factors: Mapping[str, float] | None = None,
    seed: int = 0,
    maximum: int = 48,
) -> list[RawRun]:
    """Return a training with a slow first step, and requests with a heavy tail."""
    rng = np.random.default_rng(seed)
    runs = []
    for run in shown(table, strata=strata, maximum=maximum):
        factor = (factors or {}).get(run.level, 1.0) * np.exp(rng.normal(0, 0.01))
        train = 0.03 * factor * np.exp(rng.normal(0, 0.02, steps))
        train[0] *= 20
        phases = {"train": phase("train", train, warmup=10)}
        for size in sizes:
            seconds = 0.01 * factor * size**0.6 * np.exp(rng.gamma(0.6, 0.12, requests + 1))
            phases[f"inference_batch_{size}"] = phase(
                f"inference_batch_{size}", seconds, examples=size
            )
        runs.append(replace(run, phases=phases))
    return runs

"""Simulated steps, requests and sensors of the runs that `campaigns.frame` makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.comparison.runs.raw import Phase, RawRun, Series, shown

POWER, HEAT = "system/gpu_0_power_usage_watts", "system/gpu_0_temperature_celsius"


def phase(name: str, seconds: Sequence[float] | np.ndarray, examples: int = 32, warmup: int = 1) -> Phase:
    """Steps of which the first `warmup` do not count."""
    values = np.asarray(seconds, dtype=float)
    return Phase(name, values, np.full(len(values), float(examples)), np.arange(len(values)) < warmup)


def raw_runs(
    table: pd.DataFrame,
    *,
    strata: Sequence[str] = (),
    sizes: Sequence[int] = (1, 8),
    requests: int = 400,
    steps: int = 120,
    sensors: bool = True,
    factors: Mapping[str, float] | None = None,
    seed: int = 0,
    maximum: int = 48,
) -> list[RawRun]:
    """A training with a slow first step, requests with a heavy tail, a power that rises and a temperature that follows."""
    rng = np.random.default_rng(seed)
    found = []
    for run in shown(table, strata=strata, maximum=maximum):
        factor = (factors or {}).get(run.level, 1.0) * np.exp(rng.normal(0, 0.01))
        train = 0.03 * factor * np.exp(rng.normal(0, 0.02, steps))
        train[0] *= 20
        phases = {"train": phase("train", train, warmup=10)}
        for size in sizes:
            seconds = 0.01 * factor * size**0.6 * np.exp(rng.gamma(0.6, 0.12, requests + 1))
            phases[f"inference_batch_{size}"] = phase(f"inference_batch_{size}", seconds, examples=size)
        at = np.arange(0, 60, 0.5)
        watts = 80 + 220 * (at > 8) + rng.normal(0, 6, len(at))
        heat = 40 + 30 * (1 - np.exp(-np.maximum(at - 8, 0) / 15)) + rng.normal(0, 0.4, len(at))
        told = {POWER: Series(POWER, at, watts), HEAT: Series(HEAT, at, heat)} if sensors else {}
        found.append(RawRun(run.run_id, run.level, run.stratum, run.block, phases, told, 12.0 if sensors else None))
    return found

"""Steady states of simulated runs, and the rate of wrong classifications."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from experiments.comparison.analyses import steadiness
from experiments.comparison.runs.raw import RawRun
from experiments.comparison.statistics import steady
from tests.experiments.comparison.steps import phase

RUNS = 100


def _kinds(make: Callable[[np.random.Generator], np.ndarray], runs: int = RUNS) -> Counter[str]:
    rng = np.random.default_rng(7)
    return Counter(steady.classify(make(rng)).kind for _ in range(runs))


def _noise(rng: np.random.Generator, steps: int, spread: float = 0.02) -> np.ndarray:
    return 0.03 * np.exp(rng.normal(0, spread, steps))


# 100 runs: a rate of 0.97 has a standard error below 0.02, so 0.9 lies four of them away.
@pytest.mark.parametrize("steps", [100, 400])
@pytest.mark.parametrize("spread", [0.005, 0.02, 0.05])
def test_flat_steps_are_steady(steps, spread):
    assert _kinds(lambda rng: _noise(rng, steps, spread))["steady"] >= 0.9 * RUNS


@pytest.mark.parametrize("steps", [100, 400])
def test_warm_up_has_its_length(steps):
    rng, starts = np.random.default_rng(3), []
    for _ in range(RUNS):
        seconds = _noise(rng, steps)
        seconds[: steps // 5] *= 1.2
        state = steady.classify(seconds)
        if state.kind == "warm-up, then steady":
            starts.append(state.first_steady_step)
    assert len(starts) >= 0.95 * RUNS
    # medians of five have a resolution of five steps
    assert abs(np.median(starts) - steps // 5) <= 5


@pytest.mark.parametrize("drift", [0.05, 0.1, 0.3])
def test_drift_is_no_steady_state(drift):
    """A drift is a staircase to changepoints, whose top looks flat."""
    kinds = _kinds(lambda rng: _noise(rng, 400) * np.linspace(1, 1 + drift, 400))
    assert kinds["no steady state"] >= 0.93 * RUNS


def test_two_modes_are_no_steady_state_and_rare_spikes_are_forgiven():
    modes = np.where(np.arange(400) // 50 % 2, 1.1, 1.0)
    kinds = _kinds(lambda rng: _noise(rng, 400, 0.01) * modes)
    assert kinds["no steady state"] >= 0.97 * RUNS
    kinds = _kinds(lambda rng: _noise(rng, 400) * np.where(rng.random(400) < 0.05, 5.0, 1.0))
    assert kinds["steady"] >= 0.88 * RUNS


def test_first_step_is_left_out_and_constants_are_steady():
    seconds = np.full(120, 0.01)
    seconds[0] = 100.0
    state = steady.classify(seconds)
    assert (state.kind, state.first_steady_step) == ("steady", 1)


@pytest.mark.parametrize("steps", [0, 1, 20, 75])
def test_few_steps_are_not_classified(steps):
    state = steady.classify(np.ones(steps))
    assert state.kind == "too few steps"
    assert state.first_steady_step is None


def test_summaries_from_before_the_steady_state():
    rng = np.random.default_rng(0)
    late = _noise(rng, 200)
    late[:60] *= 1.3
    runs = [
        RawRun("1", "a", "", "0", {"train": phase("train", late, warmup=10)}),
        RawRun("2", "a", "", "1", {"train": phase("train", late, warmup=70)}),
        RawRun("3", "b", "", "0", {"features": phase("features", _noise(rng, 30))}),
        RawRun("4", "b", "", "1", {}),
    ]
    results = steadiness.of_runs(runs)
    assert [result.measured_too_early for result in results] == [True, False, False]
    assert [result.warmup_steps for result in results[:2]] == [10, 70]


def test_free_steps_are_classified_by_windows():
    """A window has ten steps, an epoch's last window five."""
    rng = np.random.default_rng(0)
    windows = phase("train_windows", _noise(rng, 200), warmup=0)
    examples = np.where(np.arange(200) % 10 == 9, 160.0, 320.0)
    windows = replace(windows, seconds=windows.seconds * examples, examples=examples)
    warm = phase("train", 5 * _noise(rng, 10), warmup=10)
    (result,) = steadiness.of_runs(
        [RawRun("1", "a", "", "0", {"train": warm, "train_windows": windows})]
    )
    assert (result.phase, result.steady.kind, result.warmup_steps) == ("train_windows", "steady", 0)

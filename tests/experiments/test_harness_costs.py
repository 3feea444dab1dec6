"""Cost of measuring: this harness and the framework's plain loop, in turns in one process."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.comparison.statistics import estimates
from tests.models.children import run_in

# Network, rows, pairs of steps: so many that each takes some seconds.
POINTS = (
    ("lenet", 1, 1_000),
    ("lenet", 32, 200),
    ("mobilenet_v2", 1, 80),
    ("mobilenet_v2", 32, 24),
    ("resnet18", 1, 60),
    ("resnet18", 32, 24),
)
PROCESSES = 8  # an even number: half of them build the harness first, half the plain loop
MOST = 1.02


def measure_ratios(framework: str, *point: object, first: str = "harness") -> dict[str, float]:
    """Return the time in the harness over that in the plain loop, of steps and of requests."""
    words = (framework, *map(str, point), first)
    output = run_in(framework, "-m", "tests.experiments.harness_costs", *words).stdout
    ratios: dict[str, float] = json.loads(output.splitlines()[-1])
    return ratios


@pytest.mark.parametrize(
    "framework", ["pytorch", pytest.param("tensorflow", marks=pytest.mark.slow)]
)
def test_both_loops_are_timed(framework: str) -> None:
    assert all(0.3 < ratio < 3 for ratio in measure_ratios(framework, "lenet", 8, 40).values())


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_harness_costs_at_most_two_percent(framework: str) -> None:
    """Average over three networks with batches of 1 and 32; the points are printed."""
    orders = ["harness", "plain"] * (PROCESSES // 2)
    ratios = {
        point: [measure_ratios(framework, *point, first=first) for first in orders]
        for point in POINTS
    }
    for phase in ("training", "requests"):
        logs = {
            point: np.log([ratio[phase] for ratio in processes])
            for point, processes in ratios.items()
        }
        for point, values in logs.items():
            print(framework, phase, *point, estimates.exponential(estimates.mean(values)))
        whole = estimates.exponential(estimates.mean(np.mean(list(logs.values()), axis=0)))
        print(framework, phase, whole)
        assert whole.high <= MOST

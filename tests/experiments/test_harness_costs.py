"""What measuring costs: this harness and the framework's own plain loop, in turns in one process, whose processes repeat."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from experiments.comparison.statistics import estimates
from experiments.comparison.statistics.estimates import Estimate
from tests.models.children import run_in

# Network, rows, pairs of steps: so many that each takes some seconds.
POINTS = (
    *(("lenet", 1, 1_000), ("lenet", 32, 200), ("mobilenet_v2", 1, 80)),
    *(("mobilenet_v2", 32, 24), ("resnet18", 1, 60), ("resnet18", 32, 24)),
)
PROCESSES = 8  # an even number: half of them build the one first, half the other
MOST = 1.02


def told(framework: str, *point: object, first: str = "ours") -> dict[str, float]:
    output = run_in(
        framework, "-m", "tests.experiments.harness_costs", framework, *map(str, point), first
    ).stdout
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


def over_processes(ratios: list[float]) -> Estimate:
    return estimates.exponential(estimates.mean(np.log(ratios)))


@pytest.mark.parametrize(
    "framework", ["pytorch", pytest.param("tensorflow", marks=pytest.mark.slow)]
)
def test_both_loops_are_timed(framework: str) -> None:
    """Quick: that there is a ratio of both, of the size of one. What it is, the slow test says."""
    assert all(0.3 < ratio < 3 for ratio in told(framework, "lenet", 8, 40).values())


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_the_harness_costs_two_percent_at_most(framework: str) -> None:
    """On the whole of three networks with batches of 1 and 32; by point it is printed."""
    found = {
        point: [told(framework, *point, first=("ours", "plain")[at % 2]) for at in range(PROCESSES)]
        for point in POINTS
    }
    wholes = {}
    for what in ("training", "requests"):
        for (model, rows, _), several in found.items():
            one = over_processes([ratios[what] for ratios in several])
            print(
                f"{framework} {model} batch {rows} {what}: {one.value:.3f} ({one.low:.3f}-{one.high:.3f})"
            )
        means = [
            math.exp(np.mean([math.log(several[at][what]) for several in found.values()]))
            for at in range(PROCESSES)
        ]
        whole = wholes[what] = over_processes(means)
        print(
            f"{framework} {what} on the whole: {whole.value:.4f} ({whole.low:.4f}-{whole.high:.4f})"
        )
    assert all(whole.high <= MOST for whole in wholes.values())

"""Small run of the cost of the harness."""

from __future__ import annotations

import pytest

from tests.benchmarks.overhead import ratios_of_process


@pytest.mark.parametrize(
    ("framework", "phases"),
    [("pytorch", {"training", "requests"}), ("onnxruntime", {"requests"})],
)
def test_both_loops_are_timed(framework: str, phases: set[str]) -> None:
    ratios = ratios_of_process(framework, "lenet", 8, 40)
    assert ratios.keys() == phases
    assert all(0.3 < ratio < 3 for ratio in ratios.values())

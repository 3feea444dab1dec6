"""Small run of the cost of the harness."""

from __future__ import annotations

from tests.benchmarks.overhead import ratios_of_process


def test_both_loops_are_timed() -> None:
    assert all(0.3 < ratio < 3 for ratio in ratios_of_process("pytorch", "lenet", 8, 40).values())

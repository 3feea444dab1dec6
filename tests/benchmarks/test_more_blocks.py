"""Coverage of the predicted number of further blocks, over true ratios and SDs."""

from __future__ import annotations

import pytest

from tests.experiments.comparison.test_statistics import predicted

RATIOS = (1.0, 1.01, 1.02, 1.025, 1.03, 1.035, 1.04, 1.05, 1.07, 1.1, 1.15, 1.2)
SDS = (0.02, 0.05, 0.1, 0.2)
PLANS = 500


@pytest.mark.slow
@pytest.mark.parametrize("tests", [1, 12])
@pytest.mark.parametrize("blocks", [6, 8, 12, 24])
def test_four_of_five_numbers_of_blocks_are_enough(blocks: int, tests: int) -> None:
    """500 plans a cell: three standard errors are 5.4 points. Prints docs/comparison.md's table.

    A cell has the plans with a number and those whose number is too small, both of all plans, the
    blocks that are needed, and the median number.
    """
    print(f"\n{blocks} blocks, among {tests}; true ratio \\ SD: {SDS}")
    numbers, wrong = 0.0, 0.0
    for ratio in RATIOS:
        cells = [predicted(ratio, sd, blocks, tests, PLANS) for sd in SDS]
        texts = [
            f"{cell.numbers:4.0%} {cell.wrong:4.0%} {cell.needed:6.0f} {cell.median:5.0f}"
            if cell
            else "-"
            for cell in cells
        ]
        print(f"{ratio:5.3f} | {' | '.join(texts)}")
        for cell in filter(None, cells):
            assert cell.wrong <= 0.254, ratio
            numbers, wrong = numbers + cell.numbers, wrong + cell.wrong
    if numbers:
        print(f"of all numbers, {1 - wrong / numbers:.0%} are enough")
    assert wrong <= 0.2 * numbers

"""Warnings on campaigns of a fixed number of blocks that were extended after their report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
from scipy import special

from experiments.comparison.runs import looks
from experiments.comparison.runs.warning import ComparisonWarning, WarningCode
from experiments.comparison.statistics import sequential
from experiments.comparison.verdicts.decision import ALPHA, MINIMUM_BLOCKS


def warnings(frame: pd.DataFrame) -> Iterator[ComparisonWarning]:
    """Yield a warning for each such campaign; reports of too few blocks are no looks."""
    extensions = looks.extended_looks(frame)
    for name, reports in extensions.items():
        blocks = [report for report in reports if report >= MINIMUM_BLOCKS]
        if len(blocks) > 1:
            campaign = f" ({name})" if name and len(extensions) > 1 else ""
            yield ComparisonWarning(
                WarningCode.EXTENDED,
                f"This campaign{campaign} was extended to {blocks[-1]} blocks after its report of "
                f"{' and '.join(map(str, blocks[:-1]))} was written. Its tests and intervals do "
                "not allow for that: an outcome that does not differ, tested alone, is shown to "
                f"differ in one of these reports of about {100 * error_rate(blocks):.0f} % of such "
                f"campaigns, not of {100 * ALPHA:.0f} %. The other claims err more often in the "
                "same way.",
            )


def error_rate(blocks: Sequence[int]) -> float:
    """Return how often a test at 5 % shows a difference where there is none, in any report.

    Args:
        blocks: Blocks after which a report was written, ascending.

    Returns:
        Share of such campaigns, 0 to 1.
    """
    return sequential.crossed(blocks, [-float(special.ndtri(ALPHA / 2))] * len(blocks))

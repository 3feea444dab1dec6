"""Warnings on campaigns of a fixed number of blocks that were extended after their report."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from scipy import special

from experiments.comparison.runs import looks
from experiments.comparison.runs.warning import ComparisonWarning, WarningCode
from experiments.comparison.statistics import sequential
from experiments.comparison.verdicts.decision import ALPHA, MINIMUM_BLOCKS


def warnings(frame: pd.DataFrame) -> tuple[ComparisonWarning, ...]:
    """Return a line for each such campaign; reports of too few blocks are no looks."""
    extensions = {
        name: [at for at in blocks if at >= MINIMUM_BLOCKS]
        for name, blocks in looks.of_extended(frame).items()
    }
    return tuple(
        ComparisonWarning(WarningCode.EXTENDED, _told(name if len(extensions) > 1 else "", blocks))
        for name, blocks in extensions.items()
        if len(blocks) > 1
    )


def _told(campaign: str, blocks: Sequence[int]) -> str:
    before, now, percent = " and ".join(map(str, blocks[:-1])), blocks[-1], 100 * error_rate(blocks)
    return (
        f"This campaign{f' ({campaign})' if campaign else ''} was extended to {now} blocks after "
        f"its report of {before} was "
        "written. Its tests and intervals do not allow for that: an outcome that does not "
        "differ, tested alone, is shown to "
        f"differ in one of these reports of about {percent:.0f} % of such campaigns, not of "
        f"{100 * ALPHA:.0f} %. "
        "The other claims err more often in the same way."
    )


def error_rate(blocks: Sequence[int]) -> float:
    """Return how often a test at 5 % shows a difference where there is none, in any report."""
    return sequential.crossed(blocks, [-float(special.ndtri(ALPHA / 2))] * len(blocks))


__all__ = ["error_rate", "warnings"]

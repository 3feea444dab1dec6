"""What every look of a campaign saw that goes on until it is settled: an outcome's intervals, look by look."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.comparison.statistics import estimates
from experiments.comparison.statistics.estimates import Estimate, Floats
from experiments.comparison.verdicts.decision import ALPHA
from experiments.comparison.verdicts.findings import Finding


@dataclass(frozen=True)
class Seen:
    """One look's estimate, on the scale of the row: a ratio b / a or a difference b - a.

    interval: as the row of this look had it. inner: the narrower one of the two one-sided tests, which shows equivalence where
    it lies inside the margin.
    """

    blocks: int
    interval: Estimate
    inner: Estimate


def of_finding(finding: Finding) -> tuple[Seen, ...]:
    """Every look that has at least three pairs, the last of which is the row.

    None where the number of blocks was fixed.
    """
    if not finding.looks.blocks or finding.row.p is None:
        return ()
    shifts, blocks = finding.shifts, np.array([int(float(pair.block)) for pair in finding.pairs])
    found = []
    for looks, mean in zip(finding.looks.one_by_one(), finding.means, strict=True):
        if mean is not None:
            centre = estimates.centre(shifts[blocks <= looks.blocks[-1]])
            both = (mean.interval(1 - looks.level(rate)) for rate in (ALPHA, 2 * ALPHA))
            intervals = (_estimate(centre, *bounds, finding.row.kind) for bounds in both)
            found.append(Seen(looks.blocks[-1], *intervals))
    return tuple(found)


def _estimate(centre: float, low: Floats, high: Floats, kind: str) -> Estimate:
    found = Estimate(centre, float(low), float(high))
    return estimates.exponential(found) if kind == "ratio" else found


__all__ = ["Seen", "of_finding"]

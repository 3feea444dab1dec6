"""Decision procedure of rows, strata, batch sizes and epochs: different, equivalent or open."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from numpy.typing import ArrayLike

from experiments.comparison.statistics import estimates
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.statistics.significance import ALPHA

MINIMUM_BLOCKS = 6


class NoEstimate(StrEnum):
    """Reason for which a row has no estimate, as `comparison.json` has it."""

    NOT_COMPARABLE = "not_comparable"
    NOT_MEASURED = "not_measured"
    NO_PAIR = "no_pair"
    NO_RATIO = "no_ratio"
    TOO_FEW_BLOCKS = "too_few_blocks"
    TOO_FEW_STRATA = "too_few_strata"


class Withheld(StrEnum):
    """Reason for which a row with an estimate has no verdict."""

    TOO_FEW_BLOCKS = "too_few_blocks"
    BUSY_MACHINE = "busy_machine"
    ORDER = "order"


class Decision(StrEnum):
    """Decision on one effect."""

    NOT_COMPARABLE = "not_comparable"
    TOO_FEW = "too_few"  # blocks or strata; or the verdict is withheld
    IDENTICAL = "identical"  # on both sides everywhere: nothing to test
    CONSTANT = "constant"  # always different by the same, less than the margin
    DIFFERENT = "different"  # by more than the margin
    WITHIN_MARGIN = "within_margin"
    EQUIVALENT = "equivalent"
    SIZE_OPEN = "size_open"  # different, but perhaps by less than the margin
    OPEN = "open"  # neither a difference nor equivalence is shown


WITHOUT_TEST = (Decision.NOT_COMPARABLE, Decision.TOO_FEW)
OPEN = (Decision.OPEN, Decision.SIZE_OPEN)
UNJUDGED = (*WITHOUT_TEST, *OPEN)


@dataclass(frozen=True)
class Effect:
    """An estimate with its interval on the scale of the test, and what is shown of it.

    margin: effects smaller than this do not matter. different: the effect is shown not to be 0.
    equivalent: it is shown to lie within ±margin.
    """

    estimate: Estimate
    margin: float
    different: bool
    equivalent: bool

    @property
    def decision(self) -> Decision:
        if self.different and (
            self.estimate.low > self.margin or self.estimate.high < -self.margin
        ):
            return Decision.DIFFERENT
        if self.equivalent:
            return Decision.WITHIN_MARGIN if self.different else Decision.EQUIVALENT
        return Decision.SIZE_OPEN if self.different else Decision.OPEN


def paired(shifts: ArrayLike, margin: float, confidence: float = 0.95) -> Effect:
    """Decide on the trimmed mean of paired shifts: its interval, two one-sided tests at 5 %."""
    mean, inner = (estimates.trimmed_mean(shifts, level) for level in (confidence, 1 - 2 * ALPHA))
    return Effect(
        mean,
        margin,
        different=mean.low > 0 or mean.high < 0,
        equivalent=-margin < inner.low and inner.high < margin,
    )


__all__ = [
    "ALPHA",
    "MINIMUM_BLOCKS",
    "OPEN",
    "UNJUDGED",
    "WITHOUT_TEST",
    "Decision",
    "Effect",
    "NoEstimate",
    "Withheld",
    "paired",
]

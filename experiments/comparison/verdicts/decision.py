"""Decision procedure of rows, strata, batch sizes and epochs: different, equivalent or open."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

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


class Widening(StrEnum):
    """Cause of an interval notably wider than a t interval, as in `comparison.json`."""

    AUTOCORRELATION = "autocorrelation"
    POSSIBLE_AUTOCORRELATION = "possible_autocorrelation"
    SKEWNESS = "skewness"


class Decision(Enum):
    """Decision on one effect."""

    NOT_COMPARABLE = "there is nothing to estimate"
    TOO_FEW = "too few blocks or strata for a verdict, or measured on a busy machine"
    IDENTICAL = "the same on both sides everywhere: nothing to test"
    CONSTANT = "always different by the same, less than the margin: nothing to test"
    DIFFERENT = "different by more than the margin"
    WITHIN_MARGIN = "different by less than the margin"
    EQUIVALENT = "no difference as large as the margin"
    SIZE_OPEN = "different, but whether by more than the margin is open"
    OPEN = "neither a difference nor equivalence is shown"

    @property
    def is_verdict(self) -> bool:
        open_or_none = (
            Decision.NOT_COMPARABLE,
            Decision.TOO_FEW,
            Decision.SIZE_OPEN,
            Decision.OPEN,
        )
        return self not in open_or_none


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
    """Decide on the mean of paired shifts: by its interval, and by two one-sided tests at 5 %."""
    mean, inner = estimates.mean(shifts, confidence), estimates.mean(shifts, 1 - 2 * ALPHA)
    return Effect(
        mean,
        margin,
        different=mean.low > 0 or mean.high < 0,
        equivalent=-margin < inner.low and inner.high < margin,
    )


__all__ = [
    "ALPHA",
    "MINIMUM_BLOCKS",
    "Decision",
    "Effect",
    "NoEstimate",
    "Widening",
    "Withheld",
    "paired",
]

"""Decisions on rows and strata, and the codes of their reasons."""

from __future__ import annotations

from enum import StrEnum

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


__all__ = [
    "ALPHA",
    "MINIMUM_BLOCKS",
    "OPEN",
    "UNJUDGED",
    "WITHOUT_TEST",
    "Decision",
    "NoEstimate",
    "Withheld",
]

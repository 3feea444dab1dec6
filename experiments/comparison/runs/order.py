"""Order in time of paired runs: which came first, and the pause between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from experiments.comparison.runs.warning import ComparisonWarning, WarningCode

HOUR_MS = 3_600_000.0
# Shares of campaigns in random order that get a warning, and that are refused.
UNBALANCED, ONE_SIDED = 0.05, 0.001
# Largest share of pairs that did not run side by side.
MAX_APART = 0.25
NAMED = 4


@dataclass(frozen=True)
class Order:
    """Order in time of the pairs of a and b.

    Attributes:
        n_ordered: Pairs of which the first run is recorded.
        a_first: Pairs in which it was a's.
        n_timed: Pairs with recorded times.
        apart: Blocks of the pairs that did not run side by side.
        longest_ms: Longest pause between two runs of a pair.
        strata: Number of strata that the counts are from.
    """

    a: str
    b: str
    stratum: str = ""
    n_ordered: int = 0
    a_first: int = 0
    n_timed: int = 0
    apart: tuple[str, ...] = ()
    longest_ms: float = 0.0
    strata: int = 1

    @property
    def p(self) -> float:
        """Chance that a fair coin is as one-sided."""
        if not self.n_ordered:
            return 1.0
        return float(stats.binomtest(self.a_first, self.n_ordered).pvalue)

    @property
    def first(self) -> str:
        """Level that mostly came first, in a sentence."""
        sides = ((self.a_first, self.a), (self.n_ordered - self.a_first, self.b))
        count, level = max(sides, key=lambda side: side[0])
        where = f" in {self.strata} strata" if self.strata > 1 else ""
        return f"{level} ran first in {count} of {self.n_ordered} blocks{where}"

    @property
    def refused(self) -> str:
        """Reason for which these pairs must not be compared; empty if there is none."""
        if self.n_timed and len(self.apart) > MAX_APART * self.n_timed:
            return (
                f"{self.a} and {self.b} did not run side by side "
                f"in {len(self.apart)} of {self.n_timed} blocks "
                f"(up to {duration(self.longest_ms)} lie between the two runs): "
                "changes in between may explain the difference; run the sides of a block one after "
                "the other, or leave these blocks out (filter)"
            )
        if self.p < ONE_SIDED:
            remedy = "the order may explain the difference; run them in random order"
            return f"{self.first}: {remedy}"
        return ""


def combine(orders: Sequence[Order]) -> Order:
    """Return the order over several strata of one pair of levels."""
    a, b = orders[0].a, orders[0].b
    counts = [(order.n_ordered, order.a_first) for order in orders]
    n_ordered, a_first = (sum(count) for count in zip(*counts, strict=True))
    return Order(a, b, n_ordered=n_ordered, a_first=a_first, strata=len(orders))


def order_of_pairs(first: pd.DataFrame, second: pd.DataFrame) -> Order:
    """Return the order of pairs of runs, row by row: by their begin, else by place in the block."""
    a, b = (str(side["level"].iloc[0]) for side in (first, second))
    stratum = str(first["stratum"].iloc[0])
    starts, ends, places = (
        np.array([pd.to_numeric(side[name], errors="coerce") for side in (first, second)], float)
        for name in ("start_ms", "end_ms", "order_in_block")
    )
    timed = np.isfinite(starts).all(axis=0)
    differ = timed & (starts[0] != starts[1])
    ahead = np.where(differ, starts[1] - starts[0], places[1] - places[0])
    is_known = np.isfinite(ahead) & (ahead != 0)
    # from the end of the earlier run (its start, if the end is missing) to the start of the later
    finished = np.where(np.isfinite(ends), ends, starts)
    earlier = np.where(starts[0] <= starts[1], finished[0], finished[1])
    pauses = np.nan_to_num(starts.max(axis=0) - earlier, nan=0.0)
    # the other runs of a block may lie in between: ten times what a run usually takes
    took = (ends - starts)[np.isfinite(ends - starts)]
    usual = 10 * float(np.median(took)) if len(took) else 0.0
    # runs of other blocks began in between; runs at the same time are side by side
    every = np.sort(starts[np.isfinite(starts)])
    begun = np.searchsorted(every, starts.max(axis=0), side="left")
    between = begun - np.searchsorted(every, starts.min(axis=0), side="right")
    far = timed & (((between > 0) & (pauses > 0)) | (pauses > max(HOUR_MS, usual)))
    return Order(
        a,
        b,
        stratum,
        n_ordered=int(is_known.sum()),
        a_first=int((ahead[is_known] > 0).sum()),
        n_timed=int(timed.sum()),
        apart=tuple(first["block_label"].to_numpy()[far].astype(str)),
        longest_ms=float(pauses[far].max()) if far.any() else 0.0,
    )


def duration(milliseconds: float) -> str:
    """Return a rounded duration in its largest unit: 11 days, 3 hours, 20 minutes."""
    units = {"day": 24 * HOUR_MS, "hour": HOUR_MS, "minute": HOUR_MS / 60, "second": 1_000}
    for unit, size in units.items():
        if milliseconds >= size:
            count = round(milliseconds / size)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return "less than a second"


def warnings(orders: Sequence[Order]) -> Iterator[ComparisonWarning]:
    """Yield warnings for each pair of levels of unbalanced order, and of pairs that lie apart."""
    for a, b in dict.fromkeys((order.a, order.b) for order in orders):
        strata = [order for order in orders if (order.a, order.b) == (a, b)]
        leaning = [order for order in strata if order.p < UNBALANCED / len(strata)]
        if combine(strata).p < UNBALANCED:
            leaning = strata
        if leaning:
            yield ComparisonWarning(
                WarningCode.UNBALANCED_ORDER,
                f"The order is not balanced: {combine(leaning).first}; "
                "the order may explain part of a difference.",
            )
        blocks = [
            f"{block} [{order.stratum}]" if order.stratum else block
            for order in strata
            for block in order.apart
        ]
        if blocks:
            more = f" and {len(blocks) - NAMED} more" if len(blocks) > NAMED else ""
            yield ComparisonWarning(
                WarningCode.NOT_SIDE_BY_SIDE,
                f"The runs of {a} and {b} did not run side by side in {len(blocks)} "
                f"block{'' if len(blocks) == 1 else 's'} ({', '.join(blocks[:NAMED])}{more}): "
                f"up to {duration(max(order.longest_ms for order in strata))} lie between them.",
            )

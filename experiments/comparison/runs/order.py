"""Whether what is paired ran side by side: which of two runs came first, and what lay between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

Milliseconds = NDArray[np.float64]
HOUR_MS = 3_600_000.0
# A campaign in random order is warned of in at most 5 of 100 cases, and refused in at most 1 of 1,000.
UNBALANCED, ONE_SIDED = 0.05, 0.001
# With more of its pairs apart, what drifts from one time to the other weighs more than a quarter in the mean.
MAX_APART = 0.25
NAMED = 4


@dataclass(frozen=True)
class Order:
    """How the pairs of a and b lie in time.

    known: pairs of which it is known which run came first; a_first: those in which it was a's. timed: pairs whose times are
    known; apart: the blocks of those that did not run side by side; longest_ms: the longest pause between two runs of a pair.
    """

    a: str
    b: str
    stratum: str = ""
    known: int = 0
    a_first: int = 0
    timed: int = 0
    apart: tuple[str, ...] = ()
    longest_ms: float = 0.0

    @property
    def p(self) -> float:
        """How often a fair coin is as one-sided."""
        return _fair(self.a_first, self.known)

    @property
    def first(self) -> str:
        """What mostly came first, in words."""
        a_first = 2 * self.a_first >= self.known
        count = self.a_first if a_first else self.known - self.a_first
        return f"{self.a if a_first else self.b} ran first in {count} of {self.known} blocks"

    @property
    def refused(self) -> str:
        """Why these pairs must not be compared; empty where nothing speaks against it."""
        if self.timed and len(self.apart) > MAX_APART * self.timed:
            return (
                f"{self.a} and {self.b} did not run side by side in {len(self.apart)} of {self.timed} blocks ({self._pause}): "
                "what changed in between is in the difference"
            )
        if self.p < ONE_SIDED:
            return (
                f"{self.first}: what the order does is in the difference; run them in random order"
            )
        return ""

    @property
    def _pause(self) -> str:
        return f"up to {duration(self.longest_ms)} lie between the two runs"

    @property
    def apart_in_words(self) -> str:
        blocks = ", ".join(self.apart[:NAMED]) + (
            f" and {len(self.apart) - NAMED} more" if len(self.apart) > NAMED else ""
        )
        return f"block{'' if len(self.apart) == 1 else 's'} {blocks}{f' [{self.stratum}]' if self.stratum else ''} ({self._pause})"


@lru_cache(maxsize=1_024)
def _fair(heads: int, tosses: int) -> float:
    return float(stats.binomtest(heads, tosses).pvalue) if tosses else 1.0


def together(orders: Sequence[Order]) -> Order:
    """The order over several strata of one pair of levels."""
    return Order(
        orders[0].a,
        orders[0].b,
        known=sum(one.known for one in orders),
        a_first=sum(one.a_first for one in orders),
    )


def of_pairs(first: pd.DataFrame, second: pd.DataFrame) -> Order:
    """The order of pairs of runs, row by row: by when they began, else by their place in the block."""
    a, b = (str(side["level"].iloc[0]) for side in (first, second))
    stratum = str(first["stratum"].iloc[0])
    starts, ends = _column(first, second, "start_ms"), _column(first, second, "end_ms")
    places = _column(first, second, "order_in_block")
    ahead = np.where(_differ(starts), starts[1] - starts[0], places[1] - places[0])
    known = np.isfinite(ahead) & (ahead != 0)
    timed = np.isfinite(starts).all(axis=0)
    pauses = _pauses(starts, ends)
    far = timed & (
        _between_others(starts, ends) | (pauses > np.maximum(HOUR_MS, _lengths(starts, ends)))
    )
    return Order(
        a,
        b,
        stratum,
        known=int(known.sum()),
        a_first=int((ahead[known] > 0).sum()),
        timed=int(timed.sum()),
        apart=tuple(first["block_label"].to_numpy()[far].astype(str)),
        longest_ms=float(pauses[far].max()) if far.any() else 0.0,
    )


def _column(first: pd.DataFrame, second: pd.DataFrame, name: str) -> Milliseconds:
    """A number of both sides, a row a side; NaN where it is missing."""
    if name not in first.columns:
        return np.full((2, len(first)), np.nan)
    return np.array(
        [
            pd.to_numeric(side[name], errors="coerce").to_numpy(dtype=float)
            for side in (first, second)
        ]
    )


def _differ(sides: Milliseconds) -> NDArray[np.bool_]:
    return np.asarray(np.isfinite(sides).all(axis=0) & (sides[0] != sides[1]))


def _pauses(starts: Milliseconds, ends: Milliseconds) -> Milliseconds:
    """From the end of the earlier run of each pair (its start, where the end is missing) to the start of the later."""
    ended = np.where(np.isfinite(ends), ends, starts)
    earlier = np.where(starts[0] <= starts[1], ended[0], ended[1])
    return np.asarray(np.nan_to_num(starts.max(axis=0) - earlier, nan=0.0))


def _lengths(starts: Milliseconds, ends: Milliseconds) -> float:
    """Ten times what a run usually takes: the other runs of a block may lie in between."""
    took = (ends - starts)[np.isfinite(ends - starts)]
    return 10 * float(np.median(took)) if len(took) else 0.0


def _between_others(starts: Milliseconds, ends: Milliseconds) -> NDArray[np.bool_]:
    """Whether runs of other blocks began between the two runs of a pair; runs at the same time are side by side."""
    every = np.sort(starts[np.isfinite(starts)])
    low, high = starts.min(axis=0), starts.max(axis=0)
    between = np.searchsorted(every, high, side="left") - np.searchsorted(every, low, side="right")
    return np.asarray((between > 0) & (_pauses(starts, ends) > 0))


def duration(milliseconds: float) -> str:
    """11 days, 3 hours, 20 minutes: rounded, in the greatest unit that there is one of."""
    for unit, size in (
        ("day", 24 * HOUR_MS),
        ("hour", HOUR_MS),
        ("minute", HOUR_MS / 60),
        ("second", HOUR_MS / 3_600),
    ):
        if milliseconds >= size:
            count = round(milliseconds / size)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return "less than a second"


def warnings(orders: Sequence[Order]) -> list[str]:
    """What must be said before any figure, for each pair of levels: an order that is not balanced, pairs that lie apart."""
    told = []
    for a, b in dict.fromkeys((one.a, one.b) for one in orders):
        of_both = [one for one in orders if (one.a, one.b) == (a, b)]
        alone = [one for one in of_both if one.p < UNBALANCED / len(of_both)]
        if leaning := of_both if together(of_both).p < UNBALANCED else alone:
            told.append(
                f"The order is not balanced: {together(leaning).first}; what the order does is in the difference."
            )
        if far := [one for one in of_both if one.apart]:
            where = "; ".join(one.apart_in_words for one in far[:NAMED])
            more = f"; and in {len(far) - NAMED} more strata" if len(far) > NAMED else ""
            told.append(
                f"Runs of {a} and {b} that are paired did not run side by side: {where}{more}."
            )
    return told

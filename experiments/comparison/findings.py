"""What a comparison found: frozen rows, and what stands behind each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from experiments.comparison.estimates import Estimate
from experiments.comparison.gates import Exclusion
from experiments.comparison.outcomes import Outcome

ALPHA = 0.05
INCONCLUSIVE = "inconclusive"
NOT_COMPARABLE = "not comparable"
EQUIVALENT = "equivalent"
WITHIN_MARGIN = "different, within margin"
DETERMINISTIC = "deterministic"


@dataclass(frozen=True)
class Row:
    """One line of the verdict table, as in `comparison.json`: b against the baseline a.

    estimate, ci_low, ci_high: a ratio b / a or a difference b - a (see `kind`) with a 95 % t interval; None where unbounded.
    p: paired t on (log-)differences; p_holm: adjusted over the report. effect_size: Vargha and Delaney's A12, P(b > a).
    margin, minimum_detectable: relative for a ratio (0.03 is 3 %), in the metric's unit for a difference.
    """

    metric: str
    factor: str
    a: str
    b: str
    n_blocks: int
    estimate: float | None
    kind: str
    ci_low: float | None
    ci_high: float | None
    p: float | None
    p_holm: float | None
    effect_size: float | None
    margin: float
    equivalent: bool | None
    minimum_detectable: float | None
    verdict: str
    reason: str
    stratum: str


@dataclass(frozen=True)
class Pair:
    """The two values of one block."""

    block: str
    a: float
    b: float


@dataclass(frozen=True)
class Finding:
    """A row with what stands behind it.

    a_value, b_value: geometric mean (ratio) or mean (difference) of each side over the paired blocks.
    more_blocks: how many more should settle what is open; None where no payable number would.
    """

    row: Row
    outcome: Outcome
    pairs: tuple[Pair, ...] = ()
    a_value: float | None = None
    b_value: float | None = None
    hodges_lehmann: Estimate | None = None
    signed_rank_p: float | None = None
    tost_p: float | None = None
    cliffs_delta: float | None = None
    more_blocks: int | None = None

    @property
    def judged(self) -> bool:
        """Whether there is a verdict: neither inconclusive nor not comparable."""
        return self.row.verdict not in (INCONCLUSIVE, NOT_COMPARABLE)

    @property
    def different(self) -> bool:
        """Whether a difference of whatever size is shown: the test stands after Holm's correction."""
        return self.row.p_holm is not None and self.row.p_holm <= ALPHA

    @property
    def good(self) -> bool | None:
        """Whether b is better; None without a difference beyond the margin, or where neither way is better."""
        if self.row.verdict not in self.outcome.words or self.outcome.better == "neither":
            return None
        below = self.row.verdict == self.outcome.words[0]
        return below == (self.outcome.better == "lower")

    @property
    def times(self) -> Estimate | None:
        """The ratio turned so that it is at least 1: half the time is 2 times faster. None for differences."""
        row = self.row
        if row.kind != "ratio" or row.estimate is None:
            return None
        low, high = row.ci_low or 0.0, math.inf if row.ci_high is None else row.ci_high
        if row.estimate >= 1:
            return Estimate(row.estimate, low, high)
        return Estimate(1 / row.estimate, 1 / high, 1 / low if low else math.inf)


@dataclass(frozen=True)
class Value:
    """One run's value of a metric; `sequence`: its place in the order in which the runs began."""

    level: str
    stratum: str
    block: str
    sequence: int
    value: float


@dataclass(frozen=True)
class Comparison:
    """Everything that a report tells.

    unmeasured: outcomes asked for that no run has; missing_sensors: what the runs said about sensors that are not there.
    """

    factor: str
    baseline: str
    levels: tuple[str, ...]
    margin: float
    findings: tuple[Finding, ...]
    excluded: tuple[Exclusion, ...]
    environment: Mapping[str, Mapping[str, str]]
    values: Mapping[str, tuple[Value, ...]]
    unmeasured: tuple[str, ...] = ()
    missing_sensors: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    n_runs: int = 0

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(finding.row for finding in self.findings)

    @property
    def has_verdict(self) -> bool:
        """Whether any row could be judged."""
        return any(finding.judged for finding in self.findings)

"""What a comparison found: frozen rows, and what stands behind each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from experiments.comparison.estimates import Estimate, Values, differences, log_ratios
from experiments.comparison.frontier import Edge
from experiments.comparison.gates import Exclusion
from experiments.comparison.outcomes import Outcome

if TYPE_CHECKING:
    from experiments.comparison.significance import PaperProcedure

ALPHA = 0.05
LEAST_BLOCKS = 6
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

    @property
    def bound(self) -> float:
        """The margin on the scale of the test; a ratio's is the same for a against b and b against a."""
        return math.log1p(self.margin) if self.kind == "ratio" else self.margin


@dataclass(frozen=True)
class Pair:
    """The two values of one block."""

    block: str
    a: float
    b: float


def _is_good(verdict: str, outcome: Outcome) -> bool | None:
    if verdict not in outcome.words or outcome.better == "neither":
        return None
    return (verdict == outcome.words[0]) == (outcome.better == "lower")


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
    def shifts(self) -> Values:
        """b against a in every block, on the scale of the test."""
        a, b = np.array([pair.a for pair in self.pairs]), np.array([pair.b for pair in self.pairs])
        return log_ratios(a, b) if self.row.kind == "ratio" else differences(a, b)

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
        return _is_good(self.row.verdict, self.outcome)

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
class Summary:
    """What the strata say together of one outcome, b against the baseline a: a random-effects summary; no run is pooled.

    estimate, low, high: the mean over strata; prediction_low, prediction_high: one more stratum, None below three; ratios or
    differences (see `kind`), None where unbounded. tau: SD between strata, of logarithms for ratios. i_squared_percent, q_p: None
    where a stratum does not vary. p_holm: adjusted over the report's summaries. n_blocks: of the stratum with the fewest.
    left_out: strata without an estimate that has a variance.
    """

    metric: str
    outcome: Outcome
    factor: str
    a: str
    b: str
    kind: str
    n_strata: int
    n_blocks: int
    strata: tuple[str, ...]
    left_out: tuple[str, ...]
    estimate: float
    low: float | None
    high: float | None
    prediction_low: float | None
    prediction_high: float | None
    tau: float
    i_squared_percent: float | None
    q_p: float | None
    p: float | None
    p_holm: float | None
    margin: float
    equivalent: bool | None
    verdict: str
    reason: str

    @property
    def judged(self) -> bool:
        """Whether there is a verdict."""
        return self.verdict != INCONCLUSIVE

    @property
    def different(self) -> bool:
        """Whether a difference of whatever size is shown: the test stands after Holm's correction."""
        return self.p_holm is not None and self.p_holm <= ALPHA

    @property
    def good(self) -> bool | None:
        """Whether b is better; None without a difference beyond the margin, or where neither way is better."""
        return _is_good(self.verdict, self.outcome)


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
    summaries: across strata, where there are several. rests_on: the machines, teams and campaigns of the usable runs.
    papers: the published procedure beside the verdicts, where it was asked for. frontier: where memory ended.
    times_to_accuracy: percent -> the seconds of the runs that got there; those that did not are in none.
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
    controls: tuple[Control, ...] = ()
    summaries: tuple[Summary, ...] = ()
    rests_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    papers: tuple[PaperRow, ...] = ()
    frontier: tuple[Edge, ...] = ()
    times_to_accuracy: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(finding.row for finding in self.findings)

    @property
    def has_verdict(self) -> bool:
        """Whether any row could be judged."""
        return any(finding.judged for finding in self.findings)


@dataclass(frozen=True)
class Control:
    """A test of the measurement itself, judged like everything else: the baseline against itself, as it is or slowed.

    expected: what must come out, in words.
    """

    name: str
    comparison: Comparison
    expected: str

    @property
    def tested(self) -> tuple[Finding, ...]:
        """Outcomes that something could be said of."""
        return tuple(finding for finding in self.comparison.findings if finding.judged or finding.different)

    @property
    def told_apart(self) -> tuple[Finding, ...]:
        """Outcomes that were called different: in an A/A control, false alarms."""
        return tuple(
            finding
            for finding in self.tested
            if finding.different or (finding.row.verdict == DETERMINISTIC and not finding.row.reason.startswith("identical"))
        )


@dataclass(frozen=True)
class PaperRow:
    """What the published procedure says of the steps of one run a side; `verdict`: what is said of all runs above it.

    says: `significant` or `not significant`, of its Wilcoxon test at 5 %.
    """

    metric: str
    outcome: Outcome
    stratum: str
    a: str
    b: str
    block: str
    procedure: PaperProcedure
    says: str
    verdict: str

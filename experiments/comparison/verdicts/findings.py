"""What a comparison found: frozen rows, and what stands behind each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from experiments.comparison.runs.environment import Value
from experiments.comparison.runs.order import Order
from experiments.comparison.runs.pairing import Exclusion
from experiments.comparison.statistics.autocorrelation import MeanDistribution
from experiments.comparison.statistics.estimates import (
    ROUNDING,
    Estimate,
    Floats,
    differences,
    log_ratios,
)
from experiments.comparison.statistics.sequential import FIXED, Looks
from experiments.comparison.verdicts.decision import ALPHA, Decision, Withheld
from experiments.metrics import DELAYED, FREELY, Outcome, without_batch

if TYPE_CHECKING:
    import pandas as pd

    from experiments.comparison.statistics.power import Plan

INCONCLUSIVE = "inconclusive"
NOT_COMPARABLE = "not comparable"
EQUIVALENT = "equivalent"
WITHIN_MARGIN = "different, within margin"
DETERMINISTIC = "deterministic"
PRIMARY, EXPLORATORY = "primary", "exploratory"


@dataclass(frozen=True)
class Row:
    """One line of the verdict table, as in `comparison.json`: b against the baseline a.

    estimate, ci_low, ci_high: a ratio b / a or a difference b - a (see `kind`) with a 95 % interval, from three blocks on.
    no_estimate: why there is none, a `NoEstimate`; empty where there is one.
    family: `primary` for outcomes that were declared beforehand, else `exploratory`.
    p: two-sided, of the interval's distribution; p_holm: adjusted over the rows of the family.
    autocorrelation: expected AR(1) coefficient; autocorrelation_weight: of all coefficients above 0.
    widening: width of the interval over that of the t interval; widened_by: a `Widening` where that
    is notable, else empty. effect_size: Vargha and Delaney's A12: of any run of b
    and any of a, whatever their blocks, how often b has the greater value; probability_within_blocks: of the two of a block.
    margin and the three minimums: relative for a ratio (0.03 is 3 %), in the metric's unit for a difference. The minimums are
    the true effects that four of five such campaigns show: minimum_detectable with this as the only outcome, minimum_in_family
    among all tests of its family, minimum_for_verdict as a difference beyond the margin; the latter None without a test.
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
    probability_within_blocks: float | None = None
    minimum_in_family: float | None = None
    minimum_for_verdict: float | None = None
    family: str = EXPLORATORY
    no_estimate: str = ""
    autocorrelation: float | None = None
    autocorrelation_weight: float | None = None
    widening: float | None = None
    widened_by: str = ""

    @property
    def bound(self) -> float:
        """The margin on the scale of the test; a ratio's is the same for a against b and b against a."""
        return math.log1p(self.margin) if self.kind == "ratio" else self.margin

    def on_test_scale(self, value: float | None, unbounded: float = math.nan) -> float:
        """One of the row's numbers on the scale of the test: the logarithm of a ratio, a difference as it is."""
        if value is None:
            return unbounded
        if self.kind == "ratio":
            return math.log(value) if value > 0 else -math.inf
        return value


class Pair(NamedTuple):
    """The two values of one block. sequence: its place in the order of time. A tuple: a report has tens of thousands."""

    block: str
    a: float
    b: float
    sequence: int = 0


@dataclass(frozen=True)
class AcrossStrata:
    """What stands behind a random-effects summary of several strata beside its row; no run is pooled.

    names: of the strata it rests on; left_out: those without an estimate that has a variance. prediction_low, prediction_high:
    one more stratum, None below three strata or where unbounded. tau: SD between strata, of logarithms for ratios.
    i_squared_percent, q_p: None where a stratum does not vary. All five are None below three strata.
    """

    names: tuple[str, ...]
    left_out: tuple[str, ...]
    prediction_low: float | None
    prediction_high: float | None
    tau: float | None
    i_squared_percent: float | None
    q_p: float | None


@dataclass(frozen=True)
class Finding:
    """A row with what stands behind it: of one stratum, or, where `across` is given, of all strata together.

    decision: what the row's verdict and reason say in words. outlook: what the reason adds to it.
    means: the distribution of the mean at every look, now last; None where it did not vary.
    order: which side ran first, and what lay in between.
    a_value, b_value: geometric mean (ratio) or mean (difference) of each side over the paired blocks.
    plan: how many more blocks should settle what is open. block_seconds: how long both runs of a block took, in the middle.
    took_turns: whether both ran at the same time, in turns.
    withheld: why there is no verdict although there is an estimate. busy: the same in words, where others disturbed the cells.
    looks: how often it was looked, and when, in a
    campaign that goes on until it is settled; every p and interval holds for all of them.
    """

    row: Row
    outcome: Outcome
    pairs: tuple[Pair, ...] = ()
    decision: Decision = Decision.NOT_COMPARABLE
    outlook: str = ""
    a_value: float | None = None
    b_value: float | None = None
    hodges_lehmann: Estimate | None = None
    signed_rank_p: float | None = None
    tost_p: float | None = None
    cliffs_delta: float | None = None
    plan: Plan | None = None
    block_seconds: float | None = None
    took_turns: bool = False
    permutation_p: float | None = None
    across: AcrossStrata | None = None
    busy: str = ""
    withheld: Withheld | None = None
    means: tuple[MeanDistribution | None, ...] = field(default=(), compare=False, repr=False)
    order: Order | None = None
    looks: Looks = FIXED

    @property
    def shifts(self) -> Floats:
        """b against a in every block, on the scale of the test."""
        a, b = np.array([pair.a for pair in self.pairs]), np.array([pair.b for pair in self.pairs])
        return log_ratios(a, b) if self.row.kind == "ratio" else differences(a, b)

    @property
    def spread(self) -> float:
        """SD of independent shifts whose t interval is as wide as the row's."""
        return float(self.shifts.std(ddof=1)) * (self.row.widening or 1.0)

    @property
    def judged(self) -> bool:
        """Whether there is a verdict: neither inconclusive nor not comparable."""
        return self.decision.is_verdict

    @property
    def is_tested(self) -> bool:
        """Whether there was a test, whatever came out, or nothing to test because it never varied."""
        return self.decision not in (Decision.NOT_COMPARABLE, Decision.TOO_FEW)

    @property
    def primary(self) -> bool:
        """Whether the outcome was declared beforehand as one that the study is about."""
        return self.row.family == PRIMARY

    @property
    def never_varied(self) -> bool:
        """Whether every block or stratum showed the same: there is a verdict, but no test and no interval."""
        return self.judged and self.row.p is None

    @property
    def different(self) -> bool:
        """Whether a difference of any size is shown: by the corrected test, or it never varied."""
        if self.never_varied:
            return not self.identical
        return self.row.p_holm is not None and self.row.p_holm <= ALPHA

    @property
    def identical(self) -> bool:
        """Whether both sides are the same but for rounding, in every block or stratum."""
        return self.decision is Decision.IDENTICAL or (
            bool(self.pairs) and all(pair.a == pair.b for pair in self.pairs)
        )

    @property
    def rounding(self) -> float:
        """A shift on the scale of the test that is no more than rounding."""
        return ROUNDING * (
            1.0 if self.row.kind == "ratio" or self.a_value is None else abs(self.a_value)
        )

    @property
    def way(self) -> str:
        """Which way b lies from a, whether or not that is shown: faster, slower, higher or lower."""
        return self.outcome.words[self.row.on_test_scale(self.row.estimate) > 0]

    @property
    def good(self) -> bool | None:
        """Whether b is better; None without a difference beyond the margin, or where neither way is better."""
        if self.decision is not Decision.DIFFERENT or self.outcome.better == "neither":
            return None
        return (self.row.verdict == self.outcome.words[0]) == (self.outcome.better == "lower")

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


def grouped(findings: Iterable[Finding]) -> dict[tuple[str, str, str], list[Finding]]:
    """Findings by stratum, a and b."""
    found: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        found.setdefault((finding.row.stratum, finding.row.a, finding.row.b), []).append(finding)
    return found


@dataclass(frozen=True)
class Edge:
    """One level in one stratum. fits: the largest size with a run that ended well; too_large: the smallest that never did.

    phase: what did not fit, training or inference; empty where runs do not tell.
    """

    level: str
    stratum: str
    fits: int | None
    too_large: int
    phase: str = ""


@dataclass(frozen=True)
class Comparison:
    """Everything that a report tells.

    primary: the outcomes that were declared beforehand as those that it is about; their rows are a family of their own.
    unmeasured: outcomes asked for that no run has; missing_sensors: what the runs said about sensors that are not there.
    summaries: a finding of all strata together, for every outcome and pair of levels, where there are several strata.
    rests_on: the machines, teams and campaigns of the usable runs.
    frontier: where memory ended.
    times_to_accuracy: percent -> the seconds of the runs that got there; those that did not are in none.
    training_ends: the seconds that every run trained, whether or not they are an outcome. profiled: what profilers found.
    checks: what runs say of how they were measured (`check/…`), which is not judged.
    """

    factor: str
    baseline: str
    levels: tuple[str, ...]
    margin: float
    findings: tuple[Finding, ...]
    excluded: tuple[Exclusion, ...]
    environment: Mapping[str, Mapping[str, str]]
    values: Mapping[str, tuple[Value, ...]]
    primary: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()
    missing_sensors: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    n_runs: int = 0
    controls: tuple[Control, ...] = ()
    summaries: tuple[Finding, ...] = ()
    rests_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    frontier: tuple[Edge, ...] = ()
    times_to_accuracy: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    training_ends: tuple[Value, ...] = ()
    profiled: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    checks: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    @property
    def looks(self) -> tuple[Look, ...]:
        """When it was looked, stratum by stratum, where the number of blocks was not fixed."""
        by_stratum = {one.row.stratum: one.looks for one in self.findings if one.looks.blocks}
        return tuple(
            Look(
                stratum,
                now.blocks[-1],
                now.planned[-1],
                ALPHA * now.spent[-1],
                now.level(ALPHA),
                now.confidence,
            )
            for stratum, looks in by_stratum.items()
            for now in looks.one_by_one()
        )

    @property
    def rows(self) -> tuple[Row, ...]:
        """The verdict table, as in `comparison.json`."""
        return tuple(finding.row for finding in self.findings)

    def to_frame(self) -> pd.DataFrame:
        """The rows as a table: a row each, a column for every key of `comparison.json`'s rows; missing numbers are NaN."""
        import pandas as pd

        return pd.DataFrame(
            [vars(row) for row in self.rows], columns=[field.name for field in fields(Row)]
        )

    @property
    def busy(self) -> str:
        """Why nothing that was timed may be judged, where others disturbed the cells of any row; else empty."""
        return next((finding.busy for finding in self.findings if finding.busy), "")

    @property
    def has_verdict(self) -> bool:
        """Whether any primary outcome could be judged; where none is declared, any outcome."""
        asked = [finding for finding in self.findings if finding.primary] or self.findings
        return any(finding.judged for finding in asked)


@dataclass(frozen=True)
class Look:
    """After how many blocks a campaign was judged, and how strictly.

    max_blocks: the most there could be. spent: of the error rate of 5 %, up to here. level: two-sided, of the test; confidence:
    of the interval, such that those of all looks together hold the truth in 95 %.
    """

    stratum: str
    blocks: int
    max_blocks: int
    spent: float
    level: float
    confidence: float


@dataclass(frozen=True)
class Control:
    """A test of the measurement itself, judged like everything else: the baseline against itself, as it is or slowed.

    expected: what must come out, in words. injected: by which share every step and request was slowed; None if by nothing
    or where the runs do not say.
    """

    name: str
    comparison: Comparison
    expected: str
    injected: float | None = None

    @property
    def tested(self) -> tuple[Finding, ...]:
        """Outcomes with a test, whatever came out, or that never varied."""
        return tuple(finding for finding in self.comparison.findings if finding.is_tested)

    @property
    def delayed(self) -> tuple[Finding, ...]:
        """Tested outcomes in which an injected delay must show in full: medians of steps and requests.

        Of steps that ran freely, which have no median, their throughput.
        """
        single = any(finding.row.metric == DELAYED[0] for finding in self.tested)
        wanted = DELAYED if single else (*DELAYED, FREELY)
        return tuple(
            finding for finding in self.tested if without_batch(finding.row.metric) in wanted
        )

    def shows_delay(self, finding: Finding) -> bool:
        """Whether a delayed outcome is shown to be slower."""
        return finding.different and finding.way == "slower"

    def as_injected(self, finding: Finding) -> bool:
        """Whether the interval of a delayed outcome comes within the margin of what was injected, where that is known."""
        if self.injected is None:
            return True
        row, expected = finding.row, math.log1p(self.injected)
        low, high = (
            row.on_test_scale(row.ci_low, -math.inf),
            row.on_test_scale(row.ci_high, math.inf),
        )
        if finding.outcome.words[0] == "slower":  # a rate: longer steps lower it
            low, high = -high, -low
        return low <= expected + row.bound and high >= expected - row.bound

    @property
    def flagged(self) -> tuple[Finding, ...]:
        """Outcomes that were called different: in an A/A control, false alarms."""
        return tuple(finding for finding in self.tested if finding.different)

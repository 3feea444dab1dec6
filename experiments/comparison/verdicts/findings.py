"""Results of a comparison: frozen rows with the evidence for each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.comparison.runs.environment import Value
from experiments.comparison.runs.order import Order
from experiments.comparison.runs.pairing import Exclusion, FailedRuns, Mismatch
from experiments.comparison.runs.warning import ComparisonWarning
from experiments.comparison.statistics.autocorrelation import MeanDistribution
from experiments.comparison.statistics.estimates import (
    Estimate,
    Floats,
    differences,
    log_ratios,
)
from experiments.comparison.statistics.sequential import FIXED, Looks
from experiments.comparison.verdicts.decision import (
    ALPHA,
    MINIMUM_BLOCKS,
    UNJUDGED,
    WITHOUT_TEST,
    Decision,
    Withheld,
)
from experiments.metrics import DELAYED, FREELY, Outcome, without_batch

INCONCLUSIVE = "inconclusive"
NOT_COMPARABLE = "not comparable"
EQUIVALENT = "equivalent"
WITHIN_MARGIN = "different, within margin"
DETERMINISTIC = "deterministic"
PRIMARY, EXPLORATORY = "primary", "exploratory"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Line of the verdict table, as in `comparison.json`: b against the baseline a.

    The minimums are the true effects that four of five such campaigns show. Margin and minimums
    are relative for a ratio (0.03 is 3 %), in the metric's unit for a difference.

    Attributes:
        estimate: a ratio b / a or a difference b - a (see `kind`), from three blocks on.
        ci_low: end of its 95 % interval.
        ci_high: end of its 95 % interval; None if unbounded.
        no_estimate: a `NoEstimate`; empty if there is an estimate.
        family: `primary` for declared outcomes, else `exploratory`.
        p: two-sided, of the interval's distribution.
        p_holm: adjusted over the rows of the family.
        autocorrelation: expected AR(1) coefficient.
        autocorrelation_weight: of all coefficients above 0.
        widening: width of the interval over that for independent blocks.
        effect_size: Vargha and Delaney's A12: how often any run of b has a greater value than any
            of a, over all blocks.
        probability_within_blocks: the same within each block.
        slow_runs_a: runs of a far slower than its typical run (see `outliers`), of speeds only.
        slow_runs_b: the same of b.
        slow_runs_p: of Fisher's exact test that one side has more; None if neither has any.
        decision: the verdict as a `Decision`.
        minimum_detectable: with this as the only outcome.
        minimum_in_family: among all tests of its family.
        minimum_for_verdict: as a difference beyond the margin; None without a test.
    """

    metric: str
    factor: str
    a: str
    b: str
    n_blocks: int = 0
    estimate: float | None = None
    kind: str
    ci_low: float | None = None
    ci_high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    effect_size: float | None = None
    margin: float
    equivalent: bool | None = None
    minimum_detectable: float | None = None
    verdict: str = NOT_COMPARABLE
    reason: str = ""
    stratum: str = ""
    probability_within_blocks: float | None = None
    minimum_in_family: float | None = None
    minimum_for_verdict: float | None = None
    family: str = EXPLORATORY
    no_estimate: str = ""
    autocorrelation: float | None = None
    autocorrelation_weight: float | None = None
    widening: float | None = None
    slow_runs_a: int | None = None
    slow_runs_b: int | None = None
    slow_runs_p: float | None = None
    decision: str = ""

    @property
    def bound(self) -> float:
        """Margin on the scale of the test; the same for a against b and b against a."""
        return math.log1p(self.margin) if self.kind == "ratio" else self.margin

    def on_test_scale(self, value: float | None, unbounded: float = math.nan) -> float:
        """Return a number on the scale of the test: the logarithm of a ratio, or a difference."""
        if value is None:
            return unbounded
        if self.kind == "ratio":
            return math.log(value) if value > 0 else -math.inf
        return value


class Pair(NamedTuple):
    """Two values of one block, and its place in the order of time."""

    block: str
    a: float
    b: float
    sequence: int = 0


@dataclass(frozen=True)
class AcrossStrata:
    """Random-effects summary of several strata; no run is pooled.

    All numbers are None below three strata.

    Attributes:
        names: of the strata it rests on.
        left_out: strata without an estimate that has a variance.
        prediction_low: end of the interval of one more stratum; None if unbounded.
        prediction_high: end of the interval of one more stratum; None if unbounded.
        tau: SD between strata, of logarithms for ratios.
        i_squared_percent: None if a stratum does not vary.
        q_p: None if a stratum does not vary.
    """

    names: tuple[str, ...]
    left_out: tuple[str, ...]
    prediction_low: float | None = None
    prediction_high: float | None = None
    tau: float | None = None
    i_squared_percent: float | None = None
    q_p: float | None = None


@dataclass(frozen=True)
class Finding:
    """Row with the evidence for it: of one stratum, or, with `across`, of all strata together.

    Attributes:
        decision: the row's verdict as a code.
        withheld: why there is no verdict although there is an estimate.
        mismatch: why the runs are not comparable.
        busy: the text of a verdict withheld because others disturbed the cells.
        sample_size_text: end of the reason.
        mean: distribution of the trimmed mean; None if it did not vary.
        order: which side ran first, and the time in between.
        a_value: trimmed mean of a over the paired blocks, over all if b has no value; geometric if
            its kind is a ratio.
        b_value: the same of b.
        plan: how many more blocks should settle what is open; None if that cannot be predicted.
        block_seconds: median time of both runs of a block.
        took_turns: whether both ran at the same time, in turns.
        looks: blocks after which a campaign that goes on until it is settled was judged; every p
            and interval holds for all of them.
    """

    row: Row
    outcome: Outcome
    pairs: tuple[Pair, ...] = ()
    decision: Decision = Decision.NOT_COMPARABLE
    withheld: Withheld | None = None
    mismatch: Mismatch | None = None
    busy: str = ""
    sample_size_text: str = ""
    a_value: float | None = None
    b_value: float | None = None
    plan: int | None = None
    block_seconds: float | None = None
    took_turns: bool = False
    across: AcrossStrata | None = None
    mean: MeanDistribution | None = field(default=None, compare=False, repr=False)
    order: Order | None = None
    looks: Looks = FIXED

    @property
    def shifts(self) -> Floats:
        """Values of b against a in every block, on the scale of the test."""
        a, b = np.array([(pair.a, pair.b) for pair in self.pairs]).reshape(-1, 2).T
        return log_ratios(a, b) if self.row.kind == "ratio" else differences(a, b)

    @property
    def spread(self) -> float:
        """Standard error of the estimate times √blocks; 0 if it never varied."""
        if self.mean is None:
            return 0.0
        error = float(self.mean.fits.error[0]) * (self.row.widening or 1.0)
        return error * math.sqrt(self.row.n_blocks)

    @property
    def judged(self) -> bool:
        """True with a verdict: neither inconclusive nor not comparable."""
        return self.decision not in UNJUDGED

    @property
    def missing_blocks(self) -> int:
        """Blocks that a verdict needs in addition; 0 if there are enough or it is busy."""
        is_few = self.decision is Decision.TOO_FEW and not self.busy and not self.across
        return max(0, MINIMUM_BLOCKS - self.row.n_blocks) if is_few else 0

    @property
    def primary(self) -> bool:
        return self.row.family == PRIMARY

    @property
    def never_varied(self) -> bool:
        """True if every block or stratum showed the same: a verdict without a test."""
        return self.judged and self.row.p is None

    @property
    def different(self) -> bool:
        """True if a difference of any size is shown: by the corrected test, or it never varied."""
        if self.never_varied:
            return not self.identical
        return self.row.p_holm is not None and self.row.p_holm <= ALPHA

    @property
    def identical(self) -> bool:
        """True if both sides are the same but for rounding, in every block or stratum."""
        same = bool(self.pairs) and all(pair.a == pair.b for pair in self.pairs)
        return same or self.decision is Decision.IDENTICAL

    @property
    def way(self) -> str:
        """Direction of b from a, shown or not: faster, slower, higher or lower."""
        return self.outcome.words[self.row.on_test_scale(self.row.estimate) > 0]

    @property
    def good(self) -> bool | None:
        """True if b is better; None without a difference beyond the margin or a better way."""
        if self.decision is not Decision.DIFFERENT or self.outcome.better == "neither":
            return None
        return (self.row.verdict == self.outcome.words[0]) == (self.outcome.better == "lower")

    @property
    def width(self) -> float | None:
        """Width of the interval on the scale of the estimate; None if unbounded or without any."""
        low, high = self.row.ci_low, self.row.ci_high
        return None if low is None or high is None or low == high else high - low

    @property
    def times(self) -> Estimate | None:
        """Ratio turned so that it is at least 1: half the time is 2 times faster."""
        row = self.row
        if row.kind != "ratio" or row.estimate is None:
            return None
        low, high = row.ci_low or 0.0, math.inf if row.ci_high is None else row.ci_high
        if row.estimate >= 1:
            return Estimate(row.estimate, low, high)
        return Estimate(1 / row.estimate, 1 / high, 1 / low if low else math.inf)


def grouped(findings: Iterable[Finding]) -> dict[tuple[str, str, str], list[Finding]]:
    """Return findings by stratum, a and b."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.row.stratum, finding.row.a, finding.row.b), []).append(finding)
    return groups


@dataclass(frozen=True)
class Edge:
    """Memory limit of one level in one stratum.

    Attributes:
        fits: the largest size with a run that ended well.
        too_large: the smallest size that never did.
        phase: what did not fit, training or inference; empty if runs do not state it.
    """

    level: str
    stratum: str
    fits: int | None
    too_large: int
    phase: str = ""


@dataclass(frozen=True)
class Comparison:
    """Content of a report.

    Attributes:
        primary: declared outcomes; their rows are a separate family.
        unmeasured: requested outcomes that no run has.
        missing_sensors: sensor -> reason for which it is not available.
        summaries: a finding of all strata together for every outcome and pair of levels.
        rests_on: machines, teams and campaigns of the usable runs.
        frontier: memory limits.
        times_to_accuracy: percent -> seconds of the runs that reached it.
        unjudged: values by profilers, how runs were measured (`check/…`), and the seconds that
            every run trained, an outcome or not.
        conditions: settings that a reader must know -> the value of all runs, or "several".
        random_weights: whether features come from random weights: their quality means nothing.
        smoke: whether the runs only show that everything works.
        failures: levels of whose runs some failed.
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
    warnings: tuple[ComparisonWarning, ...] = ()
    n_runs: int = 0
    controls: tuple[Control, ...] = ()
    summaries: tuple[Finding, ...] = ()
    rests_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    frontier: tuple[Edge, ...] = ()
    times_to_accuracy: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    unjudged: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    random_weights: bool = False
    smoke: bool = False
    failures: tuple[FailedRuns, ...] = ()

    @property
    def looks(self) -> list[dict[str, Any]]:
        """Looks of every stratum whose number of blocks was not fixed, as in `comparison.json`.

        `spent` is of the error rate of 5 %, up to there; `level` is two-sided, of the test; the
        intervals of all looks together hold the truth in 95 %.
        """
        by_stratum = {
            finding.row.stratum: finding.looks for finding in self.findings if finding.looks.blocks
        }
        return [
            {
                "stratum": stratum,
                "blocks": now.blocks[-1],
                "max_blocks": now.planned[-1],
                "spent": ALPHA * now.spent[-1],
                "level": now.level(ALPHA),
                "confidence": now.confidence,
            }
            for stratum, looks in by_stratum.items()
            for now in looks.each()
        ]

    @property
    def rows(self) -> tuple[Row, ...]:
        """Verdict table, as in `comparison.json`."""
        return tuple(finding.row for finding in self.findings)

    def to_frame(self) -> pd.DataFrame:
        """Return the rows as a table with the keys of `comparison.json`'s rows as columns."""
        names = [field.name for field in fields(Row)]
        return pd.DataFrame([vars(row) for row in self.rows], columns=names)

    @property
    def unmeasurable(self) -> frozenset[str]:
        """Metrics that the design cannot measure in any pair: cells that take turns have no total.

        Their rows stay in `comparison.json`; no table or figure has them.
        """
        measurable = {
            finding.row.metric
            for finding in self.findings
            if finding.mismatch is not Mismatch.TURNS
        }
        return frozenset(finding.row.metric for finding in self.findings) - measurable

    @property
    def has_verdict(self) -> bool:
        """True if a primary outcome has a verdict, or any outcome if none is declared."""
        return any(
            finding.judged for finding in self.findings if finding.primary or not self.primary
        )


@dataclass(frozen=True)
class Control:
    """Test of the measurement itself: the baseline against itself, as it is or slowed.

    Attributes:
        expected: the result that must come out, as text.
        injected: share by which every step, request or command was slowed; None if by nothing or
            unknown.
    """

    name: str
    comparison: Comparison
    expected: str
    injected: float | None = None

    @property
    def tested(self) -> tuple[Finding, ...]:
        """Outcomes with a test, or nothing to test because they never varied."""
        findings = self.comparison.findings
        return tuple(finding for finding in findings if finding.decision not in WITHOUT_TEST)

    @property
    def delayed(self) -> tuple[Finding, ...]:
        """Tested outcomes in which an injected delay must show in full.

        Medians of steps and requests, wall times of commands; throughput of steps that ran freely,
        which have no median.
        """
        single = any(finding.row.metric == DELAYED[0] for finding in self.tested)
        metrics = DELAYED if single else (*DELAYED, FREELY)
        return tuple(
            finding for finding in self.tested if without_batch(finding.row.metric) in metrics
        )

    def as_injected(self, finding: Finding) -> bool:
        """Return whether the interval comes within the margin of the injected delay."""
        if self.injected is None:
            return True
        row, expected = finding.row, math.log1p(self.injected)
        low = row.on_test_scale(row.ci_low, -math.inf)
        high = row.on_test_scale(row.ci_high, math.inf)
        if finding.outcome.words[0] == "slower":  # a rate: longer steps lower it
            low, high = -high, -low
        return low <= expected + row.bound and high >= expected - row.bound

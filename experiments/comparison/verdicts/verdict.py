"""Verdicts of a table of runs: pairs inside blocks, an estimate, a test, a margin and a reason."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.comparison.runs import (
    environment,
    expected_differences,
    looks,
    order,
    pairing,
    query,
)
from experiments.comparison.runs.order import Order
from experiments.comparison.runs.pairing import (
    Exclusion,
    Incomparability,
    Mismatch,
    natural,
)
from experiments.comparison.runs.warning import ComparisonWarning, WarningCode
from experiments.comparison.statistics import autocorrelation, estimates, outliers, power
from experiments.comparison.statistics.autocorrelation import MeanDistribution
from experiments.comparison.statistics.estimates import MINIMUM_VALUES, Estimate, Floats
from experiments.comparison.statistics.sequential import Looks
from experiments.comparison.verdicts import busy, conditions, extended, reasons, sample_size
from experiments.comparison.verdicts.decision import (
    ALPHA,
    MINIMUM_BLOCKS,
    NoEstimate,
    Withheld,
)
from experiments.comparison.verdicts.findings import (
    EXPLORATORY,
    PRIMARY,
    Comparison,
    Finding,
    Pair,
    Row,
)
from experiments.comparison.verdicts.strata import summarise
from experiments.config.settings import SMOKE
from experiments.metrics import (
    CHECKS,
    HIDDEN,
    OF_MACHINE,
    PER_STEP,
    PROFILED,
    TOTAL,
    Outcome,
    check_outcomes,
    check_primary,
    in_percent,
    is_quality,
    place,
)
from experiments.metrics import outcome as outcome_of
from tracking import plain
from tracking.errors import ErrorCode, UsageError

PAIRING, INTERLEAVED = "params.pairing", "interleaved"
TOOK_TURNS = Incomparability(
    Mismatch.TURNS,
    "with pairing=interleaved the cells of a block take turns; first steps and total times depend "
    "on all of them",
)
STEPS = Incomparability(
    Mismatch.BATCH_SIZES,
    "the sides have other batch sizes, and so a step trains on another number of examples; compare "
    "rates",
)
BATCH_SIZE = "params.batch_size"
_NUMERIC = ("floating", "integer", "mixed", "decimal")


@dataclass(frozen=True)
class ComparisonSpec:
    """Arguments of `compare`.

    Attributes:
        protocol: `paper` shows the published procedure too.
        pair_by: What pairs runs instead of blocks; empty: their blocks.
        ignore: Patterns of params that may differ.
        fail_if: Conditions by which the call fails; the metrics that they name are primary, too.
        and_others: Whether metrics that are not among the outcomes are judged, too.
    """

    factor: str = "framework"
    baseline: str | None = None
    outcomes: Sequence[str | Outcome] | None = None
    primary: Sequence[str] = ()
    margin: float = 0.03
    strata: Sequence[str] = ()
    allowed_to_differ: Sequence[str] = ()
    all_pairs: bool = False
    protocol: str = "sound"
    and_others: bool = False
    pair_by: str = ""
    ignore: Sequence[str] = ()
    fail_if: Sequence[str] = ()

    @property
    def may_differ(self) -> tuple[str, ...]:
        """Settings in which compared runs may differ: names, or patterns of them."""
        paired = (pairing.plain_name(self.pair_by),) if self.pair_by else ()
        return (*self.allowed_to_differ, *self.ignore, *paired)


def judge(table: pd.DataFrame, spec: ComparisonSpec) -> Comparison:
    """Judge every level of a factor against a baseline, on every outcome, in every stratum.

    Holm's correction spans all rows of a family: the primary outcomes, and all others.

    Args:
        table: one row a run; settings as `params.X`, tags as `tags.X`, metrics under their own
            names (see `query.table`).
        spec: the factor, its baseline, outcomes and margins.

    Raises:
        UsageError: for a call that cannot be carried out; data that cannot be compared give rows
            with the reason.
    """
    if not 0 < spec.margin < 1:
        raise UsageError(
            ErrorCode.INVALID_VALUE, f"margin={spec.margin} is not between 0 and 1; 0.03 means 3 %"
        )
    runs = pairing.select_usable(
        table, factor=spec.factor, strata=spec.strata, pair_by=spec.pair_by
    )
    frame, levels = runs.frame, _levels(spec, runs.levels)
    request = _resolve(table, frame, spec)
    pairs = [(levels[0], level) for level in levels[1:]]
    if spec.all_pairs:
        pairs = list(itertools.combinations(levels, 2))
    groups = [frame[frame["group"] == group] for group in sorted(set(frame["group"]), key=natural)]
    parts = [part for group in groups for a, b in pairs for part in _compare(group, a, b, request)]
    undecided, excluded, orders = zip(*parts, strict=True) if parts else ((), (), ())
    findings = _decide(itertools.chain(*undecided), levels)

    shown = (PROFILED, CHECKS, TOTAL, *OF_MACHINE)
    unjudged = [name for name in frame.columns if name.startswith(shown)]
    return Comparison(
        factor=spec.factor,
        baseline=levels[0],
        levels=levels,
        margin=spec.margin,
        primary=request.primary,
        findings=tuple(findings),
        excluded=tuple(dict.fromkeys(itertools.chain(runs.excluded, *excluded))),
        environment=environment.describe_environment(frame, levels),
        values=environment.values(frame, [outcome.metric for outcome in request.outcomes]),
        unmeasured=request.unmeasured,
        missing_sensors=environment.missing_sensors(frame),
        warnings=(
            *environment.warnings(frame),
            *extended.warnings(frame),
            *busy.load_warnings(frame),
            *busy.repeated_blocks(runs.excluded),
            *order.warnings(list(filter(None, orders))),
            *_cautions(frame, spec, request.outcomes),
        ),
        n_runs=len(frame),
        summaries=summarise(findings),
        rests_on=environment.rests_on(frame),
        times_to_accuracy={} if _took_turns(frame) else environment.times_to_accuracy(frame),
        unjudged=environment.values(frame, unjudged),
        conditions=environment.conditions(frame, (spec.factor, *spec.strata)),
        random_weights=request.random_weights,
        failures=runs.failures,
        smoke=len(frame) > 0 and environment.all_runs_have(frame, "params.preset", SMOKE),
    )


def _cautions(
    frame: pd.DataFrame, spec: ComparisonSpec, outcomes: Iterable[Outcome]
) -> Iterator[ComparisonWarning]:
    """Yield warnings on runs that were not measured as blocks of a campaign."""
    if spec.pair_by:
        yield ComparisonWarning(
            WarningCode.PAIRED_BY,
            f"Runs are paired by {spec.pair_by}, since they have no blocks: whatever changed "
            "between the two runs of a pair is in the difference.",
        )
    yield from busy.unknown_load(frame, outcomes)
    factor = pairing.column_of(frame, spec.factor)
    by_nature = expected_differences.differs_by(spec.factor, frame.columns) | {factor}
    timed = any(not outcome.is_learned for outcome in outcomes)
    yield from environment.warnings_of_others(frame, by_nature, timed=timed)
    settings = pairing.settings_of(frame, spec.factor, spec.strata, ())
    ignored = [column for column in settings if pairing.matches(column, spec.ignore)]
    if differing := pairing.varying(frame, ignored):
        yield ComparisonWarning(
            WarningCode.IGNORED_SETTINGS, f"Settings differ and are ignored: {differing}."
        )
    rest = [column for column in settings if column not in ignored]
    expected = expected_differences.autologged(frame, rest) if len(frame) else ()
    if differing := pairing.varying(frame, sorted(expected)):
        yield ComparisonWarning(
            WarningCode.AUTOLOGGED_SETTINGS,
            f"MLflow logged other settings for each {spec.factor}: {differing}.",
        )


def _took_turns(*sides: pd.DataFrame) -> bool:
    return any(PAIRING in side and bool((side[PAIRING] == INTERLEAVED).any()) for side in sides)


@dataclass(frozen=True)
class _Request:
    """A spec with what the runs have of it.

    Attributes:
        outcomes: requested outcomes that a run has, in the report's order.
        unmeasured: requested outcomes that no run has.
        values: a row a run, all its metrics as numbers, requested or not.
        kinds: `ratio` or `difference`, of each metric.
        random_weights: whether quality means nothing, so that it is no primary outcome.
    """

    spec: ComparisonSpec
    outcomes: Sequence[Outcome]
    unmeasured: tuple[str, ...]
    primary: tuple[str, ...]
    values: pd.DataFrame
    kinds: Mapping[str, str]
    random_weights: bool


def _resolve(table: pd.DataFrame, frame: pd.DataFrame, spec: ComparisonSpec) -> _Request:
    factors = {pairing.column_of(table, name) for name in (spec.factor, *spec.strata)}
    others = {*query.FIRST, *pairing.DERIVED_COLUMNS, *factors}
    metrics = [str(c) for c in frame.columns if c not in others and _is_metric(frame[c], str(c))]
    requested = sorted(metrics, key=place) if spec.outcomes is None else list(spec.outcomes)
    if spec.and_others:
        keys = {name if isinstance(name, str) else name.metric for name in requested}
        requested += [name for name in sorted(metrics, key=place) if name not in keys]
    missing = [name for name in requested if isinstance(name, str) and name not in frame.columns]
    check_outcomes(missing, metrics)
    resolved = [outcome_of(name) if isinstance(name, str) else name for name in requested]
    measured = [
        in_percent(outcome, environment.numbers(frame, outcome.metric))
        for outcome in resolved
        if outcome.metric in frame and frame[outcome.metric].notna().any()
    ]
    outcomes = sorted(measured, key=lambda outcome: place(outcome.metric))
    keys = {outcome.metric for outcome in outcomes}
    unmeasured = tuple(outcome.metric for outcome in resolved if outcome.metric not in keys)
    primary = check_primary(spec.primary, [outcome.metric for outcome in outcomes], unmeasured)
    random_weights = len(frame) > 0 and environment.all_runs_have(frame, "tags.weights", "random")
    if random_weights:
        primary = tuple(metric for metric in primary if not is_quality(outcome_of(metric)))
    gates = conditions.parse(spec.fail_if)
    if primary or all(gate.metric for gate in gates):  # else `worse` is about all outcomes
        named = (outcome.metric for outcome in outcomes)
        primary += tuple(
            metric
            for metric in named
            if metric not in primary and any(gate.metric and gate.names(metric) for gate in gates)
        )
    kinds = {metric: outcome_of(metric).kind for metric in metrics}
    kinds |= {outcome.metric: outcome.kind for outcome in outcomes}
    columns = {metric: environment.numbers(frame, metric) for metric in kinds}
    values = pd.DataFrame(columns, frame.index)
    return _Request(spec, outcomes, unmeasured, primary, values, kinds, random_weights)


def _decide(findings: Iterable[Finding], levels: Sequence[str]) -> list[Finding]:
    def key(finding: Finding) -> tuple[Any, ...]:
        row = finding.row
        sides = (levels.index(row.a), levels.index(row.b))
        return (natural(row.stratum), not finding.primary, place(row.metric), *sides)

    return sorted(reasons.decide(list(findings), sample_size.plan_row), key=key)


def _levels(spec: ComparisonSpec, levels: Sequence[str]) -> tuple[str, ...]:
    """Return the levels, the baseline first."""
    baseline = spec.baseline
    if baseline is not None and str(baseline) not in levels:
        have = ", ".join(levels) or "no level at all"
        raise UsageError(
            ErrorCode.UNKNOWN_NAME,
            f"no run has {spec.factor}={baseline}, the baseline; have {have}",
        )
    if len(levels) < 2:
        have = f"{spec.factor}={levels[0]}" if levels else f"no {spec.factor}"
        raise UsageError(
            ErrorCode.ONE_SIDE,
            f"only one side: all runs have {have}; a comparison needs two levels",
        )
    first = levels[0] if baseline is None else str(baseline)
    return (first, *(level for level in levels if level != first))


def _is_metric(column: pd.Series, name: str) -> bool:
    """Return whether a column is a metric; a key without a slash is one if it holds any number."""
    if name.startswith(("params.", "tags.", *HIDDEN)) or not column.notna().any():
        return False
    return "/" in name or pd.api.types.infer_dtype(column, skipna=True).startswith(_NUMERIC)


# Findings of a pair of levels in one stratum, what is left out, and the order of the pairs: None if
# levels cannot run side by side, or nothing was paired.
_Part = tuple[list[Finding], list[Exclusion], Order | None]


def _compare(frame: pd.DataFrame, a: str, b: str, request: _Request) -> Iterator[_Part]:
    both, spec = frame[frame["level"].isin([a, b])], request.spec
    group = str(frame["group"].iloc[0])
    outcomes = [outcome for outcome in request.outcomes if frame[outcome.metric].notna().any()]

    def blank(stratum: str) -> list[Finding]:
        return [
            Finding(
                Row(
                    metric=outcome.metric,
                    factor=spec.factor,
                    a=a,
                    b=b,
                    kind=outcome.kind,
                    margin=spec.margin if outcome.margin is None else outcome.margin,
                    stratum=stratum,
                    family=PRIMARY if outcome.metric in request.primary else EXPLORATORY,
                ),
                outcome,
            )
            for outcome in outcomes
        ]

    mismatch = pairing.find_mismatch(both, spec.factor, spec.may_differ)
    if missing := [level for level in (a, b) if not (both["level"] == level).any()]:
        mismatch = Incomparability(Mismatch.NO_RUN, f"no usable run of {' or '.join(missing)}")
    if mismatch:
        yield [_not_comparable(finding, mismatch) for finding in blank(group)], [], None
        return
    parts, excluded = pairing.split_strata(both, a, b)
    yield [], excluded, None
    for part in parts:
        names = part["stratum"].unique()
        stratum = str(names[0]) if len(names) == 1 else group
        yield _compare_stratum(part, a, b, blank(stratum), request)


def _compare_stratum(
    runs: pd.DataFrame, a: str, b: str, blank: Sequence[Finding], request: _Request
) -> _Part:
    first, second, excluded, mismatch = pairing.pair_runs(runs, a, b, request.spec.factor)
    ran = refused = None
    if not mismatch and not runs["apart"].any():
        ran = order.order_of_pairs(first, second)
        refused = Incomparability(Mismatch.ORDER, ran.refused) if ran.refused else None
    if mismatch:
        return [_not_comparable(finding, mismatch) for finding in blank], excluded, ran
    paired = _Paired(
        (first, second),
        first["block_label"].astype(str).to_numpy(),
        np.maximum(first["sequence"].to_numpy(), second["sequence"].to_numpy()),
        looks.looks_of_runs(runs),
    )
    means, disturbed = _means(paired, request), busy.busy_reason(first, second)
    took_turns = _took_turns(first, second)
    sizes = {str(size) for side in (first, second) for size in side.get(BATCH_SIZE, ())}
    seconds = environment.block_seconds(first, second)
    metrics = [finding.row.metric for finding in blank]
    sides = (request.values.loc[side.index, metrics].to_numpy().T for side in (first, second))
    findings = []
    for finding, *values in zip(blank, *sides, strict=True):
        gates = (
            (refused, not finding.outcome.is_learned),
            (STEPS, len(sizes) > 1 and PER_STEP in finding.row.metric),
            (TOOK_TURNS, took_turns and outcome_of(finding.row.metric).exclusive),
        )
        if closed := next((gate for gate, is_closed in gates if gate and is_closed), None):
            findings.append(_not_comparable(finding, closed))
            continue
        measured, left_out = _measure(finding, paired, means.get(finding.row.metric), *values)
        measured = busy.withhold(measured, disturbed)
        findings.append(replace(measured, order=ran, block_seconds=seconds, took_turns=took_turns))
        excluded += left_out
    return findings, excluded, ran


def _without_estimate(finding: Finding, code: NoEstimate, reason: str, **fields: Any) -> Finding:
    return replace(finding, row=replace(finding.row, reason=reason, no_estimate=code), **fields)


def _not_comparable(finding: Finding, mismatch: Incomparability) -> Finding:
    return _without_estimate(
        finding, NoEstimate.NOT_COMPARABLE, mismatch.text, mismatch=mismatch.code
    )


@dataclass(frozen=True)
class _Paired:
    """Runs of two levels, row by row from the same block.

    Attributes:
        blocks: labels of the blocks.
        sequence: their order in time.
        looks: of a campaign that goes on until it is settled.
    """

    runs: tuple[pd.DataFrame, pd.DataFrame]
    blocks: NDArray[np.object_]
    sequence: NDArray[np.int_]
    looks: Looks


def _means(paired: _Paired, request: _Request) -> dict[str, MeanDistribution]:
    """Return the distribution of every metric's trimmed mean, except where it is constant."""
    in_time = np.argsort(paired.sequence, kind="stable")
    sides = [request.values.loc[side.index].to_numpy()[in_time].T for side in paired.runs]
    before = np.ones(len(in_time), dtype=bool)
    if paired.looks.blocks:
        before = paired.blocks[in_time].astype(float) <= paired.looks.blocks[-1]
    series = {}
    for (metric, kind), a, b in zip(request.kinds.items(), *sides, strict=True):
        finite = before & np.isfinite(a) & np.isfinite(b)
        if (shifts := _varying(a[finite], b[finite], kind)) is not None:
            series[metric] = shifts
    if not series:
        return {}
    means = autocorrelation.distributions_of(list(series.values()))
    return {metric: means[position] for position, metric in enumerate(series)}


def _varying(a: Floats, b: Floats, kind: str) -> Floats | None:
    if len(a) < MINIMUM_VALUES or (kind == "ratio" and min(a.min(), b.min()) <= 0):
        return None
    shifts = estimates.log_ratios(a, b) if kind == "ratio" else estimates.differences(a, b)
    scale = 1.0 if kind == "ratio" else float(np.abs([a, b]).max())
    return None if estimates.is_constant(shifts, scale) else shifts


def _measure(
    finding: Finding, paired: _Paired, mean: MeanDistribution | None, a: Floats, b: Floats
) -> tuple[Finding, list[Exclusion]]:
    """Estimate and test one outcome over paired runs; the verdict waits for Holm's correction.

    Args:
        finding: without numbers.
        mean: the distribution of its trimmed mean.
        a: its values on one side, NaN if missing.
        b: its values on the other side.
    """
    row, metric = finding.row, finding.row.metric
    sides = tuple(zip((row.a, row.b), paired.runs, (a, b), strict=True))
    if unmeasured := {level: runs for level, runs, side in sides if np.isnan(side).all()}:
        reason = _without_numbers(unmeasured, metric)
        values = {"a_value": _typical(a, row.kind), "b_value": _typical(b, row.kind)}
        return _without_estimate(finding, NoEstimate.NOT_MEASURED, reason, **values), []
    excluded = []
    for _, runs, side in sides:
        for at in np.flatnonzero(~np.isfinite(side)):
            run = runs.iloc[at]
            number = "no value, or not a number" if np.isnan(side[at]) else "infinite"
            reason = f"{_text([run[metric]]) or number}; its block is left out of this metric"
            excluded.append(pairing.exclude(run, reason, metric=metric))
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.any():
        return _without_estimate(
            finding, NoEstimate.NO_PAIR, "no block has a finite value on both sides"
        ), excluded
    a, b = a[finite], b[finite]
    columns = (paired.blocks[finite], a, b, paired.sequence[finite])
    pairs = tuple(map(Pair, *(column.tolist() for column in columns)))
    if row.kind == "ratio" and min(a.min(), b.min()) <= 0:
        return _without_estimate(
            finding,
            NoEstimate.NO_RATIO,
            "zero or negative values have no ratio; state a margin in its unit with an Outcome "
            "of kind difference",
            pairs=pairs,
        ), excluded
    return _estimate(replace(finding, pairs=pairs, looks=paired.looks), mean, a, b), excluded


def _typical(values: Floats, kind: str) -> float | None:
    """Return the trimmed mean of the finite values, geometric for ratios; None if there is none."""
    finite = values[np.isfinite(values)]
    if not len(finite) or (kind == "ratio" and finite.min() <= 0):
        return None
    if kind == "ratio":
        return math.exp(estimates.trim(np.log(finite)).centre)
    return float(estimates.trim(finite).centre)


def _without_numbers(sides: Mapping[str, pd.DataFrame], metric: str) -> str:
    texts = {level: _text(frame[metric]) for level, frame in sides.items()}
    missing = [level for level, text in texts.items() if not text]
    parts = [f"{text} on {level}" for level, text in texts.items() if text]
    if missing:
        cause = environment.missing_reason([sides[level] for level in missing], metric)
        first = f"not measured on {' and '.join(missing)}"
        parts.insert(0, f"{first} ({cause})" if cause else first)
    return "; ".join(parts)


def _text(values: Iterable[object]) -> str:
    texts = (value for value in values if isinstance(value, str))
    return next((f"text instead of a number ('{plain.short(text)}')" for text in texts), "")


def _estimate(finding: Finding, mean: MeanDistribution | None, a: Floats, b: Floats) -> Finding:
    row, schedule, ratio = finding.row, finding.looks, finding.row.kind == "ratio"
    sides = (np.log(a), np.log(b)) if ratio else (a, b)
    finding = replace(finding, a_value=_typical(a, row.kind), b_value=_typical(b, row.kind))
    count = len(a)
    reason = ""
    if count < MINIMUM_BLOCKS:
        no_comparison = ": no comparison" if count < MINIMUM_VALUES else ""
        plural = "s" if count > 1 else ""
        reason = f"{count} block{plural}{no_comparison}; a verdict needs {MINIMUM_BLOCKS}"
    row = replace(row, n_blocks=count, reason=reason)
    if count < MINIMUM_VALUES:
        return replace(finding, row=replace(row, no_estimate=NoEstimate.TOO_FEW_BLOCKS))
    shifts = estimates.log_ratios(a, b) if ratio else estimates.differences(a, b)
    centre = float(estimates.trim(shifts).centre)
    bounds = map(float, mean.interval(schedule.confidence)) if mean else (centre, centre)
    interval = Estimate(centre, *bounds)
    detectable = 0.0
    if mean:
        half = estimates.t_quantile((1 + schedule.confidence) / 2, float(mean.fits.df))
        row = replace(
            row,
            autocorrelation=float(mean.autocorrelation),
            autocorrelation_weight=float(mean.autocorrelated),
            widening=(interval.high - interval.low) / (2 * half * mean.fits.error[0]),
        )
        finding = replace(finding, row=row, mean=mean)
        least = power.minimum_detectable(finding.spread, count, alpha=schedule.level(ALPHA))
        detectable = sample_size.as_effect(least, row.kind)
    interval = estimates.exponential(interval) if ratio else interval
    row = replace(
        row,
        estimate=interval.value,
        ci_low=interval.low,
        ci_high=None if interval.high == math.inf else interval.high,
        effect_size=estimates.a12(a, b),
        probability_within_blocks=estimates.probability_within_blocks(shifts),
        minimum_detectable=detectable,
        **_slow_runs(finding.outcome, *sides),
    )
    finding = replace(finding, row=row)
    if count < MINIMUM_BLOCKS:
        return replace(finding, withheld=Withheld.TOO_FEW_BLOCKS)
    return _test(finding, mean)


def _test(finding: Finding, mean: MeanDistribution | None) -> Finding:
    row, schedule = finding.row, finding.looks
    if mean is None:
        equivalent = abs(row.on_test_scale(row.estimate)) < row.bound
        return replace(finding, row=replace(row, equivalent=equivalent))
    tost_p = float(schedule.one_sided(mean.p_within(row.bound)))
    row = replace(row, p=float(schedule.p(mean.p())), equivalent=tost_p < ALPHA)
    return replace(finding, row=row)


def _slow_runs(outcome: Outcome, a: Floats, b: Floats) -> dict[str, Any]:
    """Return the slow runs of both sides and a test that one has more, of speeds from 6 blocks."""
    if not outcome.is_speed or len(a) < MINIMUM_BLOCKS:
        return {}
    sign = 1.0 if outcome.words[1] == "slower" else -1.0
    slow_a, slow_b = outliers.high_values(sign * a), outliers.high_values(sign * b)
    counts = (slow_a, len(a), slow_b, len(b))
    p = outliers.more_p(*counts, two_sided=True) if slow_a or slow_b else None
    return {"slow_runs_a": slow_a, "slow_runs_b": slow_b, "slow_runs_p": p}

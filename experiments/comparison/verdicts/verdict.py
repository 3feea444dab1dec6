"""From a table of runs to verdicts: pairs inside blocks, an estimate, a test, a margin, and a reason for every word."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.comparison.runs import environment, looks, order, pairing, query
from experiments.comparison.runs.order import Order
from experiments.comparison.runs.pairing import Exclusion, natural
from experiments.comparison.statistics import autocorrelation, estimates, power, significance
from experiments.comparison.statistics.autocorrelation import MeanDistribution
from experiments.comparison.statistics.estimates import MINIMUM_VALUES, Estimate, Floats
from experiments.comparison.statistics.sequential import FIXED, Looks
from experiments.comparison.verdicts import busy, extended, outlook, reasons, turns
from experiments.comparison.verdicts.decision import (
    ALPHA,
    MINIMUM_BLOCKS,
    NoEstimate,
    Widening,
    Withheld,
)
from experiments.comparison.verdicts.findings import (
    NOT_COMPARABLE,
    PRIMARY,
    Comparison,
    Finding,
    Pair,
    Row,
)
from experiments.comparison.verdicts.strata import summaries
from experiments.metrics import CHECKS, HIDDEN, PROFILED, TOTAL, Outcome, declared, place
from experiments.metrics import checked as check_outcomes
from experiments.metrics import outcome as outcome_of
from tracking import plain
from tracking.errors import WrongCall

# Intervals at least so many times as wide as a t interval say why.
NOTABLE = 1.25
_NUMERIC = ("floating", "integer", "mixed", "decimal")


@dataclass(frozen=True)
class ComparisonSpec:
    """Everything that is asked of the runs, in `compare`'s words. protocol: `paper` shows the published procedure too."""

    factor: str = "framework"
    baseline: str | None = None
    outcomes: Sequence[str | Outcome] | None = None
    primary: Sequence[str] = ()
    margin: float = 0.03
    strata: Sequence[str] = ()
    allowed_to_differ: Sequence[str] = ()
    all_pairs: bool = False
    protocol: str = "sound"


def judge(table: pd.DataFrame, spec: ComparisonSpec) -> Comparison:
    """Judge every level of a factor against a baseline, on every outcome, in every stratum.

    Holm's correction spans all rows of a family: the primary outcomes, and all others.

    Args:
        table: one row a run; settings as `params.X`, tags as `tags.X`, metrics under their own
            names (see `query.table`).
        spec: what is asked of them.

    Raises:
        WrongCall: for a call that cannot be carried out; data that cannot be compared give rows
            that say why.
    """
    if not 0 < spec.margin < 1:
        raise WrongCall(f"margin={spec.margin} is not between 0 and 1; 0.03 means 3 %")
    runs = pairing.usable(table, factor=spec.factor, strata=spec.strata)
    frame, levels = runs.frame, _levels(spec, runs.levels)
    question = _question(table, frame, spec)
    couples = (
        list(itertools.combinations(levels, 2))
        if spec.all_pairs
        else [(levels[0], level) for level in levels[1:]]
    )
    groups = [frame[frame["group"] == group] for group in sorted(set(frame["group"]), key=natural)]
    parts = [
        part for group in groups for a, b in couples for part in _compare(group, a, b, question)
    ]
    findings = _decided([one for part in parts for one in part.findings], question.primary, levels)
    excluded = [*runs.excluded, *(one for part in parts for one in part.excluded)]
    orders = [part.order for part in parts if part.order]

    def beginning(prefix: str) -> list[str]:
        return [name for name in frame.columns if name.startswith(prefix)]

    return Comparison(
        factor=spec.factor,
        baseline=levels[0],
        levels=levels,
        margin=spec.margin,
        primary=question.primary,
        findings=tuple(findings),
        excluded=tuple(dict.fromkeys(excluded)),
        environment=environment.environment(frame, levels),
        values=environment.values(frame, [outcome.metric for outcome in question.outcomes]),
        unmeasured=question.unmeasured,
        missing_sensors=environment.missing_sensors(frame),
        warnings=(
            *(*environment.warnings(frame), *extended.warnings(frame)),
            *(*busy.flagged(frame), *busy.repeated(runs.excluded), *order.warnings(orders)),
        ),
        n_runs=len(frame),
        summaries=summaries(findings),
        rests_on=environment.rests_on(frame),
        times_to_accuracy={} if turns.taken(frame) else environment.times_to_accuracy(frame),
        training_ends=environment.values(frame, [TOTAL])[TOTAL] if TOTAL in frame.columns else (),
        profiled=environment.values(frame, beginning(PROFILED)),
        checks=environment.values(frame, beginning(CHECKS)),
    )


@dataclass(frozen=True)
class _Question:
    """A spec with what the runs have of it.

    Attributes:
        outcomes: those that a run has, in the report's order.
        unmeasured: those asked for that none has.
        values: a row a run, all its metrics as numbers, requested or not.
        kinds: `ratio` or `difference`, of each metric.
    """

    spec: ComparisonSpec
    outcomes: Sequence[Outcome]
    unmeasured: tuple[str, ...]
    primary: tuple[str, ...]
    values: pd.DataFrame
    kinds: Mapping[str, str]


def _question(table: pd.DataFrame, frame: pd.DataFrame, spec: ComparisonSpec) -> _Question:
    others = {
        *query.FIRST,
        *pairing.OWN,
        *(pairing.column_of(table, name) for name in (spec.factor, *spec.strata)),
    }
    metrics = [str(c) for c in frame.columns if c not in others and _is_metric(frame[c], str(c))]
    asked = sorted(metrics, key=place) if spec.outcomes is None else list(spec.outcomes)
    check_outcomes(
        [one for one in asked if isinstance(one, str) and one not in frame.columns], metrics
    )
    known = [outcome_of(one) if isinstance(one, str) else one for one in asked]
    there = [
        one for one in known if one.metric in frame.columns and frame[one.metric].notna().any()
    ]
    outcomes = sorted(there, key=lambda one: place(one.metric))
    unmeasured = tuple(one.metric for one in known if one not in outcomes)
    primary = declared(spec.primary, [one.metric for one in outcomes], unmeasured)
    kinds = {metric: outcome_of(metric).kind for metric in metrics} | {
        one.metric: one.kind for one in outcomes
    }
    values = pd.DataFrame(
        {metric: environment.numbers(frame, metric) for metric in kinds}, frame.index
    )
    return _Question(spec, outcomes, unmeasured, primary, values, kinds)


def _decided(
    findings: Iterable[Finding], primary: Sequence[str], levels: Sequence[str]
) -> list[Finding]:
    """With the verdict of each, in the order of a report: strata, primary outcomes first, levels as they were given."""
    at = {level: number for number, level in enumerate(levels)}
    named = [
        replace(one, row=replace(one.row, family=PRIMARY)) if one.row.metric in primary else one
        for one in findings
    ]
    decided = reasons.decided(named, reasons.ROWS, outlook.of_row)
    return sorted(
        decided,
        key=lambda f: (
            natural(f.row.stratum),
            not f.primary,
            place(f.row.metric),
            at[f.row.a],
            at[f.row.b],
        ),
    )


def _levels(spec: ComparisonSpec, levels: Sequence[str]) -> tuple[str, ...]:
    """Return the levels, the baseline first."""
    baseline = spec.baseline
    if baseline is not None and str(baseline) not in levels:
        have = ", ".join(levels) or "no level at all"
        raise WrongCall(f"no run has {spec.factor}={baseline}, the baseline; have {have}")
    if len(levels) < 2:
        have = f"{spec.factor}={levels[0]}" if levels else f"no {spec.factor}"
        raise WrongCall(f"only one side: all runs have {have}; a comparison needs two levels")
    first = levels[0] if baseline is None else str(baseline)
    return (first, *(level for level in levels if level != first))


def _is_metric(column: pd.Series, name: str) -> bool:
    """Whether a column is a metric that a run has. A key without a slash, as `loss`, is one if it holds any number."""
    if name.startswith(("params.", "tags.", *HIDDEN)) or not column.notna().any():
        return False
    return "/" in name or pd.api.types.infer_dtype(column, skipna=True).startswith(_NUMERIC)


@dataclass(frozen=True)
class _Compared:
    """What one pair of levels in one stratum gave; order: None where levels cannot run side by side, or nothing was paired."""

    findings: list[Finding]
    excluded: list[Exclusion]
    order: Order | None = None


def _compare(frame: pd.DataFrame, a: str, b: str, question: _Question) -> Iterator[_Compared]:
    """Compare one pair of levels in every stratum of what was asked for; in one, where nothing can be compared."""
    both, spec = frame[frame["level"].isin([a, b])], question.spec
    group = str(frame["group"].iloc[0])
    outcomes = [outcome for outcome in question.outcomes if frame[outcome.metric].notna().any()]

    def blank(stratum: str) -> list[Finding]:
        return [Finding(_blank(outcome, spec, a, b, stratum), outcome) for outcome in outcomes]

    missing = [level for level in (a, b) if not (both["level"] == level).any()]
    why = f"no usable run of {' or '.join(missing)}" if missing else ""
    if why := why or pairing.incomparable(both, spec.factor, spec.allowed_to_differ):
        yield _Compared([_refused(one, why) for one in blank(group)], [])
        return
    parts, alone = pairing.inside_strata(both, a, b)
    yield _Compared([], alone)
    for part in parts:
        names = part["stratum"].unique()
        yield _inside(part, a, b, blank(str(names[0]) if len(names) == 1 else group), question)


def _inside(
    runs: pd.DataFrame, a: str, b: str, blank: Sequence[Finding], question: _Question
) -> _Compared:
    """One pair of levels in one stratum."""
    first, second, excluded, why = pairing.pairs(runs, a, b, question.spec.factor)
    if why:
        return _Compared([_refused(one, why) for one in blank], excluded)
    ran = None if runs["apart"].any() else order.of_pairs(first, second)
    if ran and ran.refused:
        return _Compared([_refused(one, ran.refused) for one in blank], excluded, ran)
    findings, seconds = [], environment.seconds_of_a_block(first, second)
    disturbed, metrics = busy.reason(first, second), [one.row.metric for one in blank]
    paired = _Paired(
        (first, second),
        first["block_label"].astype(str).to_numpy(),
        np.maximum(first["sequence"].to_numpy(), second["sequence"].to_numpy()),
        looks.of_runs(runs),
    )
    means = _means(paired, question)
    sides = (question.values.loc[side.index, metrics].to_numpy().T for side in (first, second))
    took_turns = turns.taken(first, second)
    for one, *values in zip(blank, *sides, strict=True):
        if took_turns and (why := turns.refused(one.row.metric)):
            findings.append(_refused(one, why))
            continue
        mean = means.get(one.row.metric, ())
        found, left_out = _measure(one.row, one.outcome, paired, mean, *values)
        found = busy.unsettled(found, disturbed)
        findings.append(replace(found, order=ran, block_seconds=seconds, took_turns=took_turns))
        excluded += left_out
    return _Compared(findings, excluded, ran)


def _refused(finding: Finding, why: str) -> Finding:
    return replace(
        finding, row=replace(finding.row, reason=why, no_estimate=NoEstimate.NOT_COMPARABLE)
    )


def _blank(outcome: Outcome, spec: ComparisonSpec, a: str, b: str, stratum: str) -> Row:
    return Row(
        metric=outcome.metric,
        factor=spec.factor,
        a=a,
        b=b,
        n_blocks=0,
        estimate=None,
        kind=outcome.kind,
        ci_low=None,
        ci_high=None,
        p=None,
        p_holm=None,
        effect_size=None,
        margin=spec.margin if outcome.margin is None else outcome.margin,
        equivalent=None,
        minimum_detectable=None,
        verdict=NOT_COMPARABLE,
        reason="",
        stratum=stratum,
    )


@dataclass(frozen=True)
class _Paired:
    """Runs of two levels, row by row from the same block. blocks: labels of the blocks; sequence: their order in time.

    looks: of a campaign that goes on until it is settled.
    """

    runs: tuple[pd.DataFrame, pd.DataFrame]
    blocks: NDArray[np.object_]
    sequence: NDArray[np.int_]
    looks: Looks


def _means(paired: _Paired, question: _Question) -> dict[str, tuple[MeanDistribution | None, ...]]:
    """Return the distribution of every metric's mean at every look; None where it is constant."""
    in_time = np.argsort(paired.sequence, kind="stable")
    sides = [question.values.loc[side.index].to_numpy()[in_time].T for side in paired.runs]
    found: dict[str, tuple[MeanDistribution | None, ...]] = dict.fromkeys(question.kinds, ())
    for look in paired.looks.one_by_one() or (FIXED,):
        past = np.ones(len(in_time), dtype=bool)
        if look.blocks:
            past = paired.blocks[in_time].astype(float) <= look.blocks[-1]
        series = {}
        for (metric, kind), a, b in zip(question.kinds.items(), *sides, strict=True):
            finite = past & np.isfinite(a) & np.isfinite(b)
            if (shifts := _varying(a[finite], b[finite], kind)) is not None:
                series[metric] = shifts
        means = autocorrelation.of_series(list(series.values())) if series else None
        places = {metric: at for at, metric in enumerate(series)}
        for metric in found:
            found[metric] += (means[places[metric]] if means and metric in places else None,)
    return found


def _varying(a: Floats, b: Floats, kind: str) -> Floats | None:
    """Return the shifts of at least three blocks; None if fewer, without a ratio, or constant."""
    if len(a) < MINIMUM_VALUES or (kind == "ratio" and min(a.min(), b.min()) <= 0):
        return None
    ratio = kind == "ratio"
    shifts = estimates.log_ratios(a, b) if ratio else estimates.differences(a, b)
    scale = 1.0 if ratio else float(np.abs([a, b]).max())
    return None if estimates.is_constant(shifts, scale) else shifts


def _measure(
    row: Row,
    outcome: Outcome,
    paired: _Paired,
    means: tuple[MeanDistribution | None, ...],
    a: Floats,
    b: Floats,
) -> tuple[Finding, list[Exclusion]]:
    """Estimates and tests of one outcome over paired runs; the verdict waits for Holm's correction.

    means: the distributions of its mean. a, b: its values, NaN where there is none.
    """
    metric, sides = outcome.metric, tuple(zip((row.a, row.b), paired.runs, (a, b), strict=True))
    if absent := {level: runs for level, runs, side in sides if np.isnan(side).all()}:
        missing = replace(
            row, reason=_without_numbers(absent, metric), no_estimate=NoEstimate.NOT_MEASURED
        )
        return Finding(missing, outcome), []
    excluded = []
    for _, runs, side in sides:
        for at in np.flatnonzero(~np.isfinite(side)):
            text = _text([runs[metric].iloc[at]])
            reason = text or ("no value, or not a number" if np.isnan(side[at]) else "infinite")
            excluded.append(
                pairing.without_value(
                    runs.iloc[at], metric, f"{reason}; its block is left out of this metric"
                )
            )
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    if not finite.any():
        reason = "no block has a finite value on both sides"
        return Finding(
            replace(row, reason=reason, no_estimate=NoEstimate.NO_PAIR), outcome
        ), excluded
    pairs = tuple(
        map(
            Pair,
            paired.blocks[finite].tolist(),
            a.tolist(),
            b.tolist(),
            paired.sequence[finite].tolist(),
        )
    )
    if outcome.kind == "ratio" and min(a.min(), b.min()) <= 0:
        reason = "zero or negative values have no ratio; state a margin in its unit with an Outcome of kind difference"
        return Finding(
            replace(row, reason=reason, no_estimate=NoEstimate.NO_RATIO), outcome, pairs
        ), excluded
    return _estimated(row, outcome, pairs, a, b, means, paired.looks), excluded


def _without_numbers(sides: Mapping[str, pd.DataFrame], metric: str) -> str:
    """Why levels, none of whose values is a number, cannot be judged; in the runs' own words, where they have any."""
    texts = {level: _text(frame[metric]) for level, frame in sides.items()}
    missing = [level for level, text in texts.items() if not text]
    told = [f"not measured on {' and '.join(missing)}"] if missing else []
    if why := environment.not_available([sides[level] for level in missing], metric):
        told[0] += f" ({why})"
    return "; ".join([*told, *(f"{text} on {level}" for level, text in texts.items() if text)])


def _text(values: Iterable[object]) -> str:
    """What is said of values of which one is a text; empty where none is."""
    found = next((value for value in values if isinstance(value, str)), None)
    return "" if found is None else f"text instead of a number ('{plain.short(found)}')"


def _estimated(
    row: Row,
    outcome: Outcome,
    pairs: tuple[Pair, ...],
    a: Floats,
    b: Floats,
    means: tuple[MeanDistribution | None, ...],
    had: Looks,
) -> Finding:
    """Return a finding with everything but the verdict: no estimate below three blocks, no test below six."""
    ratio = outcome.kind == "ratio"
    a_value, b_value = (
        estimates.geometric_mean(side) if ratio else estimates.centre(side) for side in (a, b)
    )
    if len(pairs) < MINIMUM_VALUES:
        few = replace(
            row,
            n_blocks=len(pairs),
            reason=_too_few(len(pairs)),
            no_estimate=NoEstimate.TOO_FEW_BLOCKS,
        )
        return Finding(few, outcome, pairs, a_value=a_value, b_value=b_value, looks=had)
    shifts = estimates.log_ratios(a, b) if ratio else estimates.differences(a, b)
    centre, mean = estimates.centre(shifts), means[-1] if means else None
    bounds = map(float, mean.interval(had.confidence)) if mean else (centre, centre)
    interval = Estimate(centre, *bounds)
    row = replace(row, **_widening(interval, shifts, mean, had.confidence)) if mean else row
    bound, tested = row.bound, mean if len(pairs) >= MINIMUM_BLOCKS else None
    tests = tested is not None
    tost_p = float(had.one_sided(tested.p_within(bound))) if tested else None
    within = tost_p < ALPHA if tost_p is not None else bool(abs(shifts.mean()) < bound)
    second, exact = (
        estimates.hodges_lehmann(shifts, had.confidence),
        significance.permutation_p(shifts),
    )
    interval = _back(interval, ratio)
    superior = estimates.a12(a, b)
    return Finding(
        replace(
            row,
            n_blocks=len(pairs),
            estimate=interval.value,
            ci_low=interval.low,
            ci_high=None if interval.high == math.inf else interval.high,
            p=float(had.p(tested.p())) if tested else None,
            effect_size=superior,
            probability_within_blocks=estimates.probability_within_blocks(shifts),
            equivalent=within if len(pairs) >= MINIMUM_BLOCKS else None,
            minimum_detectable=_detectable(shifts, row, had) if mean else 0.0,
            reason="" if len(pairs) >= MINIMUM_BLOCKS else _too_few(len(pairs)),
        ),
        outcome,
        pairs,
        a_value=a_value,
        b_value=b_value,
        hodges_lehmann=_back(second, ratio),
        signed_rank_p=float(had.p(significance.signed_rank(shifts).p)) if tests else None,
        permutation_p=None if exact is None or not tests else float(had.p(exact)),
        tost_p=tost_p,
        cliffs_delta=2 * superior - 1,
        means=means,
        looks=had,
        withheld=None if len(pairs) >= MINIMUM_BLOCKS else Withheld.TOO_FEW_BLOCKS,
    )


def _widening(
    interval: Estimate, shifts: Floats, mean: MeanDistribution, confidence: float
) -> dict[str, Any]:
    """Return the fields of a row on what its interval costs against a t interval."""
    plain = estimates.mean(shifts, confidence)
    times = (interval.high - interval.low) / (plain.high - plain.low)
    weight, cause = float(mean.autocorrelated), ""
    if times >= NOTABLE:
        low, high = replace(mean, skewed=np.asarray(False)).interval(confidence)
        cause = Widening.AUTOCORRELATION if weight >= 0.5 else Widening.POSSIBLE_AUTOCORRELATION
        if high - low < (plain.high - plain.low + interval.high - interval.low) / 2:
            cause = Widening.SKEWNESS
    fields = {"autocorrelation": float(mean.autocorrelation), "autocorrelation_weight": weight}
    return {**fields, "widening": times, "widened_by": str(cause)}


def _too_few(blocks: int) -> str:
    counted = f"{blocks} block{'s' if blocks > 1 else ''}"
    return f"{counted}{': no comparison' if blocks < MINIMUM_VALUES else ''}; a verdict needs {MINIMUM_BLOCKS}"


def _detectable(shifts: Floats, row: Row, had: Looks) -> float:
    spread = float(shifts.std(ddof=1)) * (row.widening or 1.0)
    found = power.minimum_detectable(spread, len(shifts), alpha=had.level(ALPHA))
    return outlook.as_effect(found, row.kind)


def _back(estimate: Estimate, ratio: bool) -> Estimate:
    return estimates.exponential(estimate) if ratio else estimate

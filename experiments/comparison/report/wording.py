"""Wording of numbers and findings; numbers are rounded here only."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import (
    ROUND_CEILING,
    ROUND_FLOOR,
    ROUND_HALF_EVEN,
    ROUND_UP,
    Context,
    Decimal,
)

from experiments.comparison.runs.pairing import NAMED, FailedRuns
from experiments.comparison.verdicts.decision import ALPHA, MINIMUM_BLOCKS, Decision, NoEstimate
from experiments.comparison.verdicts.findings import Comparison, Finding, grouped
from experiments.comparison.verdicts.strata import MINIMUM_STRATA
from experiments.metrics import Outcome, is_quality, place

DASH, MINUS, NONE = "–", "−", "—"
NO_VERDICT_OF_SMOKE = "Smoke test: no verdict."
# An effect whose digits show no difference; only a verdict calls sides equal.
ABOUT_EQUAL, NO_DIRECTION = "about equal", "no clear direction"
WITHOUT_EFFECT = (Decision.TOO_FEW, Decision.NOT_COMPARABLE)
MINIMUM_P = 1e-4
# Largest detectable effect, as a share, that is printed as a number.
MAXIMUM_SHARE = 9.0
# Ratio of an interval's ends from which both have two significant digits.
WIDE = 10.0
# Ratio from which an amount is so many times as much, instead of so many percent more.
TIMES = 2.0
# Unit -> least value, factor and name of the units that it is shown in.
_SCALES = {
    "s": (
        (0.0, 1e-6, "µs"),
        (1e-3, 1e-3, "ms"),
        (1.0, 1.0, "s"),
        (120.0, 60.0, "min"),
        (7_200.0, 3_600.0, "h"),
    ),
    "bytes": (
        (0.0, 1.0, "bytes"),
        (2.0**10, 2.0**10, "KiB"),
        (2.0**20, 2.0**20, "MiB"),
        (2.0**30, 2.0**30, "GiB"),
    ),
    "J": ((0.0, 1e-3, "mJ"), (1.0, 1.0, "J"), (1e3, 1e3, "kJ")),
}


def scale(unit: str, values: Iterable[float]) -> tuple[float, str]:
    """Return factor and name of the unit in which the greatest value reads well."""
    greatest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    units = _SCALES.get(unit, ((0.0, 1.0, unit),))
    return [(factor, name) for least, factor, name in units if greatest >= least][-1]


def number(value: float, digits: int = 3) -> str:
    """Return a number in significant digits: 0.0123, 1,234, 2.5e-07."""
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if not -5 < size < 9:
        return f"{value:.{digits - 1}e}".replace("-", MINUS, int(value < 0))
    return f"{value:,.{max(0, digits - 1 - size)}f}".replace("-", MINUS)


def outwards(
    low: float, high: float, *, digits: int = 3, decimals: int | None = None
) -> tuple[float, float]:
    """Round the ends of an interval outwards.

    Args:
        digits: significant digits.
        decimals: digits after the point, instead of significant ones.
    """

    def rounded(value: float, rule: str) -> float:
        if not math.isfinite(value):
            return value
        exact = Decimal(f"{value:.12g}")  # 1.1 stays 1.1, whatever its last bits
        if decimals is None:
            return float(Context(digits, rule).plus(exact))
        return float(exact.quantize(Decimal(1).scaleb(-decimals), rule, Context(60))) + 0.0

    return rounded(low, ROUND_FLOOR), rounded(high, ROUND_CEILING)


def quantity(value: float | None, outcome: Outcome) -> str:
    """Return a value with its unit: 31.2 ms, 712 MiB, 1,020 examples/s."""
    if value is None:
        return NONE
    factor, unit = scale(outcome.unit, [value])
    return f"{number(value / factor)} {unit}".rstrip()


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def p_value(p: float | None) -> str:
    """Return a p-value, never as 0."""
    if p is None:
        return NONE
    if p < MINIMUM_P:
        return f"< {MINIMUM_P:.4f}"
    if p < 0.01:
        return f"{p:.4f}"
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def amount(value: float | None, finding: Finding) -> str:
    """Return the size of an effect: a share of a ratio in percent, a difference in its unit."""
    if value is None:
        return NONE
    if finding.row.kind != "ratio":
        return _with_unit(f"{value:.2g}", finding)
    if value < 1:
        return f"{100 * value:.2g} %"
    return "over 10×" if value >= MAXIMUM_SHARE else f"{number(float(f'{100 * value:.2g}'), 2)} %"


def smallest_detectable(comparison: Comparison) -> str:
    """Return the smallest effects for which the blocks suffice; empty without a test."""
    tested = [finding for finding in headlines(comparison) if finding.row.minimum_for_verdict]
    greatest: dict[str, Finding] = {}
    for finding in sorted(tested, key=lambda finding: finding.row.minimum_for_verdict or 0.0):
        greatest[finding.outcome.label] = finding
    parts = [
        f"{amount(finding.row.minimum_for_verdict, finding)} in {label}"
        for label, finding in greatest.items()
    ]
    return f"{joined(parts)} lead to a verdict (80 % power)" if parts else ""


def _unit(finding: Finding) -> str:
    return "% points" if finding.outcome.unit == "%" else finding.outcome.unit


def _with_unit(size: str, finding: Finding) -> str:
    unit = _unit(finding)
    return f"{size} {unit.removesuffix('s') if size == '1' else unit}".rstrip()


def interval(finding: Finding) -> str:
    """Return the interval of `estimate`; empty if it never varied."""
    return _interval(finding, finding.row.ci_low, finding.row.ci_high)


def effect(finding: Finding) -> str:
    """Return the estimate: 1.42× faster, 11 % less, 1.2 points higher, identical."""
    value = finding.row.estimate
    if value is None:
        return NONE
    if finding.identical:
        return "identical"
    return _directed(value, finding) or (ABOUT_EQUAL if finding.judged else NO_DIRECTION)


def _directed(value: float, finding: Finding, rule: str = ROUND_HALF_EVEN) -> str:
    """Return an effect as a size and a word; empty if its digits show no difference.

    Args:
        value: on the scale of the estimate.
        rule: rounding of the size.
    """
    row, outcome = finding.row, finding.outcome
    greater = value > (1 if row.kind == "ratio" else 0)
    word = _words(outcome)[greater]
    if row.kind == "difference":
        size = _rounded(abs(value), _decimals(finding), rule)
        return f"{_with_unit(size, finding)} {word}" if _is_shown(size) else ""
    if outcome.is_speed:
        size = _ratio(max(value, 1 / value) if value else math.inf, finding, rule)
        return f"{size}× {word}" if re.fullmatch(r"1(\.0+)?", size) is None else ""
    if value >= TIMES and rule == ROUND_HALF_EVEN:
        amount = "as much" if word == "more" else "as high"
        return f"{_ratio(value, finding)} times {amount}"
    size = _rounded(100 * abs(value - 1), _decimals(finding), rule)
    if not greater and float(size.replace(",", "")) >= 100:
        size = "over 99"
    return f"{size} % {word}" if _is_shown(size) else ""


def _words(outcome: Outcome) -> tuple[str, str]:
    """Return the words for less and more of an outcome: of what is used up, less and more."""
    return ("less", "more") if outcome.unit in ("bytes", "J") else outcome.words


def _is_shown(size: str) -> bool:
    return bool(size.strip("0."))


def _rounded(value: float, decimals: int, rule: str = ROUND_HALF_EVEN) -> str:
    if not math.isfinite(value):
        return "∞"
    exact = Decimal(f"{value:.12g}").quantize(Decimal(1).scaleb(-decimals), rule, Context(60))
    return f"{exact:,}"


def effect_interval(finding: Finding) -> str:
    """Return the interval of `effect`; signed or with both directions if it holds no effect."""
    row, turned = finding.row, finding.times
    low, high = row.ci_low, row.ci_high
    if turned is None or low is None or high is None or finding.never_varied or low == high:
        return interval(finding)
    crosses = low < 1 < high
    if finding.outcome.is_speed:
        if crosses:
            return " to ".join(_directed(end, finding, ROUND_UP) for end in (low, high))
        return _interval(finding, turned.low, turned.high)
    if (row.estimate or 0) >= TIMES and low >= 1:
        return f"{_interval(finding, low, high)} times"
    decimals, shares = _decimals(finding), (100 * (low - 1), 100 * (high - 1))
    if not crosses and high <= 1:
        shares = (-shares[1], -shares[0])
    ends = outwards(*shares, decimals=decimals)
    if crosses:
        return f"{' to '.join(_signed(end, decimals) for end in ends)} %"
    return f"{DASH.join(_rounded(end, decimals) for end in ends)} %"


def _interval(finding: Finding, low: float | None, high: float | None) -> str:
    row = finding.row
    if finding.never_varied or row.estimate is None:
        return ""
    if low is None or high is None:
        return "unbounded"
    if low == high:
        return "no spread"
    if row.kind == "ratio":
        return DASH.join(_ratio(end, finding) for end in outwards(low, high, **_precision(finding)))
    decimals = _decimals(finding)
    ends = outwards(low, high, decimals=decimals)
    return f"{' to '.join(_signed(end, decimals) for end in ends)} {_unit(finding)}".rstrip()


def _ratio(value: float, finding: Finding, rule: str = ROUND_HALF_EVEN) -> str:
    if not math.isfinite(value):
        return "∞"
    precision = _precision(finding)
    if "digits" in precision:
        exact = Context(2, rule).plus(Decimal(f"{value:.12g}"))
        return number(float(exact), 2)
    return _rounded(value, precision["decimals"], rule)


def _precision(finding: Finding) -> dict[str, int]:
    """Return the digits or decimals that a ratio's interval carries; three digits without one."""
    row, turned = finding.row, finding.times
    if row.ci_low is None or row.ci_high is None or row.ci_low == row.ci_high:
        size = turned.value if turned else row.estimate or 1.0
        return {"decimals": max(0, 2 - math.floor(math.log10(abs(size))))}
    if turned is None:
        return {"decimals": _decimals(finding)}
    if turned.high > WIDE * turned.low:
        return {"digits": 2}
    least = sum(turned.value < limit for limit in (2, 10))
    decimals = -math.floor(math.log10(turned.high - turned.low))
    return {"decimals": min(12, max(least, decimals))}


def _decimals(finding: Finding) -> int:
    """Return the decimals of a difference, or of a ratio's change in percent."""
    row, is_ratio = finding.row, finding.row.kind == "ratio"
    shown = 100 * ((row.estimate or 1.0) - 1) if is_ratio else row.estimate or 1.0
    if row.ci_low is None or row.ci_high is None or row.ci_low == row.ci_high:
        digits, size = 2 if is_ratio else 3, abs(shown) or 1.0
        return min(12, max(0, digits - 1 - math.floor(math.log10(size))))
    width = (row.ci_high - row.ci_low) * (100 if is_ratio else 1)
    return min(12, max(0, (0 if is_ratio else 1) - math.floor(math.log10(width))))


def _signed(value: float, decimals: int) -> str:
    text = f"{value:+,.{decimals}f}".replace("-", MINUS)
    return text if text.strip(f"+{MINUS}0.") else f"±{text[1:]}"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def blocks(count: int) -> str:
    return counted(count, "block")


def sentence(finding: Finding) -> str:
    """Return a finding as a sentence with its interval and blocks, or strata."""
    row, across = finding.row, finding.across
    has_effect = finding.decision not in WITHOUT_EFFECT
    bounds = effect_interval(finding) if has_effect else ""
    basis = [f"95 % CI {bounds}"] if bounds else []
    if across and has_effect:
        basis.append(f"{len(across.names)} strata")
        share = across.i_squared_percent
        basis += [] if share is None else [f"heterogeneity I² {share:.0f} %"]
    elif row.n_blocks and not (across or finding.missing_blocks):
        basis.append(blocks(row.n_blocks))
    details = f" ({', '.join(basis)})" if basis else ""
    return f"{begin(clause(finding), finding)}{details}."


def clause(finding: Finding) -> str:
    """Return a finding as a clause to be read aloud, of b against the baseline a."""
    row, margin = finding.row, amount(finding.row.margin, finding)
    match finding.decision:
        case Decision.OPEN:
            text = f"not settled: {_than(finding, 'about ')}"
        case Decision.SIZE_OPEN:
            text = f"{_than(finding)}; whether by more than {margin} is open"
        case Decision.WITHIN_MARGIN | Decision.CONSTANT:
            text = f"{_than(finding)}, less than the margin of {margin}"
        case Decision.DIFFERENT:
            text = _than(finding)
        case _:
            text = _without_effect([finding])
    text += tail(finding)
    return f"{text} [{row.stratum}]" if row.stratum else text


def tail(finding: Finding) -> str:
    """Return the slow runs of both sides as the end of a clause, if one side has more of them."""
    row, (a, b) = finding.row, names(finding)
    if row.slow_runs_p is None or row.slow_runs_p > ALPHA:
        return ""
    return (
        f", but {row.slow_runs_b} of {row.n_blocks} runs of {b} were slow, {row.slow_runs_a} of {a}"
    )


def failed_runs(failure: FailedRuns, factor: str) -> str:
    """Return `flaky failed in 8 of 16 runs: exit code 1`."""
    name, reason = (
        level_name(failure.level, factor),
        f": {failure.reason}" if failure.reason else "",
    )
    return f"{name} failed in {failure.failed} of {failure.runs} runs{reason}"


def clauses(findings: Sequence[Finding]) -> list[str]:
    """Return clauses in which outcomes of one kind and pair of levels share their words."""
    groups: dict[object, list[Finding]] = {}
    for finding in findings:
        row, key = finding.row, finding.decision.value
        if finding.decision is Decision.DIFFERENT:
            key = "verb" if finding.outcome.verb and effect(finding) != ABOUT_EQUAL else ""
        if finding.decision in (Decision.SIZE_OPEN, Decision.OPEN) or tail(finding):
            key = ""
        same = row.reason if finding.decision in WITHOUT_EFFECT else row.margin
        pair = (row.a, row.b, row.stratum, key, same)
        groups.setdefault(pair if key else id(finding), []).append(finding)
    return [_merged(group) for group in groups.values()]


def _merged(group: Sequence[Finding]) -> str:
    first, *others = group
    if not others:
        return clause(first)
    if first.decision is Decision.DIFFERENT:
        a, b = names(first)
        predicates = [f"{finding.outcome.verb} {effect(finding)}" for finding in group]
        predicates[0] += f" than {a}"
        text = f"{b} {joined(predicates)}"
    elif first.decision in (Decision.WITHIN_MARGIN, Decision.CONSTANT):
        return "; ".join(map(clause, group))
    else:
        text = _without_effect(group)
    return f"{text} [{first.row.stratum}]" if first.row.stratum else text


def _without_effect(group: Sequence[Finding]) -> str:
    """Return a clause on outcomes of one pair of levels that names no size."""
    first = group[0]
    row, (a, b) = first.row, names(first)
    labels = joined(list(dict.fromkeys(finding.outcome.label for finding in group)))
    match first.decision:
        case Decision.IDENTICAL:
            return f"{labels}: identical in {b} and {a}"
        case Decision.EQUIVALENT:
            margin = amount(row.margin, first)
            return f"{labels}: no difference of {margin} or more between {b} and {a}"
        case Decision.NOT_COMPARABLE:
            return f"{labels} of {b} and {a}: not comparable; {row.reason}"
    return f"{labels} of {b} and {a}: no verdict{_why(first)}"


def _why(finding: Finding) -> str:
    """Return the end of a clause without a verdict."""
    row, across = finding.row, finding.across
    if finding.missing_blocks:
        return f" after {blocks(row.n_blocks)}; at least {MINIMUM_BLOCKS} are needed"
    if across and row.no_estimate == NoEstimate.TOO_FEW_STRATA and not finding.busy:
        return f" from {len(across.names)} strata; at least {MINIMUM_STRATA} are needed"
    return f"; {row.reason}"


def _than(finding: Finding, about: str = "") -> str:
    """Return `TensorFlow trains 1.42× faster than PyTorch`; about: before the size."""
    label, text, (a, b) = finding.outcome.label, effect(finding), names(finding)
    if text in (ABOUT_EQUAL, NO_DIRECTION):
        return f"{label}: {text} in {b} and {a}"
    conjunction = "as" if text.endswith((" as much", " as high")) else "than"
    return f"{_subject(finding)} {about}{text} {conjunction} {a}"


def _subject(finding: Finding) -> str:
    """Return `TensorFlow trains` or `peak process memory: TensorFlow uses`."""
    outcome, (_, b) = finding.outcome, names(finding)
    if outcome.verb:
        return f"{b} {outcome.verb}"
    return f"{outcome.label}: {b} {'uses' if _words(outcome)[0] == 'less' else 'is'}"


def names(finding: Finding) -> tuple[str, str]:
    """Return the baseline and the other level as prose."""
    row = finding.row
    return level_name(row.a, row.factor), level_name(row.b, row.factor)


def describe_outcome(finding: Finding) -> str:
    """Return the outcome, and the stratum if there is one."""
    label, stratum = finding.outcome.label, finding.row.stratum
    return f"{label} [{stratum}]" if stratum else label


def capitalised(text: str) -> str:
    """Return a clause as a sentence; the name of a metric, such as `step_ms`, stays as it is."""
    is_name = re.match(r"\w*[_/]", text)
    return f"{text if is_name else text[:1].upper() + text[1:]}."


def begin(text: str, finding: Finding) -> str:
    """Return a text that begins a sentence; the name of a level stays as it is."""
    is_name = text.startswith(names(finding)[1])
    return text if is_name else capitalised(text)[:-1]


# Library names as their makers write them; another framework's name stands as it is.
_PROPER = {
    "pytorch": "PyTorch",
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "jax": "JAX",
}
# A level that says nothing without the name of its setting.
_BARE = re.compile(r"[\d.,]+|true|false|none")


def level_name(level: str, factor: str) -> str:
    """Return a level as prose: `keras-torch` is Keras on PyTorch; a bare value is `threads=2`."""
    if factor.rpartition(".")[2] == "campaign":
        return f"“{level}”"
    if factor == "framework":
        name, plus, variant = level.partition("+")
        words = " on ".join(_PROPER.get(part, part) for part in name.split("-"))
        return words + (f" ({variant})" if plus else "")
    return f"{factor.removeprefix('params.')}={level}" if _BARE.fullmatch(level) else level


def headlines(comparison: Comparison) -> list[Finding]:
    """Return the primary outcomes for every pair of levels and stratum.

    Without a declaration: training speed, inference, memory, energy and quality.
    """
    results: list[Finding] = []
    for group in grouped(comparison.findings).values():
        best: dict[str, Finding] = {}
        for finding in sorted(group, key=lambda finding: (finding.outcome.headline or ("", 0))[1]):
            if finding.outcome.headline and is_meaningful(finding, comparison):
                best.setdefault(finding.outcome.headline[0], finding)
        first = sorted(best.values(), key=lambda finding: place(finding.row.metric))
        first = first or sorted(group, key=lambda finding: finding.row.estimate is None)[:3]
        if comparison.primary:
            first = [finding for finding in group if finding.primary]
        results += first
    return results


def is_meaningful(finding: Finding, comparison: Comparison) -> bool:
    """Return False for outcomes that are 0 everywhere, and for quality with random weights."""
    is_zero = finding.a_value == finding.b_value == 0
    return not is_zero and not (comparison.random_weights and is_quality(finding.outcome))


def sentences(comparison: Comparison) -> list[str]:
    """Return the results as text: summaries over strata, then settled outcomes, then the others."""
    if not comparison.findings:
        return [f"No verdict: {_nothing_to_judge(comparison)}."]
    if comparison.smoke:
        return [NO_VERDICT_OF_SMOKE]
    chosen = headlines(comparison)
    if not chosen:
        primary = ", ".join(comparison.primary)
        return [f"No primary outcome ({primary}) was measured; all others are exploratory."]
    open_ones = [finding for finding in chosen if finding.decision in WITHOUT_EFFECT]
    rest = [finding for finding in chosen if finding not in open_ones]
    ordered = sorted(rest, key=lambda finding: not finding.judged)
    lines = list(map(sentence, [*summaries_of(chosen, comparison), *ordered]))
    return [*lines, *map(capitalised, clauses(open_ones))]


def _nothing_to_judge(comparison: Comparison) -> str:
    if comparison.n_runs:
        missing = ", ".join(comparison.unmeasured) or "a column of numbers"
        return f"no usable run has a metric to compare ({missing})"
    counts = Counter(exclusion.reason for exclusion in comparison.excluded if not exclusion.metric)
    parts = [f"{reason} ({counted(count, 'run')})" for reason, count in counts.most_common(NAMED)]
    text = "; ".join(parts)
    return f"no run can be used. {text[:1].upper()}{text[1:]}" if parts else "no run can be used"


def summaries_of(findings: Sequence[Finding], comparison: Comparison) -> list[Finding]:
    """Return the summaries over strata of the metrics and pairs of levels of findings."""
    keys = set(map(key_of, findings))
    return [summary for summary in comparison.summaries if key_of(summary) in keys]


def key_of(finding: Finding) -> tuple[str, str, str]:
    return finding.row.metric, finding.row.a, finding.row.b


def verdicts_of_strata(summary: Finding, comparison: Comparison) -> str:
    """Return `3 strata faster, 1 inconclusive`; empty if all have the verdict of the summary."""
    if not summary.across:
        return ""
    counts = Counter(
        finding.row.verdict for finding in comparison.findings if key_of(finding) == key_of(summary)
    )
    if set(counts) == {summary.row.verdict}:
        return ""
    (verdict, count), *others = counts.most_common()
    return ", ".join(
        [f"{count} strata {verdict}", *(f"{count} {verdict}" for verdict, count in others)]
    )


def prediction(summary: Finding) -> str:
    """Return the interval of one more stratum, turned as in `effect`."""
    across = summary.across
    if across is None or len(across.names) < 3:
        return ""
    return effect_interval(
        replace(
            summary,
            row=replace(summary.row, ci_low=across.prediction_low, ci_high=across.prediction_high),
        )
    )


def rests_on(comparison: Comparison) -> str:
    """Return `Based on machines: box, other; teams: red; campaigns: 4.`."""
    parts = [
        f"{kind}: {len(names) if kind == 'campaigns' else ', '.join(names)}"
        for kind, names in comparison.rests_on.items()
        if names
    ]
    return f"Based on {'; '.join(parts)}." if parts else ""


def at_a_look(finding: Finding) -> str:
    """Return `wall time 1.05× slower (1.01–1.09), not settled`, while a campaign goes on."""
    state = "settled" if finding.judged else "not settled"
    text, bounds = effect(finding), effect_interval(finding)
    bounds = f" ({bounds})" if bounds else ""
    return f"{describe_outcome(finding)} of {names(finding)[1]}: {text}{bounds}, {state}"


def joined(texts: Sequence[str], last: str = "and") -> str:
    """Return `a, b and c`."""
    return f"{', '.join(texts[:-1])} {last} {texts[-1]}" if len(texts) > 1 else "".join(texts)


def shortened(texts: Sequence[str], maximum: int) -> list[str]:
    """Return the first texts, and how many more the report has."""
    more = len(texts) - maximum
    return [*texts[:maximum], f"{more} more in the report"] if more > 0 else list(texts)

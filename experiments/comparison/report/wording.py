"""Wording of numbers and findings; numbers are rounded here only."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from experiments.comparison.runs.pairing import NAMED
from experiments.comparison.verdicts import reasons, sample_size
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Comparison, Finding, Row, grouped
from experiments.config import durations
from experiments.metrics import Outcome, place

DASH, MINUS, NONE = "–", "−", "—"
MINIMUM_P = 1e-4
# Largest detectable effect, as a share, that is printed as a number.
MAXIMUM_SHARE = 9.0
# Ratio of an interval's ends from which both have two significant digits.
WIDE = 10.0
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
        return f"{value:.2g} {_unit(finding)}".rstrip()
    if value < 1:
        return f"{100 * value:.2g} %"
    return "over 10×" if value >= MAXIMUM_SHARE else f"{number(float(f'{100 * value:.2g}'), 2)} %"


def smallest_detectable(comparison: Comparison) -> str:
    """Return the smallest effects that the headlines' blocks could detect; empty without a test."""
    tested = [finding for finding in headlines(comparison) if finding.row.minimum_in_family]
    greatest: dict[str, Finding] = {}
    for finding in sorted(tested, key=lambda finding: finding.row.minimum_in_family or 0.0):
        greatest[finding.outcome.label] = finding
    parts = [
        f"{amount(finding.row.minimum_in_family, finding)} in {label}"
        for label, finding in greatest.items()
    ]
    return f"{joined(parts)} (80 % power)" if parts else ""


def _unit(finding: Finding) -> str:
    return "% points" if finding.outcome.unit == "%" else finding.outcome.unit


def interval(finding: Finding) -> str:
    """Return the interval of `estimate`; empty if it never varied."""
    return _interval(finding, finding.row.ci_low, finding.row.ci_high)


def effect(finding: Finding) -> str:
    """Return the estimate: 1.42× faster, +1.2 points, identical; 1.00× if its digits are 1."""
    value, turned = finding.row.estimate, finding.times
    if value is None:
        return NONE
    if finding.identical:
        return "identical"
    if turned is None:
        return f"{_signed(value, finding)} {_unit(finding)}".rstrip()
    return _directed(turned.value, finding, greater=value >= 1)


def _directed(times: float, finding: Finding, *, greater: bool) -> str:
    ratio = _ratio(times, finding)
    is_one = re.fullmatch(r"1(\.0+)?", ratio)
    return f"{ratio}×" if is_one else f"{ratio}× {finding.outcome.words[greater]}"


def effect_interval(finding: Finding) -> str:
    """Return the interval of `effect`."""
    row, turned = finding.row, finding.times
    if turned is None or row.ci_low is None or row.ci_high is None:
        return interval(finding)
    return _interval(finding, turned.low, turned.high)


def _interval(finding: Finding, low: float | None, high: float | None) -> str:
    row = finding.row
    if finding.never_varied or row.estimate is None:
        return ""
    if low is None or high is None:
        return "unbounded"
    if low == high:
        return "no spread"
    ends = outwards(low, high, **_precision(finding))
    if row.kind == "ratio":
        return DASH.join(_ratio(end, finding) for end in ends)
    return f"{' to '.join(_signed(end, finding) for end in ends)} {_unit(finding)}".rstrip()


def _ratio(value: float, finding: Finding) -> str:
    if not math.isfinite(value):
        return "∞"
    precision = _precision(finding)
    if "digits" in precision:
        return number(float(f"{value:.2g}"), 2)
    return f"{value:,.{precision['decimals']}f}"


def _precision(finding: Finding) -> dict[str, int]:
    """Return the digits or decimals that the interval carries; three digits without one."""
    row, turned = finding.row, finding.times
    if row.ci_low is None or row.ci_high is None or row.ci_low == row.ci_high:
        size = turned.value if turned else row.estimate or 1.0
        return {"decimals": max(0, 2 - math.floor(math.log10(abs(size))))}
    if turned is None:
        decimals = 1 - math.floor(math.log10(row.ci_high - row.ci_low))
        return {"decimals": min(12, max(0, decimals))}
    if turned.high > WIDE * turned.low:
        return {"digits": 2}
    least = sum(turned.value < limit for limit in (2, 10))
    decimals = -math.floor(math.log10(turned.high - turned.low))
    return {"decimals": min(12, max(least, decimals))}


def _signed(value: float, finding: Finding) -> str:
    text = f"{value:+,.{_precision(finding)['decimals']}f}".replace("-", MINUS)
    return text if text.strip(f"+{MINUS}0.") else f"±{text[1:]}"


def blocks(count: int) -> str:
    return f"{count} block{'' if count == 1 else 's'}"


def sentence(finding: Finding) -> str:
    """Return a finding as a sentence with its interval and blocks, or strata."""
    row, across = finding.row, finding.across
    has_effect = finding.decision not in (Decision.TOO_FEW, Decision.NOT_COMPARABLE)
    bounds = effect_interval(finding) if has_effect else ""
    basis = [f"95 % CI {bounds}"] if bounds else []
    if across:
        basis.append(f"{len(across.names)} strata")
        share = across.i_squared_percent
        basis += [] if share is None else [f"heterogeneity I² {share:.0f} %"]
    elif row.n_blocks:
        basis.append(blocks(row.n_blocks))
    basis += [reasons.widening(row)] if row.widened_by else []
    details = f" ({', '.join(basis)})" if basis else ""
    return f"{begin(clause(finding), finding)}{details}."


def clause(finding: Finding) -> str:
    """Return a finding as a clause to be read aloud, of b against the baseline a."""
    row, label, margin = finding.row, finding.outcome.label, amount(finding.row.margin, finding)
    sides = f"{_name(row.b, row)} and {_name(row.a, row)}"
    match finding.decision:
        case Decision.NOT_COMPARABLE:
            text = f"{label} of {sides} is not comparable: {row.reason}"
        case Decision.IDENTICAL:
            text = f"{label} of {sides} is identical"
        case Decision.EQUIVALENT:
            text = f"{label} of {sides} is equivalent: no difference of {margin} or more"
        case Decision.OPEN:
            text = f"not settled: {_range(finding)}"
        case Decision.TOO_FEW:
            text = f"no verdict on {label} of {sides}: {row.reason}"
        case Decision.SIZE_OPEN:
            text = f"{_than(finding)}, but whether by more than {margin} is not settled"
        case Decision.WITHIN_MARGIN | Decision.CONSTANT:
            text = f"{_than(finding)}, less than the margin of {margin}"
        case _:
            text = _than(finding)
    return f"{text} [{row.stratum}]" if row.stratum else text


def _than(finding: Finding) -> str:
    """Return `TensorFlow trains 1.42× faster than PyTorch`."""
    row, label, text = finding.row, finding.outcome.label, effect(finding)
    a, b = _name(row.a, row), _name(row.b, row)
    if text.startswith("±") or text.endswith("×"):
        return f"{label} of {b} and {a}: {text}"
    if verb := finding.outcome.verb:
        return f"{b} {verb} {text} than {a}"
    if row.kind == "difference" and row.estimate is not None:
        text = f"{text.lstrip('+' + MINUS)} {finding.outcome.words[row.estimate > 0]}"
    return f"{label} of {b} is {text} than that of {a}"


def _range(finding: Finding) -> str:
    """Return `TensorFlow trains between 1.12× faster and 1.34× slower than PyTorch`."""
    row, label = finding.row, finding.outcome.label
    a, b = _name(row.a, row), _name(row.b, row)
    if row.kind == "difference":
        return f"{label} of {b} differs by {effect_interval(finding)} from that of {a}"
    if not row.ci_low or row.ci_high is None:
        return f"{label} of {b} and {a} may differ by any amount"
    ends = []
    for value, is_upper in ((row.ci_low, False), (row.ci_high, True)):
        greater, times = value >= 1, max(value, 1 / value)
        bounds = outwards(times, times, **_precision(finding))
        ends.append(_directed(bounds[is_upper is greater], finding, greater=greater))
    if verb := finding.outcome.verb:
        return f"{b} {verb} between {ends[0]} and {ends[1]} than {a}"
    return f"{label} of {b} is between {ends[0]} and {ends[1]} than that of {a}"


def describe_outcome(finding: Finding) -> str:
    """Return the outcome, and the stratum if there is one."""
    label, stratum = finding.outcome.label, finding.row.stratum
    return f"{label} [{stratum}]" if stratum else label


def begin(text: str, finding: Finding) -> str:
    """Return a text that begins a sentence; the name of a level stays as it is."""
    is_name = text.startswith(_name(finding.row.b, finding.row))
    return text if is_name else text[:1].upper() + text[1:]


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


def _name(level: str, row: Row) -> str:
    return level_name(level, row.factor)


def headlines(comparison: Comparison) -> list[Finding]:
    """Return the primary outcomes for every pair of levels and stratum.

    Without a declaration: training speed, inference, memory, energy and quality.
    """
    results: list[Finding] = []
    for group in grouped(comparison.findings).values():
        best: dict[str, Finding] = {}
        for finding in sorted(group, key=lambda finding: (finding.outcome.headline or ("", 0))[1]):
            if finding.outcome.headline and not finding.a_value == finding.b_value == 0:
                best.setdefault(finding.outcome.headline[0], finding)
        first = sorted(best.values(), key=lambda finding: place(finding.row.metric))
        first = first or sorted(group, key=lambda finding: finding.row.estimate is None)[:3]
        if comparison.primary:
            first = [finding for finding in group if finding.primary]
        results += first
    return results


def sentences(comparison: Comparison) -> list[str]:
    """Return the results as text: summaries over strata, then settled outcomes, then the others."""
    if not comparison.findings:
        return [f"No verdict: {_nothing_to_judge(comparison)}."]
    chosen = headlines(comparison)
    if not chosen:
        primary = ", ".join(comparison.primary)
        return [f"No primary outcome ({primary}) was measured; all others are exploratory."]
    reason = comparison.findings[0].row.reason
    if not comparison.findings[0].judged and all(
        finding.row.reason == reason for finding in comparison.findings
    ):
        return [f"No verdict: {reason}."]
    ordered = sorted(chosen, key=lambda finding: not finding.judged)
    return list(map(sentence, [*summaries_of(chosen, comparison), *ordered]))


def _nothing_to_judge(comparison: Comparison) -> str:
    if comparison.n_runs:
        missing = ", ".join(comparison.unmeasured) or "a column of numbers"
        return f"no usable run has a metric to compare ({missing})"
    counts = Counter(exclusion.reason for exclusion in comparison.excluded if not exclusion.metric)
    parts = [f"{reason} ({count})" for reason, count in counts.most_common(NAMED)]
    return f"no run can be used: {'; '.join(parts)}"


def summaries_of(findings: Sequence[Finding], comparison: Comparison) -> list[Finding]:
    """Return the summaries over strata of the metrics and pairs of levels of findings."""
    keys = set(map(_key, findings))
    return [summary for summary in comparison.summaries if _key(summary) in keys]


def _key(finding: Finding) -> tuple[str, str, str]:
    return finding.row.metric, finding.row.a, finding.row.b


def verdicts_of_strata(summary: Finding, comparison: Comparison) -> str:
    """Return `3 strata faster, 1 inconclusive`; empty if all have the verdict of the summary."""
    if not summary.across:
        return ""
    counts = Counter(
        finding.row.verdict for finding in comparison.findings if _key(finding) == _key(summary)
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
    """Return `Rests on machines: box, other; teams: red; campaigns: 4.`."""
    parts = [
        f"{kind}: {len(names) if kind == 'campaigns' else ', '.join(names)}"
        for kind, names in comparison.rests_on.items()
        if names
    ]
    return f"Rests on {'; '.join(parts)}." if parts else ""


def at_a_look(finding: Finding, block_seconds: float) -> str:
    """Return a line on an outcome while its campaign goes on.

    Args:
        block_seconds: time that one more block takes.
    """
    text, share = sentence(finding), sample_size.narrower(finding)
    if finding.judged or finding.row.estimate is None:
        return text
    narrow = f" Settled at {share:.2g} of that width." if share else ""
    needed = sample_size.payable(finding, block_seconds)
    if needed is None:
        return f"{text}{narrow}"
    time = durations.format_duration(needed * block_seconds)
    return f"{text}{narrow} At most {more_blocks(needed)}, {time}."


def more_blocks(count: int) -> str:
    return f"{count:,} more block{'s' * (count > 1)}"


def joined(texts: Sequence[str], last: str = "and") -> str:
    """Return `a, b and c`."""
    return f"{', '.join(texts[:-1])} {last} {texts[-1]}" if len(texts) > 1 else "".join(texts)


def shortened(texts: Sequence[str], maximum: int) -> list[str]:
    """Return the first texts, and how many more the report has."""
    more = len(texts) - maximum
    return [*texts[:maximum], f"{more} more in the report"] if more > 0 else list(texts)

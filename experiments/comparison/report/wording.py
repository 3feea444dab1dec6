"""Wording of numbers and findings; numbers are rounded here only."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

from experiments.comparison.runs.pairing import NAMED
from experiments.comparison.verdicts import outlook, reasons
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Comparison, Finding, grouped
from experiments.config import durations
from experiments.metrics import Outcome, place

DASH, MINUS, NONE = "–", "−", "—"
MINIMUM_P = 1e-4
LOGGED_DIGITS = 4
# Largest detectable effect, as a share, that is printed as a number.
MAX_TOLD = 9.0
# Ratio of an interval's ends from which both have two significant digits.
WIDE = 10.0
_SCALES = {
    "s": ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3_600.0, "h")),
    "bytes": ((1.0, "bytes"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB")),
    "J": ((1e-3, "mJ"), (1.0, "J"), (1e3, "kJ")),
}
_FROM = {"min": 120.0, "h": 7_200.0}


@dataclass(frozen=True)
class Scale:
    """Values divided by `factor` are in `unit`."""

    factor: float
    unit: str


def scale(unit: str, values: Iterable[float]) -> Scale:
    """Return the unit in which the greatest value reads well."""
    greatest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    steps = _SCALES.get(unit, ((1.0, unit),))
    fitting = [Scale(factor, name) for factor, name in steps if greatest >= _FROM.get(name, factor)]
    return fitting[-1] if fitting else Scale(*steps[0])


def number(value: float, digits: int = 3) -> str:
    """Return a number in significant digits: 0.0123, 1,234, 2.5e-07."""
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if not -5 < size < 9:
        return f"{value:.{digits - 1}e}".replace("-", MINUS, int(value < 0))
    return f"{value:,.{max(0, digits - 1 - size)}f}".replace("-", MINUS)


def logged(
    estimate: float | None, low: float | None, high: float | None
) -> tuple[float | None, ...]:
    """Round an estimate and its interval to four digits, the bounds outwards."""
    rules = (Context(LOGGED_DIGITS, rule) for rule in (ROUND_HALF_EVEN, ROUND_FLOOR, ROUND_CEILING))
    values = zip((estimate, low, high), rules, strict=True)
    return tuple(
        None if value is None else float(rule.create_decimal_from_float(value))
        for value, rule in values
    )


def outwards(
    low: float, high: float, *, digits: int = 3, decimals: int | None = None
) -> tuple[float, float]:
    """Round the ends of an interval outwards to significant digits or decimals."""

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
    chosen = scale(outcome.unit, [value])
    return f"{number(value / chosen.factor)} {chosen.unit}".rstrip()


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


def margin(finding: Finding) -> str:
    return f"±{amount(finding.row.margin, finding)}"


def amount(value: float | None, finding: Finding) -> str:
    """Return the size of an effect: a share of a ratio in percent, a difference in its unit."""
    if value is None:
        return NONE
    if finding.row.kind != "ratio":
        return f"{value:.2g} {_unit(finding)}".rstrip()
    if value < 1:
        return f"{100 * value:.2g} %"
    return f"{_rounded(100 * value)} %" if value < MAX_TOLD else "over 10×"


def smallest_detectable(comparison: Comparison) -> str:
    """Return the smallest effects that the headlines' blocks could detect; empty without a test."""
    tested = [finding for finding in headlines(comparison) if finding.row.p is not None]
    by_label: dict[str, list[Finding]] = {}
    for finding in tested:
        by_label.setdefault(finding.outcome.label, []).append(finding)
    parts = []
    for label, group in by_label.items():
        group.sort(key=lambda finding: finding.row.minimum_in_family or 0.0)
        ends = dict.fromkeys(
            amount(finding.row.minimum_in_family, finding) for finding in (group[0], group[-1])
        )
        parts.append(f"{' to '.join(ends)} in {label}")
    counted = block_range(finding.row.n_blocks for finding in tested)
    return f"about {joined(parts)} (80 % power, {counted})" if tested else ""


def block_range(counts: Iterable[int]) -> str:
    """Return `6 blocks`, or `4 to 6 blocks` if counts differ; empty without any."""
    ordered = sorted(set(counts))
    if not ordered:
        return ""
    return f"{ordered[0]} to {blocks(ordered[-1])}" if len(ordered) > 1 else blocks(ordered[0])


def _unit(finding: Finding) -> str:
    return "% points" if finding.outcome.unit == "%" else finding.outcome.unit


def estimate(finding: Finding) -> str:
    """Return the estimate as computed: the ratio b / a or the difference b - a."""
    value = finding.row.estimate
    if value is None:
        return NONE
    return _ratio(value, finding) if finding.row.kind == "ratio" else _difference(value, finding)


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
        return _difference(value, finding)
    ratio = _ratio(turned.value, finding)
    direction = f" {finding.outcome.words[value >= 1]}"
    return f"{ratio}×{direction if float(ratio.replace(',', '')) != 1 else ''}"


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
    if row.kind == "ratio":
        return DASH.join(_ratio(end, finding) for end in _ratio_ends(low, high, finding))
    decimals = _decimals(finding)
    ends = (_signed(end, decimals) for end in outwards(low, high, decimals=decimals))
    return f"{' to '.join(ends)} {_unit(finding)}".rstrip()


def _rounded(value: float) -> str:
    return number(float(f"{value:.2g}"), 2)


def _ratio(value: float, finding: Finding) -> str:
    if not math.isfinite(value):
        return "∞"
    return _rounded(value) if _is_wide(finding) else f"{value:,.{_decimals(finding)}f}"


def _is_wide(finding: Finding) -> bool:
    turned = finding.times
    return turned is not None and turned.low < turned.high and turned.high > WIDE * turned.low


def _ratio_ends(low: float, high: float, finding: Finding) -> tuple[float, float]:
    if _is_wide(finding):
        return outwards(low, high, digits=2)
    return outwards(low, high, decimals=_decimals(finding))


def _difference(value: float, finding: Finding) -> str:
    return f"{_signed(value, _decimals(finding))} {_unit(finding)}".rstrip()


def _decimals(finding: Finding) -> int:
    """Return as many decimals as the interval carries; three digits without an interval."""
    row, turned = finding.row, finding.times
    if row.ci_low is None or row.ci_high is None or row.ci_low == row.ci_high:
        size = turned.value if turned else row.estimate or 1.0
        return max(0, 2 - math.floor(math.log10(abs(size))))
    if turned is None:
        return min(12, max(0, 1 - math.floor(math.log10(row.ci_high - row.ci_low))))
    least = sum(turned.value < limit for limit in (2, 10))
    return min(12, max(least, -math.floor(math.log10(turned.high - turned.low))))


def _signed(value: float, decimals: int) -> str:
    text = f"{value:+,.{decimals}f}".replace("-", MINUS)
    return text if text.strip(f"+{MINUS}0.") else f"±{text[1:]}"


def blocks(count: int) -> str:
    return f"{count} block{'' if count == 1 else 's'}"


def sentence(finding: Finding) -> str:
    """Return one finding, of b against the baseline a, with the cause of a wide interval."""
    finding = _with_labels(finding)
    row, decision, where = finding.row, finding.decision, _where(finding)
    subject = _capital(finding.outcome.label)
    than = _than(finding, start=True)
    basis = f"95 % interval {effect_interval(finding)}, {blocks(row.n_blocks)}"
    wider = _capital(reasons.widening(row))
    match decision:
        case Decision.NOT_COMPARABLE:
            text = f"{subject}{where}: {row.b} and {row.a} are not comparable: {row.reason}."
        case Decision.TOO_FEW if row.estimate is None:
            text = f"{subject}{where}: no verdict, {row.reason}."
        case Decision.OPEN | Decision.TOO_FEW:
            seen = f"seen: {_than(finding)} ({basis}){where}"
            text, wider = f"{subject}: no verdict, {row.reason}; {seen}.", ""
        case Decision.IDENTICAL:
            text = f"{subject}: identical ({blocks(row.n_blocks)}){where}."
        case Decision.EQUIVALENT:
            text = f"{subject}: {_equivalent(finding)}, {basis}){where}."
        case _ if finding.never_varied:
            less = f"; that is less than the margin of {margin(finding)}"
            small = less if decision is Decision.CONSTANT else ""
            text = f"{than}, the same in all {blocks(row.n_blocks)}{where}{small}."
        case Decision.WITHIN_MARGIN:
            within = f"a difference, but within the margin of {margin(finding)}"
            text = f"{than} ({basis}){where}: {within}."
        case Decision.SIZE_OPEN:
            text = f"{than} ({basis}){where}; {_size_open(finding)}."
        case _:
            text = f"{than} ({basis}){where}."
    return f"{text} {wider}." if wider else text


def _equivalent(finding: Finding) -> str:
    return (
        f"{finding.row.b} and {finding.row.a} are equivalent within {margin(finding)} "
        f"({effect(finding)}"
    )


def _size_open(finding: Finding) -> str:
    return "; ".join(filter(None, ("but whether by more than the margin is open", finding.outlook)))


def _than(finding: Finding, *, start: bool = False) -> str:
    """Return `tensorflow trains 1.42× faster than pytorch`."""
    row, label = finding.row, finding.outcome.label
    seen, subject = effect(finding), _capital(label) if start else label
    if seen.startswith("±") or seen.endswith("×") or seen == "identical":
        return f"{subject} of {row.b} and {row.a}: {seen}"
    if verb := finding.outcome.verb:
        return f"{row.b} {verb} {seen} than {row.a}"
    if row.kind == "difference" and row.estimate is not None:
        seen = f"{seen.lstrip('+' + MINUS)} {finding.outcome.words[row.estimate > 0]}"
    return f"{subject} of {row.b} is {seen} than that of {row.a}"


def _where(finding: Finding) -> str:
    return f" [{finding.row.stratum}]" if finding.row.stratum else ""


def describe_outcome(finding: Finding) -> str:
    """Return the outcome, and the stratum if there is one."""
    return finding.outcome.label + _where(finding)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# Library names as their makers write them; whoever adds a framework needs no entry: its name
# stands as it is.
_PROPER = {
    "pytorch": "PyTorch",
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "jax": "JAX",
}


# A level that says nothing without the name of its setting.
BARE = re.compile(r"[\d.,]+|true|false|none")


def labelled(level: str, factor: str) -> str:
    """Return a level as it is named in prose: a bare value with its setting, `threads=2`."""
    return f"{factor.removeprefix('params.')}={level}" if BARE.fullmatch(level) else level


def _with_labels(finding: Finding) -> Finding:
    row = finding.row
    return replace(
        finding, row=replace(row, a=labelled(row.a, row.factor), b=labelled(row.b, row.factor))
    )


def spoken(level: str, comparison: Comparison) -> str:
    """Return a level as prose: `keras-torch` is Keras on PyTorch; a bare value is `threads=2`."""
    if comparison.factor.rpartition(".")[2] == "campaign":
        return f"“{level}”"
    if comparison.factor != "framework":
        return labelled(level, comparison.factor)
    name, plus, variant = level.partition("+")
    words = " on ".join(_PROPER.get(part, part) for part in name.split("-"))
    return words + (f" ({variant})" if plus else "")


def settled_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with a verdict before those that are open."""
    return sorted(findings, key=lambda finding: not finding.judged)


def clause(finding: Finding, comparison: Comparison) -> str:
    """Return a finding as a clause to be read aloud."""
    row, label = finding.row, finding.outcome.label
    reported = replace(
        finding, row=replace(row, a=spoken(row.a, comparison), b=spoken(row.b, comparison))
    )
    match finding.decision:
        case Decision.NOT_COMPARABLE:
            return f"{label} is not comparable"
        case Decision.IDENTICAL:
            return f"{label} is identical"
        case Decision.EQUIVALENT:
            return f"no difference of {amount(row.margin, finding)} or more in {label} (equivalent)"
        case Decision.OPEN:
            wider = f" ({cause})" if (cause := reasons.widening(row)) else ""
            return f"not settled after {blocks(row.n_blocks)}: {_range(reported)}{wider}"
        case Decision.TOO_FEW:
            return f"no verdict on {label}: {row.reason}"
        case Decision.SIZE_OPEN:
            return (
                f"{_than(reported)}, but whether by more than {amount(row.margin, finding)} is not "
                "settled"
            )
        case Decision.WITHIN_MARGIN | Decision.CONSTANT:
            return f"{_than(reported)}, less than the margin of {amount(row.margin, finding)}"
    return _than(reported)


def _range(finding: Finding) -> str:
    """Return `tensorflow trains between 1.12× faster and 1.34× slower than pytorch`."""
    row, label = finding.row, finding.outcome.label
    if row.kind == "difference":
        return f"{label} of {row.b} differs by {effect_interval(finding)} from that of {row.a}"
    ends = _end(row.ci_low, finding, upper=False), _end(row.ci_high, finding, upper=True)
    if verb := finding.outcome.verb:
        return f"{row.b} {verb} between {ends[0]} and {ends[1]} than {row.a}"
    return f"{label} of {row.b} is between {ends[0]} and {ends[1]} than that of {row.a}"


def _end(value: float | None, finding: Finding, *, upper: bool) -> str:
    if value is None:
        return "an unknown amount different"
    times = value if value >= 1 else 1 / value
    times = _ratio_ends(times, times, finding)[upper is (value >= 1)]
    estimate = times if value >= 1 else 1 / times
    return effect(
        replace(
            finding, row=replace(finding.row, estimate=estimate), pairs=(), decision=Decision.OPEN
        )
    )


def brief(finding: Finding) -> str:
    """Return the text after a level's name: is 1.42× faster; or why there is no verdict."""
    if finding.row.estimate is None:
        return finding.row.verdict
    if finding.decision is Decision.EQUIVALENT:
        return f"equivalent within {margin(finding)}"
    text = effect(finding)
    return text if finding.judged else f"not settled ({effect_interval(finding) or text})"


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
        first = sorted(best.values(), key=lambda finding: place(finding.row.metric)) or group[:3]
        if comparison.primary:
            first = [finding for finding in group if finding.primary]
        results += first
    return results


def sentences(comparison: Comparison) -> list[str]:
    """Return the results as text, the most important first."""
    if not comparison.findings:
        return [f"No verdict: {_nothing_to_judge(comparison)}."]
    first, chosen = comparison.findings[0], headlines(comparison)
    if not first.judged and len({finding.row.reason for finding in comparison.findings}) == 1:
        lines = [f"No verdict: {first.row.reason}."]
        for finding in chosen:
            if finding.row.estimate is not None:
                bounds = "" if finding.identical else f" (95 % interval {effect_interval(finding)})"
                lines.append(f"Seen, but not judged: {_than(finding)}{bounds}{_where(finding)}.")
        return lines
    if not chosen:
        primary = ", ".join(comparison.primary)
        return [f"No primary outcome ({primary}) was measured: what was is exploratory, and below."]
    if len(grouped(comparison.findings)) == 1:
        return [sentence(finding) for finding in settled_first(chosen)]
    keys = {(finding.row.metric, finding.row.a, finding.row.b) for finding in chosen}
    together = [
        summary_sentence(summary)
        for summary in comparison.summaries
        if (summary.row.metric, summary.row.a, summary.row.b) in keys
    ]
    return [*together, *map(_in_one, grouped(chosen).values())]


def _nothing_to_judge(comparison: Comparison) -> str:
    if comparison.n_runs:
        missing = ", ".join(comparison.unmeasured)
        return "no usable run has any of the outcomes" + (f" asked for ({missing})" * bool(missing))
    counts = Counter(
        exclusion.reason for exclusion in comparison.excluded if not exclusion.metric
    ).most_common()
    parts = [f"{reason} ({count})" for reason, count in counts[:NAMED]]
    if others := sum(count for _, count in counts[NAMED:]):
        parts.append(f"other reasons ({others})")
    return f"no run can be used: {'; '.join(parts)}"


def summary_sentence(summary: Finding) -> str:
    """Return a summary over strata, of b against the baseline a."""
    basis = f"95 % interval {effect_interval(summary)}"
    label, than = summary.outcome.label, _than(summary)
    match summary.decision:
        case _ if summary.never_varied:
            seen = f"{than} in every stratum"
        case Decision.EQUIVALENT:
            seen = f"{label}: {_equivalent(summary)}, {basis})"
        case Decision.WITHIN_MARGIN:
            seen = f"{than} ({basis}), a difference within the margin of {margin(summary)}"
        case Decision.SIZE_OPEN:
            seen = f"{than} ({basis}), {_size_open(summary)}"
        case Decision.TOO_FEW if summary.row.estimate is None:
            seen = f"{label}: no verdict, {summary.row.reason}"
        case Decision.OPEN | Decision.TOO_FEW:
            seen = f"{label}: no verdict, {summary.row.reason}; seen: {than} ({basis})"
        case _:
            seen = f"{than} ({basis})"
    share = summary.across.i_squared_percent if summary.across else None
    heterogeneity = "" if share is None else f", heterogeneity I² {share:.0f} %"
    return f"Over {strata(summary)}: {seen}{heterogeneity}."


def strata(summary: Finding) -> str:
    """Return `3 strata (machine=a, b, c)`; many strata by the names of their keys."""
    names = summary.across.names if summary.across else ()
    if len(names) > NAMED:
        keys = dict.fromkeys(part.partition("=")[0] for name in names for part in name.split(", "))
        return f"{len(names)} strata by {joined(list(keys))}"
    parts = [name.partition("=") for name in names]
    shared = {key for key, _, _ in parts}
    once = len(shared) == 1 and not any("=" in value for _, _, value in parts)
    listed = (
        f"{shared.pop()}={', '.join(value for _, _, value in parts)}" if once else "; ".join(names)
    )
    return f"{len(names)} strata ({listed})"


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
    """Return `Rests on 2 machines (box, other) and 1 team (red).`."""
    parts = [
        f"{len(names)} {what[:-1] if len(names) == 1 else what}"
        + ("" if what == "campaigns" else f" ({', '.join(names)})")
        for what, names in comparison.rests_on.items()
        if names
    ]
    return f"Rests on {joined(parts)}." if parts else ""


def _in_one(group: Sequence[Finding]) -> str:
    row, texts = _with_labels(group[0]).row, []
    for finding in settled_first(group):
        label, verdict = finding.outcome.label, finding.row.verdict
        if finding.row.estimate is None:
            texts.append(f"{label} {verdict} ({finding.row.reason})")
            continue
        bounds = effect_interval(finding)
        bracket = f"{bounds}{'' if finding.judged else f', {verdict}'}"
        text = f"{finding.outcome.verb or label} {effect(finding)}"
        texts.append(f"{text} ({bracket})" if bounds else f"{text}{bracket}")
    return f"{row.b} against {row.a}{_where(group[0])}: {'; '.join(texts)}."


def at_a_look(finding: Finding, block_seconds: float) -> str:
    """Return a line on an outcome while its campaign goes on.

    Args:
        block_seconds: time that one more block takes.
    """
    row, share = _with_labels(finding).row, outlook.narrower(finding)
    if row.estimate is None:
        return f"{describe_outcome(finding)}, {row.b} against {row.a}: {row.reason}"
    bounds = effect_interval(finding) or NONE
    seen = f"{describe_outcome(finding)}, {row.b} against {row.a}: {effect(finding)} (95 % CI {bounds})"
    if finding.judged or finding.decision is Decision.NOT_COMPARABLE:
        return f"{seen}: {row.verdict}"
    narrow = f"; settled at {share:.2g} of that width" if share else ""
    blocks_needed = outlook.payable(finding, block_seconds)
    if blocks_needed is None:
        return f"{seen}, margin {margin(finding)}: open{narrow}"
    extra = f"{blocks_needed:,} more block{'s' * (blocks_needed > 1)}"
    more = f"at most {extra}, {durations.format_duration(blocks_needed * block_seconds)}"
    return f"{seen}, margin {margin(finding)}: open{narrow}; {more}"


def joined(texts: Sequence[str], last: str = "and") -> str:
    """Return `a, b and c`."""
    return f"{', '.join(texts[:-1])} {last} {texts[-1]}" if len(texts) > 1 else "".join(texts)

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
from experiments.comparison.verdicts.decision import ALPHA, WITHOUT_TEST, Decision
from experiments.comparison.verdicts.findings import Comparison, Finding, grouped
from experiments.metrics import Outcome, is_quality, place

DASH, MINUS, NONE = "–", "−", "—"
NO_VERDICT_OF_SMOKE = "Smoke test: no verdict."
# An effect whose digits show no difference; only a verdict calls sides equal.
ABOUT_EQUAL, NO_DIRECTION = "about equal", "no clear direction"
# Clause on a decision, of b against the baseline a.
CLAUSES = {
    Decision.DIFFERENT: "{than}",
    Decision.SIZE_OPEN: "{than}; whether by more than {margin} is open",
    Decision.WITHIN_MARGIN: "{than}, less than the margin of {margin}",
    Decision.CONSTANT: "{than}, less than the margin of {margin}",
    Decision.OPEN: "not settled: {than}",
    Decision.IDENTICAL: "{outcome}: identical in {b} and {a}",
    Decision.EQUIVALENT: "{outcome}: no difference of {margin} or more between {b} and {a}",
    Decision.NOT_COMPARABLE: "{outcome} of {b} and {a}: not comparable; {reason}",
    Decision.TOO_FEW: "{outcome} of {b} and {a}: no verdict; {reason}",
}
SHARED = (*WITHOUT_TEST, Decision.IDENTICAL, Decision.EQUIVALENT)
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


def _round(value: float, rule: str, *, digits: int = 3, decimals: int | None = None) -> Decimal:
    exact = Decimal(f"{value:.12g}")  # 1.1 stays 1.1, whatever its last bits
    if decimals is None or not exact.is_finite():
        return Context(digits, rule).plus(exact)
    return exact.quantize(Decimal(1).scaleb(-decimals), rule, Context(60))


def outwards(
    low: float, high: float, *, digits: int = 3, decimals: int | None = None
) -> tuple[float, float]:
    """Round the ends of an interval outwards.

    Args:
        digits: significant digits.
        decimals: digits after the point, instead of significant ones.
    """
    below = _round(low, ROUND_FLOOR, digits=digits, decimals=decimals)
    above = _round(high, ROUND_CEILING, digits=digits, decimals=decimals)
    return float(below) + 0.0, float(above) + 0.0


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
    ascending = sorted(tested, key=lambda finding: finding.row.minimum_for_verdict or 0.0)
    greatest = {
        finding.outcome.label: amount(finding.row.minimum_for_verdict, finding)
        for finding in ascending
    }
    parts = [f"{size} in {label}" for label, size in greatest.items()]
    return f"effects of {joined(parts)} lead to a verdict (80 % power)" if parts else ""


def _unit(finding: Finding) -> str:
    return "% points" if finding.outcome.unit == "%" else finding.outcome.unit


def _with_unit(size: str, finding: Finding) -> str:
    unit = _unit(finding)
    return f"{size} {unit.removesuffix('s') if size == '1' else unit}".rstrip()


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
    if row.kind == "ratio" and outcome.is_speed:
        size = _ratio(max(value, 1 / value) if value else math.inf, finding, rule)
        return f"{size}× {word}" if re.fullmatch(r"1(\.0+)?", size) is None else ""
    change = 100 * abs(value - 1) if row.kind == "ratio" else abs(value)
    size = _rounded(change, _decimals(finding), rule)
    if not size.strip("0."):
        return ""
    if row.kind == "difference":
        return f"{_with_unit(size, finding)} {word}"
    is_all = not greater and float(size) >= 100
    return f"{'over 99' if is_all else size} % {word}"


def _words(outcome: Outcome) -> tuple[str, str]:
    """Return the words for less and more of an outcome: of what is used up, less and more."""
    return ("less", "more") if outcome.unit in ("bytes", "J") else outcome.words


def _rounded(value: float, decimals: int, rule: str = ROUND_HALF_EVEN) -> str:
    return f"{_round(value, rule, decimals=decimals):,}" if math.isfinite(value) else "∞"


def interval(finding: Finding) -> str:
    """Return the interval of a ratio as it is; empty if it never varied."""
    return _interval(finding, finding.row.ci_low, finding.row.ci_high)


def effect_interval(finding: Finding) -> str:
    """Return the interval of `effect`: of speeds turned, or with both directions; else signed."""
    row, turned = finding.row, finding.times
    low, high = row.ci_low, row.ci_high
    if turned is None or not finding.outcome.is_speed or low is None or high is None:
        return _interval(finding, low, high)
    if low < 1 < high:
        return " to ".join(_directed(end, finding, ROUND_UP) for end in (low, high))
    return _interval(finding, turned.low, turned.high)


def _interval(finding: Finding, low: float | None, high: float | None) -> str:
    row, decimals, unit = finding.row, _decimals(finding), _unit(finding)
    if finding.never_varied or row.estimate is None:
        return ""
    if low is None or high is None:
        return "unbounded"
    if low == high:
        return "no spread"
    if row.kind == "ratio" and finding.outcome.is_speed:
        return DASH.join(_ratio(end, finding) for end in outwards(low, high, **_precision(finding)))
    if row.kind == "ratio":
        low, high, unit = 100 * (low - 1), 100 * (high - 1), "%"
    ends = outwards(low, high, decimals=decimals)
    return f"{' to '.join(_signed(end, decimals) for end in ends)} {unit}".rstrip()


def _ratio(value: float, finding: Finding, rule: str = ROUND_HALF_EVEN) -> str:
    precision = _precision(finding)
    if "decimals" in precision or not math.isfinite(value):
        return _rounded(value, precision.get("decimals", 0), rule)
    return number(float(_round(value, rule, **precision)), precision["digits"])


def _precision(finding: Finding) -> dict[str, int]:
    """Return the digits or decimals that a ratio's interval carries; three digits without one."""
    turned, width = finding.times, finding.width
    assert turned is not None
    if width is None:
        return {"decimals": max(0, 2 - math.floor(math.log10(turned.value)))}
    if turned.high > WIDE * turned.low:
        return {"digits": 2}
    least = sum(turned.value < limit for limit in (2, 10))
    decimals = -math.floor(math.log10(turned.high - turned.low))
    return {"decimals": min(12, max(least, decimals))}


def _decimals(finding: Finding) -> int:
    """Return the decimals of a difference, or of a ratio's change in percent."""
    factor, base = (100, 1.0) if finding.row.kind == "ratio" else (1, 0.0)
    digits, size = 1, factor * abs((finding.row.estimate or 1.0) - base) or 1.0
    if finding.width is not None:
        digits, size = 2 - (factor > 1), factor * finding.width
    elif factor == 1:
        digits = 3
    return min(12, max(0, digits - 1 - math.floor(math.log10(size))))


def _signed(value: float, decimals: int) -> str:
    text = f"{value:+,.{decimals}f}".replace("-", MINUS)
    return text if text.strip(f"+{MINUS}0.") else f"±{text[1:]}"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def blocks(count: int) -> str:
    return counted(count, "block")


def sentence(finding: Finding) -> str:
    """Return a finding as a sentence with its interval and blocks, or strata."""
    row, across, details = finding.row, finding.across, list[str]()
    if finding.decision not in WITHOUT_TEST:
        bounds = effect_interval(finding)
        details += [f"95 % CI {bounds}"] if bounds else []
        details.append(f"{len(across.names)} strata" if across else blocks(row.n_blocks))
        if across and across.i_squared_percent is not None:
            details.append(f"heterogeneity I² {across.i_squared_percent:.0f} %")
    basis = f" ({', '.join(details)})" if details else ""
    return f"{capitalised(clause(finding), names(finding)[1])}{basis}."


def clause(finding: Finding, labels: str = "") -> str:
    """Return a finding as a clause to be read aloud, of b against the baseline a.

    Args:
        labels: outcomes that share the clause, instead of the finding's.
    """
    row, (a, b) = finding.row, names(finding)
    text = CLAUSES[finding.decision].format(
        than=_than(finding),
        margin=amount(row.margin, finding),
        outcome=labels or finding.outcome.label,
        a=a,
        b=b,
        reason=row.reason,
    )
    if _has_slow_runs(finding):
        counts = f"{row.slow_runs_b} of {row.n_blocks} runs of {b} were slow"
        text += f", but {counts}, {row.slow_runs_a} of {a}"
    return f"{text} [{row.stratum}]" if row.stratum else text


def _has_slow_runs(finding: Finding) -> bool:
    p = finding.row.slow_runs_p
    return p is not None and p <= ALPHA


def failed_runs(failure: FailedRuns, factor: str) -> str:
    """Return `flaky failed in 8 of 16 runs: exit code 1`."""
    reason = f": {failure.reason}" if failure.reason else ""
    counts = f"{failure.failed} of {failure.runs} runs"
    return f"{level_name(failure.level, factor)} failed in {counts}{reason}"


def clauses(findings: Sequence[Finding]) -> list[str]:
    """Return the clauses of findings; outcomes without a size and of one reason share theirs."""
    groups: dict[object, list[Finding]] = {}
    for finding in findings:
        row, decision = finding.row, finding.decision
        same = row.reason if decision in WITHOUT_TEST else row.margin
        key = (row.a, row.b, row.stratum, decision, same)
        is_shared = decision in SHARED and not _has_slow_runs(finding)
        groups.setdefault(key if is_shared else id(finding), []).append(finding)
    return [clause(group[0], joined(labels(group))) for group in groups.values()]


def labels(findings: Iterable[Finding]) -> list[str]:
    """Return the outcomes of findings, each once."""
    return list(dict.fromkeys(finding.outcome.label for finding in findings))


def _than(finding: Finding) -> str:
    """Return `TensorFlow trains 1.42× faster than PyTorch`."""
    outcome, text, (a, b) = finding.outcome, effect(finding), names(finding)
    if text in (ABOUT_EQUAL, NO_DIRECTION, NONE):
        return f"{outcome.label}: {text} in {b} and {a}"
    verb = "uses" if _words(outcome)[0] == "less" else "is"
    subject = f"{b} {outcome.verb}" if outcome.verb else f"{outcome.label}: {b} {verb}"
    about = "about " if finding.decision is Decision.OPEN else ""
    return f"{subject} {about}{text} than {a}"


def names(finding: Finding) -> tuple[str, str]:
    """Return the baseline and the other level as prose."""
    row = finding.row
    return level_name(row.a, row.factor), level_name(row.b, row.factor)


def describe_outcome(finding: Finding) -> str:
    """Return the outcome, and the stratum if there is one."""
    label, stratum = finding.outcome.label, finding.row.stratum
    return f"{label} [{stratum}]" if stratum else label


def capitalised(text: str, level: str = "") -> str:
    """Return a text that begins a sentence; a name, as of the level or `step_ms`, stays."""
    is_name = re.match(r"\w*[_/]", text) or (level and text.startswith(level))
    return text if is_name else text[:1].upper() + text[1:]


# Library names as their makers write them; another framework's name stands as it is.
_PROPER = {
    "pytorch": "PyTorch",
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "jax": "JAX",
    "litert": "LiteRT",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
# A level that says nothing without the name of its setting.
_BARE = re.compile(r"[\d.,]+|true|false|none")


def level_name(level: str, factor: str) -> str:
    """Return a level as prose: `keras-torch` is Keras on PyTorch; a bare value is `threads=2`."""
    if factor.rpartition(".")[2] == "campaign":
        return f"“{level}”"
    if factor == "framework":
        whole, plus, variant = level.partition("+")
        name, _, exporter = whole.partition("@")
        words = " on ".join(_PROPER.get(part, part) for part in name.split("-"))
        words += f" of {_PROPER.get(exporter, exporter)}" if exporter else ""
        return words + (f" ({variant})" if plus else "")
    return f"{factor.removeprefix('params.')}={level}" if _BARE.fullmatch(level) else level


def headlines(comparison: Comparison) -> list[Finding]:
    """Return the primary outcomes for every pair of levels and stratum.

    Without a declaration: training speed, inference, memory, energy and quality.
    """
    results: list[Finding] = []
    for group in grouped(comparison.findings).values():
        best: dict[str, Finding] = {}
        for finding in sorted(group, key=rank):
            if finding.outcome.headline and is_meaningful(finding, comparison):
                best.setdefault(finding.outcome.headline[0], finding)
        first = sorted(best.values(), key=lambda finding: place(finding.row.metric))
        first = first or sorted(group, key=lambda finding: finding.row.estimate is None)[:3]
        if comparison.primary:
            first = [finding for finding in group if finding.primary]
        results += first
    return results


def rank(finding: Finding) -> int:
    """Return the place of a metric among those that answer its question."""
    return (finding.outcome.headline or ("", 9))[1]


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
    open_ones = [finding for finding in chosen if finding.decision in WITHOUT_TEST]
    rest = [finding for finding in chosen if finding not in open_ones]
    ordered = sorted(rest, key=lambda finding: not finding.judged)
    lines = list(map(sentence, [*summaries_of(chosen, comparison), *ordered]))
    return [*lines, *(f"{capitalised(text)}." for text in clauses(open_ones))]


def _nothing_to_judge(comparison: Comparison) -> str:
    if comparison.n_runs:
        missing = ", ".join(comparison.unmeasured) or "a column of numbers"
        return f"no usable run has a metric to compare ({missing})"
    counts = Counter(exclusion.reason for exclusion in comparison.excluded if not exclusion.metric)
    parts = [f"{reason} ({counted(count, 'run')})" for reason, count in counts.most_common(NAMED)]
    return ". ".join(filter(None, ("no run can be used", capitalised("; ".join(parts)))))


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

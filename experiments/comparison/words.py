"""Numbers for people: units, significant digits, and a finding as a sentence. The only place where anything is rounded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from experiments.comparison.findings import (
    DETERMINISTIC,
    EQUIVALENT,
    INCONCLUSIVE,
    NOT_COMPARABLE,
    WITHIN_MARGIN,
    Comparison,
    Control,
    Finding,
    Row,
    Summary,
)
from experiments.comparison.gates import NAMED
from experiments.comparison.outcomes import Outcome

DASH, MINUS, NONE = "–", "−", "—"
LEAST_P = 1e-4
# What a reason says of a difference that is shown and may be too small to matter.
OPEN = ", but whether"
_SCALES = {
    "s": ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3_600.0, "h")),
    "bytes": ((1.0, "bytes"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB")),
    "J": ((1e-3, "mJ"), (1.0, "J"), (1e3, "kJ")),
}
_FROM = {"min": 120.0, "h": 7_200.0}
# A sentence says what is done rather than the metric's name where there is a verb for it.
_VERBS = {"training throughput": "trains", "median inference latency": "answers"}
_HEADLINES = (
    ("train/examples_per_second", "train/captions_per_second", "train/images_per_second", "train/step_seconds"),
    ("inference/latency_seconds_p50", "inference/examples_per_second"),
    ("memory/peak_device_bytes", "memory/peak_rss_bytes"),
    ("energy/joules_per_example", "energy/joules"),
    ("val/accuracy", "val/bleu4", "val/bleu1", "val/loss"),
)


@dataclass(frozen=True)
class Scale:
    """Values divided by `factor` are in `unit`."""

    factor: float
    unit: str


def scale(unit: str, values: Iterable[float]) -> Scale:
    """The unit in which the greatest value reads well."""
    greatest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    steps = _SCALES.get(unit, ((1.0, unit),))
    fitting = [Scale(factor, name) for factor, name in steps if greatest >= _FROM.get(name, factor)]
    return fitting[-1] if fitting else Scale(*steps[0])


def number(value: float, digits: int = 3) -> str:
    """Significant digits, without an exponent where people would write none: 0.0123, 1,234, 2.5e-07."""
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if not -5 < size < 9:
        return f"{value:.{digits - 1}e}".replace("-", MINUS, int(value < 0))
    return f"{value:,.{max(0, digits - 1 - size)}f}".replace("-", MINUS)


def quantity(value: float | None, outcome: Outcome) -> str:
    """A value with its unit: 31.2 ms, 712 MiB, 1,020 captions/s."""
    if value is None:
        return NONE
    chosen = scale(outcome.unit, [value])
    return f"{number(value / chosen.factor)} {chosen.unit}".rstrip()


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def p_value(p: float | None) -> str:
    """Never 0: what is smaller than can be told is told so."""
    if p is None:
        return NONE
    return f"< {LEAST_P:.4f}" if p < LEAST_P else f"{p:.4f}" if p < 0.01 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def margin(finding: Finding) -> str:
    """What matters: ±3 %, ±1 points."""
    return f"±{_amount(finding.row.margin, finding)}"


def detectable(finding: Finding) -> str:
    """The smallest true difference that this many blocks find in four of five campaigns."""
    found = finding.row.minimum_detectable
    return NONE if found is None or finding.row.verdict == DETERMINISTIC else _amount(found, finding)


def _amount(value: float, finding: Finding) -> str:
    if finding.row.kind == "ratio":
        return f"{100 * value:.2g} %" if value < 1 else f"{number(100 * value)} %"
    return f"{value:.2g} {_unit(finding)}".rstrip()


def _unit(finding: Finding) -> str:
    """Of a difference: percentages differ by points."""
    return "% points" if finding.outcome.unit == "%" else finding.outcome.unit


def estimate(finding: Finding) -> str:
    """The estimate as it was computed: the ratio b / a or the difference b - a."""
    row = finding.row
    if row.estimate is None:
        return NONE
    return _fixed(row.estimate, _decimals(finding)) if row.kind == "ratio" else _difference(row.estimate, finding)


def interval(finding: Finding) -> str:
    """The interval of `estimate`; empty where there is nothing uncertain."""
    row = finding.row
    return _interval(finding, row.ci_low, row.ci_high)


def effect(finding: Finding) -> str:
    """The estimate in words: 1.42× faster, +1.2 points, identical."""
    row, turned = finding.row, finding.times
    if row.estimate is None:
        return NONE
    if (finding.pairs and all(pair.a == pair.b for pair in finding.pairs)) or row.reason.startswith("identical"):
        return "identical"
    if turned is None:
        return _difference(row.estimate, finding)
    return f"{_fixed(turned.value, _decimals(finding))}× {finding.outcome.words[row.estimate >= 1]}"


def effect_interval(finding: Finding) -> str:
    """The interval of what `effect` says."""
    row, turned = finding.row, finding.times
    if turned is None or row.ci_low is None or row.ci_high is None:
        return interval(finding)
    return _interval(finding, turned.low, turned.high)


def _interval(finding: Finding, low: float | None, high: float | None) -> str:
    row = finding.row
    if row.verdict == DETERMINISTIC or row.estimate is None:
        return ""
    if low is None or high is None:
        return "none from 1 block"
    decimals = _decimals(finding)
    if row.kind == "ratio":
        return f"{_fixed(low, decimals)}{DASH}{_fixed(high, decimals)}"
    return f"{_signed(low, decimals)} to {_signed(high, decimals)} {_unit(finding)}".rstrip()


def _difference(value: float, finding: Finding) -> str:
    return f"{_signed(value, _decimals(finding))} {_unit(finding)}".rstrip()


def _decimals(finding: Finding) -> int:
    """As many decimals as the interval's width carries; three significant digits where there is none."""
    row, turned = finding.row, finding.times
    if row.ci_low is None or row.ci_high is None or row.ci_low == row.ci_high:
        size = turned.value if turned else row.estimate or 1.0
        return max(0, 2 - math.floor(math.log10(abs(size))))
    low, high = (turned.low, turned.high) if turned else (row.ci_low, row.ci_high)
    needed = -math.floor(math.log10(high - low)) + (0 if turned else 1)
    least = 0 if turned is None or turned.value >= 10 else 1 if turned.value >= 2 else 2
    return min(6, max(least, needed))


def _fixed(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}" if math.isfinite(value) else "∞"


def _signed(value: float, decimals: int) -> str:
    text = f"{value:+,.{decimals}f}".replace("-", MINUS)
    return text if text.strip(f"+{MINUS}0.") else f"±{text[1:]}"


def blocks(count: int) -> str:
    return f"{count} block{'' if count == 1 else 's'}"


def sentence(finding: Finding) -> str:
    """One finding, said of b against the baseline a."""
    row = finding.row
    where = f" [{row.stratum}]" if row.stratum else ""
    label = finding.outcome.label
    subject = _capital(label)
    if row.verdict == NOT_COMPARABLE:
        return f"{subject}{where}: {row.b} and {row.a} are not comparable: {row.reason}."
    basis = f"(95 % interval {effect_interval(finding)}, {blocks(row.n_blocks)}){where}"
    if row.verdict == DETERMINISTIC:
        seen = effect(finding)
        what = "identical" if seen == "identical" else f"always {seen} in {row.b} than in {row.a}"
        return f"{subject}: {what} ({blocks(row.n_blocks)}){where}."
    if row.verdict == EQUIVALENT:
        return f"{subject}: {row.b} and {row.a} are equivalent within {margin(finding)} ({effect(finding)}, {basis[1:]}."
    if row.verdict == WITHIN_MARGIN:
        return f"{_than(finding, start=True)} {basis}: a difference, but within the margin of {margin(finding)}."
    if row.verdict == INCONCLUSIVE and finding.different:
        return f"{_than(finding, start=True)} {basis}; {row.reason.partition(', ')[2]}."
    if row.verdict == INCONCLUSIVE:
        return f"{subject}: no verdict, {row.reason}; seen: {_than(finding)} {basis}."
    return f"{_than(finding, start=True)} {basis}."


def _than(finding: Finding, *, start: bool = False) -> str:
    """tensorflow trains 1.42× faster than pytorch; a label, but never a level, gets a capital at the `start` of a sentence."""
    row, label = finding.row, finding.outcome.label
    if label in _VERBS:
        return f"{row.b} {_VERBS[label]} {effect(finding)} than {row.a}"
    seen, subject = effect(finding), _capital(label) if start else label
    if seen.startswith("±") or seen == "identical":
        return f"{subject} of {row.b} and {row.a}: {seen}"
    if row.kind == "difference" and row.estimate is not None:
        seen = f"{seen.lstrip('+' + MINUS)} {finding.outcome.words[row.estimate > 0]}"
    return f"{subject} of {row.b} is {seen} than that of {row.a}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def headlines(comparison: Comparison) -> list[Finding]:
    """What a reader wants first: training speed, inference, memory, energy, quality, for every pair of levels and stratum."""
    found: list[Finding] = []
    for group in grouped(comparison).values():
        telling = {f.row.metric: f for f in group if not (f.a_value == 0 and f.b_value == 0)}
        chosen = [next((telling[metric] for metric in metrics if metric in telling), None) for metrics in _HEADLINES]
        found += [finding for finding in chosen if finding is not None] or group[:3]
    return found


def grouped(comparison: Comparison) -> dict[tuple[str, str, str], list[Finding]]:
    """Findings by stratum, a and b."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in comparison.findings:
        groups.setdefault((finding.row.stratum, finding.row.a, finding.row.b), []).append(finding)
    return groups


def sentences(comparison: Comparison) -> list[str]:
    """What was found, in words, the most important first. A reason that holds for everything is said once."""
    if not comparison.findings:
        return ["No verdict: no run has any of the outcomes."]
    first, chosen = comparison.findings[0], headlines(comparison)
    if not first.judged and len({finding.row.reason for finding in comparison.findings}) == 1:
        seen = [f"Seen, but not judged: {_than(finding)}." for finding in chosen if finding.row.estimate is not None]
        return [f"No verdict: {first.row.reason}.", *seen]
    if len(grouped(comparison)) == 1:
        return [sentence(finding) for finding in chosen]
    together = [summary_sentence(summary) for summary in comparison.summaries if _is_headline(summary, chosen)]
    pairs: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in chosen:
        pairs.setdefault((finding.row.stratum, finding.row.a, finding.row.b), []).append(finding)
    return [*together, *(_in_one(group) for group in pairs.values())]


def _is_headline(summary: Summary, chosen: Sequence[Finding]) -> bool:
    told = (summary.metric, summary.a, summary.b)
    return any((finding.row.metric, finding.row.a, finding.row.b) == told for finding in chosen)


def summary_sentence(summary: Summary) -> str:
    """What the strata say together, said of b against the baseline a."""
    like, label = _like_a_finding(summary), summary.outcome.label
    told = f"95 % interval {summary_interval(summary)}"
    seen = f"{_than(like)} ({told})"
    if summary.verdict == DETERMINISTIC:
        seen = f"{_than(like)} in every stratum"
    elif summary.verdict == EQUIVALENT:
        seen = f"{label}: {summary.b} and {summary.a} are equivalent within {margin(like)} ({effect(like)}, {told})"
    elif summary.verdict == WITHIN_MARGIN:
        seen = f"{seen}, a difference within the margin of {margin(like)}"
    elif summary.verdict == INCONCLUSIVE and summary.different and OPEN in summary.reason:
        seen = f"{seen}, {summary.reason.partition(', ')[2]}"
    elif summary.verdict == INCONCLUSIVE:
        seen = f"{label}: no verdict, {summary.reason}; seen: {seen}"
    return f"Over {strata(summary)}: {seen}{heterogeneity(summary, before=', ')}."


def strata(summary: Summary) -> str:
    """3 strata (machine=a, b, c): what is before every name is said once; of many, what they differ by."""
    if summary.n_strata > NAMED:
        keys = dict.fromkeys(part.partition("=")[0] for name in summary.strata for part in name.split(", "))
        return f"{summary.n_strata} strata by {joined(list(keys))}"
    parts = [name.partition("=") for name in summary.strata]
    shared = {key for key, _, _ in parts}
    once = len(shared) == 1 and not any("=" in value for _, _, value in parts)
    names = f"{shared.pop()}={', '.join(value for _, _, value in parts)}" if once else "; ".join(summary.strata)
    return f"{summary.n_strata} strata ({names})"


def summary_effect(summary: Summary) -> str:
    """The mean over strata in words: 1.42× faster, +1.2 points."""
    return effect(_like_a_finding(summary))


def summary_interval(summary: Summary) -> str:
    """The interval of what `summary_effect` says; empty where there is nothing uncertain."""
    return _bounds(summary, summary.low, summary.high)


def summary_prediction(summary: Summary) -> str:
    """Where one more stratum is expected, turned as in `summary_effect`; empty below three strata."""
    return _bounds(summary, summary.prediction_low, summary.prediction_high) if summary.n_strata > 2 else ""


def heterogeneity(summary: Summary, before: str = "") -> str:
    """heterogeneity I² 40 %: how much of what the strata differ by is more than chance; empty where it cannot be told."""
    if summary.i_squared_percent is None:
        return ""
    return f"{before}heterogeneity I² {summary.i_squared_percent:.0f} %"


def _bounds(summary: Summary, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "unbounded"
    like = _like_a_finding(summary)
    return effect_interval(replace(like, row=replace(like.row, ci_low=low, ci_high=high)))


def _like_a_finding(summary: Summary) -> Finding:
    """A summary is told in the same words as one stratum's finding."""
    row = Row(
        metric=summary.metric,
        factor=summary.factor,
        a=summary.a,
        b=summary.b,
        n_blocks=summary.n_blocks,
        estimate=summary.estimate,
        kind=summary.kind,
        ci_low=summary.low,
        ci_high=summary.high,
        p=summary.p,
        p_holm=summary.p_holm,
        effect_size=None,
        margin=summary.margin,
        equivalent=summary.equivalent,
        minimum_detectable=None,
        verdict=summary.verdict,
        reason=summary.reason,
        stratum="",
    )
    return Finding(row, summary.outcome)


def rests_on(comparison: Comparison) -> str:
    """Rests on 2 machines (box, other) and 1 team (red); empty where the runs say neither."""
    told = [
        f"{len(names)} {what[:-1] if len(names) == 1 else what} ({', '.join(names)})"
        for what, names in comparison.rests_on.items()
        if names
    ]
    return f"Rests on {joined(told)}." if told else ""


def _in_one(group: Sequence[Finding]) -> str:
    """All headlines of one pair of levels in one sentence."""
    row = group[0].row
    where = f" [{row.stratum}]" if row.stratum else ""
    told = [_brief(finding) for finding in group]
    return f"{row.b} against {row.a}{where}: {'; '.join(told)}."


def _brief(finding: Finding) -> str:
    row, label = finding.row, finding.outcome.label
    if row.estimate is None:
        return f"{label} {row.verdict} ({row.reason})"
    name = _VERBS.get(label, label)
    doubt = "" if finding.judged else f", {row.verdict}"
    return f"{name} {effect(finding)}" + (f" ({effect_interval(finding)}{doubt})" if effect_interval(finding) else doubt)


def control_sentence(control: Control) -> str:
    """What had to come out of a control, and what did."""
    return f"Control {control.name}: expected {control.expected}; {control_result(control)}."


def control_result(control: Control) -> str:
    """How many outcomes a control called different, and which."""
    tested, apart = len(control.tested), len(control.told_apart)
    if not tested:
        return "nothing could be judged"
    told = f"{apart} of {tested} judged outcomes {'was' if apart == 1 else 'were'} called different"
    if control.name.startswith("A/A"):
        return f"{told}: a rate of false alarms of {percent(apart / tested)}"
    return f"{told}: {joined([finding.outcome.label for finding in control.told_apart]) or 'the slow-down was not found'}"


def joined(texts: Sequence[str]) -> str:
    """one, two and three"""
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else "".join(texts)

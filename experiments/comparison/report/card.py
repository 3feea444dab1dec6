"""Answer card of a comparison, shown by the page, Markdown, the terminal and MLflow."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from experiments.comparison.report import tables, wording
from experiments.comparison.runs.environment import Span
from experiments.comparison.verdicts import sample_size
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Comparison, Finding, grouped
from experiments.config import durations, shell

# More than that cannot be read in ten seconds; the tables have all.
MAX_OUTCOMES, MAX_CLAUSES = 12, 4
_NOT_IN_A_METRIC = re.compile(r"[^\w\-. :/]")


@dataclass(frozen=True)
class Advice:
    """Command that measures more.

    Attributes:
        arguments: of the call.
        local_arguments: arguments that only this machine needs.
    """

    what: str
    arguments: tuple[str, ...]
    local_arguments: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """Command without a folder or server of this machine."""
        return shlex.join(["evenhand", *self.arguments])

    def __str__(self) -> str:
        """Return the command for the terminal that it is printed in."""
        return f"{self.what}: {shell.from_anywhere(*self.arguments, *self.local_arguments)}"


# Number of blocks and stratum -> how they are measured; None if they cannot be.
MoreBlocks = Callable[[int, str], Advice | None]


@dataclass(frozen=True)
class OutcomeLine:
    """Line of a card for one outcome.

    Attributes:
        verdict: with those of single strata, if they differ.
        style: as of a `Cell`.
    """

    label: str
    effect: str
    interval: str
    verdict: str
    style: str


@dataclass(frozen=True)
class AnswerCard:
    """Card of a comparison.

    Attributes:
        answer: what is settled, what is not, and what it costs to settle it.
        facts: name → text: model, data, machine, versions, date, duration, precision.
        outcomes: settled ones first.
        figures: `verdict/…` metrics of the campaign's run.
        advice: the command that measures what would settle it.
    """

    title: str
    question: str
    answer: str
    warnings: Sequence[str]
    facts: Mapping[str, str]
    outcomes: Sequence[OutcomeLine]
    left_out: int
    figures: Mapping[str, float]
    advice: Advice | None = None

    @property
    def headline(self) -> str:
        """Answer with the number of warnings."""
        count = len(self.warnings)
        return f"{self.answer} ({count} warning{'s' * (count > 1)})" if count else self.answer


def build_card(
    comparison: Comparison,
    title: str,
    span: Span | None = None,
    more_blocks: MoreBlocks | None = None,
) -> AnswerCard:
    """Return the card of a comparison.

    Args:
        span: when the runs were measured.
        more_blocks: returns how more blocks are measured.
    """
    chosen = wording.headlines(comparison)
    headlines = wording.summaries_of(chosen, comparison) or chosen
    headlines = sorted(headlines, key=lambda finding: not finding.judged)
    several = len(grouped(headlines)) > 1
    lines = []
    for finding in headlines[:MAX_OUTCOMES]:
        level = wording.level_name(finding.row.b, comparison.factor)
        verdicts = (finding.row.verdict, wording.verdicts_of_strata(finding, comparison))
        lines.append(
            OutcomeLine(
                wording.describe_outcome(finding) + (f": {level}" if several else ""),
                wording.effect(finding),
                wording.effect_interval(finding),
                " · ".join(filter(None, verdicts)),
                tables.style(finding),
            )
        )
    return AnswerCard(
        title,
        _question(comparison, headlines),
        " ".join(filter(None, (_answer(comparison, headlines), _quality(comparison)))),
        [warning.text for warning in comparison.warnings],
        {name: text for name, text in _facts(comparison, span).items() if text},
        lines,
        len(headlines) - len(lines),
        _figures(headlines),
        _advice(chosen, more_blocks) if more_blocks else None,
    )


def _advice(headlines: Sequence[Finding], more_blocks: MoreBlocks) -> Advice | None:
    """Return how the headline that needs most blocks can be settled."""
    needed = max(headlines, key=sample_size.more_blocks, default=None)
    if needed is None or not sample_size.more_blocks(needed):
        return None
    advice = more_blocks(sample_size.more_blocks(needed), needed.row.stratum)
    return advice and replace(advice, what=f"{advice.what} (for {needed.outcome.label})")


def _question(comparison: Comparison, findings: Sequence[Finding]) -> str:
    levels = [wording.level_name(level, comparison.factor) for level in comparison.levels]
    labels = _labels(findings) or ["any outcome"]
    sides = wording.joined(wording.shortened(levels, MAX_CLAUSES + 1))
    return f"Do {sides} differ in {wording.joined(labels, 'or')}?"


def _labels(findings: Iterable[Finding]) -> list[str]:
    return list(dict.fromkeys(finding.outcome.label for finding in findings))


def _answer(comparison: Comparison, findings: Sequence[Finding]) -> str:
    counts = {id(finding): wording.verdicts_of_strata(finding, comparison) for finding in findings}
    settled = [finding for finding in findings if finding.judged or counts[id(finding)]]
    if not settled and all(finding.decision is Decision.TOO_FEW for finding in findings):
        return wording.sentences(comparison)[0]
    shown = settled or findings[:1]
    clauses = [
        wording.clause(finding) + (f" ({counts[id(finding)]})" if counts[id(finding)] else "")
        for finding in shown
    ]
    text = "; ".join(wording.shortened(clauses, MAX_CLAUSES))
    # A campaign's effect on a side could be taken for the side's.
    of_one_campaign = settled and len(comparison.rests_on.get("campaigns", ())) == 1
    sentences = [
        f"In this campaign {text}." if of_one_campaign else f"{wording.begin(text, shown[0])}."
    ]
    rest = _labels(finding for finding in findings if not any(finding is other for other in shown))
    if rest:
        sentences.append(f"Not settled: {wording.joined(rest)}.")
    unsettled = [finding for finding in findings if not finding.judged]
    return " ".join([*sentences, *_remedies(unsettled)])


def _remedies(unsettled: Sequence[Finding]) -> list[str]:
    """Return sentences on what it costs to settle an outcome, or what may help."""
    sentences = []
    blocks = {id(finding): sample_size.payable(finding) or 0 for finding in unsettled}
    planned = [finding for finding in unsettled if blocks[id(finding)]]
    if planned:
        longest = max(planned, key=lambda finding: blocks[id(finding)])
        count = blocks[id(longest)]
        seconds = count * (longest.block_seconds or 0.0)
        time = f", {durations.format_duration(seconds)}," if seconds else ""
        sentences.append(
            f"At most {wording.more_blocks(count)}{time} settle {wording.joined(_labels(planned))} "
            f"with a predicted probability of {sample_size.PREDICTED}"
            f"{' each' if len(planned) > 1 else ''}."
        )
    if rest := [finding for finding in unsettled if sample_size.remedies(finding)]:
        ways = dict.fromkeys(way for finding in rest for way in sample_size.remedies(finding))
        sentences.append(
            f"How many more blocks would settle {wording.joined(_labels(rest))} cannot be "
            f"predicted; {wording.joined(list(ways), 'or')} may help."
        )
    return sentences


def _quality(comparison: Comparison) -> str:
    """Return the differences in quality that are shown though no primary outcome."""
    clauses = []
    for group in grouped(comparison.findings).values() if comparison.primary else ():
        different = [
            finding
            for finding in group
            if (finding.outcome.headline or ("", 0))[0] == "quality"
            and not finding.primary
            and finding.decision in (Decision.DIFFERENT, Decision.SIZE_OPEN)
        ]
        if different:
            first = min(different, key=lambda finding: (finding.outcome.headline or ("", 0))[1])
            clauses.append(wording.clause(first))
    text = "; ".join(wording.shortened(clauses, MAX_CLAUSES))
    return f"Quality differs (exploratory): {text}." if clauses else ""


def _facts(comparison: Comparison, span: Span | None) -> dict[str, str]:
    def values(name: str) -> str:
        levels = comparison.environment.values()
        return ", ".join(dict.fromkeys(facts[name] for facts in levels if name in facts))

    versions = {
        f"{name.removeprefix('version.')} {text}"
        for facts in comparison.environment.values()
        for name, text in facts.items()
        if name.startswith("version.")
    }
    counts = [finding.row.n_blocks for finding in comparison.findings if finding.row.n_blocks]
    runs = f"{comparison.n_runs:,} usable"
    if counts:
        least = f"{min(counts)} to " if min(counts) < max(counts) else ""
        runs += f", {least}{wording.blocks(max(counts))}"
    smallest = wording.smallest_detectable(comparison)
    return {
        "Model": values("model"),
        "Data": values("dataset"),
        "CPU": values("cpu"),
        "GPU": values("gpu"),
        "Versions": ", ".join(sorted(versions)),
        "Date": span.days if span else "",
        "Duration": f"{durations.format_duration(span.seconds)}, first run to last" if span else "",
        "Runs": runs,
        "Precision": f"smallest detectable effect {smallest}" if smallest else "",
    }


def _figures(findings: Sequence[Finding]) -> dict[str, float]:
    """Return estimates and bounds in four digits, the bounds rounded outwards.

    A ratio is in percent of the baseline, with the direction in its name: `percent_faster` is how
    much more b does in the same time, and below 0 if it is slower.
    """
    several = len({(finding.row.a, finding.row.b) for finding in findings}) > 1
    figures: dict[str, float] = {}
    for finding in findings:
        row, (less, more) = finding.row, finding.outcome.words
        if row.stratum:
            continue
        name, values = row.kind, [row.estimate, row.ci_low, row.ci_high]
        if row.kind == "ratio":
            if less == "faster":
                ratios = [row.estimate, row.ci_high, row.ci_low]
                values, more = [1 / ratio if ratio else None for ratio in ratios], less
            name = f"percent_{more}"
            values = [None if value is None else 100 * (value - 1) for value in values]
        level = f"/{row.b}" if several else ""
        key = _NOT_IN_A_METRIC.sub("_", f"verdict/{row.metric}{level}/{name}")
        estimate, *bounds = values
        if estimate is not None:
            figures[key] = float(f"{estimate:.4g}")
        for at, (end, bound) in enumerate(zip(("low", "high"), bounds, strict=True)):
            if bound is not None:
                figures[f"{key}_{end}"] = wording.outwards(bound, bound, digits=4)[at]
    return figures

"""Answer card of a comparison, shown by the page, Markdown, the terminal and MLflow."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from textwrap import shorten

from experiments.comparison.report import tables, wording
from experiments.comparison.runs.environment import Span
from experiments.comparison.runs.warning import WarningCode
from experiments.comparison.verdicts import sample_size
from experiments.comparison.verdicts.decision import OPEN, Decision
from experiments.comparison.verdicts.findings import Comparison, Finding, grouped
from experiments.config import durations, shell
from experiments.metrics import QUALITY, is_known

# More than that cannot be read in ten seconds; the tables have all.
MAX_OUTCOMES, MAX_CLAUSES = 12, 4
# Characters of the answer in a column of MLflow's list.
MAX_SHORT = 250
# Questions that a card answers where they were measured, declared or not.
QUESTIONS = ("training", "inference", QUALITY)
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
        failures: levels with failed runs; empty if there are none.
        settled: sentence on what is settled; empty if nothing is.
        unsettled: sentences on what is not, and what it costs to settle it.
        recommendation: what to do.
        conditions: of all runs.
        facts: name → text: model, data, machine, versions, date, duration, precision.
        outcomes: settled ones first.
        figures: `verdict/…` metrics of the campaign's run.
        short: answer for a column of MLflow's run list.
        advice: the command that measures what would settle it.
    """

    title: str
    question: str
    failures: str
    settled: str
    unsettled: str
    recommendation: str
    conditions: str
    warnings: Sequence[str]
    facts: Mapping[str, str]
    outcomes: Sequence[OutcomeLine]
    left_out: int
    figures: Mapping[str, float]
    short: str = ""
    advice: Advice | None = None

    @property
    def answer(self) -> str:
        """Sentences of the head in one line."""
        return " ".join(
            filter(None, (self.failures, self.settled, self.unsettled, self.recommendation))
        )

    def without_answer(self, sentences: Sequence[str]) -> list[str]:
        """Return the sentences that the card does not already have as its answer."""
        return [text for text in sentences if text not in (self.settled, self.unsettled)]


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
    if not comparison.primary:  # what the advice rests on is part of the answer
        headlines = [*headlines, *_other_settled(comparison, headlines)]
    headlines = sorted(headlines, key=lambda finding: not finding.judged)
    shown = [] if comparison.smoke else [*headlines, *_other_questions(comparison, headlines)]
    lines = [_line(finding, comparison) for finding in shown[:MAX_OUTCOMES]]
    if comparison.random_weights and not comparison.smoke:
        lines.append(OutcomeLine("quality", "not judged", "", "random weights", "none"))
    settled, unsettled, recommendation = _answer(comparison, headlines)
    conditions = " · ".join(f"{name}: {text}" for name, text in comparison.conditions.items())
    if conditions and len(comparison.rests_on.get("campaigns", ())) == 1:
        conditions = f"one campaign · {conditions}"
    failures = [wording.failed_runs(failure, comparison.factor) for failure in comparison.failures]
    short = _short(comparison, headlines) or settled or unsettled
    return AnswerCard(
        title,
        _question(comparison, headlines),
        f"{'; '.join(failures)}." if failures else "",
        settled,
        unsettled,
        recommendation,
        conditions,
        [warning.text for warning in comparison.warnings],
        {name: text for name, text in _facts(comparison, span).items() if text},
        lines,
        max(0, len(shown) - MAX_OUTCOMES),
        {} if comparison.smoke else _figures(headlines),
        shorten(short, MAX_SHORT, placeholder=" …"),
        _advice(chosen, more_blocks)
        if more_blocks and not comparison.smoke and not failures
        else None,
    )


def _line(finding: Finding, comparison: Comparison) -> OutcomeLine:
    label, question = wording.describe_outcome(finding), finding.outcome.question
    if question != finding.outcome.label:
        label = f"{question} ({label})"
    family = "" if finding.primary or not comparison.primary else "exploratory"
    verdicts = (finding.row.verdict, wording.verdicts_of_strata(finding, comparison), family)
    return OutcomeLine(
        f"{label}: {wording.level_name(finding.row.b, comparison.factor)}",
        wording.effect(finding),
        wording.effect_interval(finding),
        " · ".join(filter(None, verdicts)),
        tables.style(finding),
    )


def _others(
    comparison: Comparison, answered: Iterable[Finding], is_shown: Callable[[Finding], bool]
) -> list[Finding]:
    """Return the best metric of every question that is not answered, for pairs and strata."""
    questions = {finding.outcome.question for finding in answered}
    best: dict[tuple[str, ...], Finding] = {}
    for finding in sorted(comparison.findings, key=wording.rank):
        row, question = finding.row, finding.outcome.question
        is_open = question not in questions and wording.is_meaningful(finding, comparison)
        if is_open and is_shown(finding):
            best.setdefault((question, row.a, row.b, row.stratum), finding)
    return list(best.values())


def _other_questions(comparison: Comparison, headlines: Sequence[Finding]) -> list[Finding]:
    """Return the findings on training, inference and quality that no headline answers."""
    others = _others(
        comparison,
        headlines,
        lambda finding: finding.outcome.question in QUESTIONS and finding.row.n_blocks > 0,
    )
    ordered = sorted(others, key=lambda finding: QUESTIONS.index(finding.outcome.question))
    return ordered if len(grouped(ordered)) == 1 else []


def _other_settled(comparison: Comparison, headlines: Sequence[Finding]) -> list[Finding]:
    """Return the settled differences with a better side on questions that no headline answers.

    Details of the catalogue answer none.
    """

    def is_shown(finding: Finding) -> bool:
        is_detail = not finding.outcome.headline and is_known(finding.row.metric)
        return finding.good is not None and not is_detail

    return _others(comparison, headlines, is_shown)


def _advice(headlines: Sequence[Finding], more_blocks: MoreBlocks) -> Advice | None:
    """Return how the headline that needs most blocks can be settled."""
    needed = max(headlines, key=sample_size.more_blocks, default=None)
    if needed is None or not sample_size.more_blocks(needed):
        return None
    advice = more_blocks(sample_size.more_blocks(needed), needed.row.stratum)
    return advice and replace(advice, what=f"{advice.what} (for {needed.outcome.label})")


def _short(comparison: Comparison, findings: Sequence[Finding]) -> str:
    """Return `TensorFlow: training 1.18× slower, memory equivalent`; empty without a finding."""
    if comparison.smoke:
        return ""
    texts = {
        failure.level: [f"{failure.failed} of {failure.runs} runs failed"]
        for failure in comparison.failures
    }
    for finding in findings:
        verdict = finding.row.verdict
        if finding.decision in (Decision.DIFFERENT, Decision.SIZE_OPEN):
            is_open = finding.decision is Decision.SIZE_OPEN
            verdict = wording.effect(finding) + ", size open" * is_open
        texts.setdefault(finding.row.b, []).append(f"{finding.outcome.question} {verdict}")
    return "; ".join(
        f"{wording.level_name(level, comparison.factor)}: {', '.join(parts)}"
        for level, parts in texts.items()
    )


def _question(comparison: Comparison, findings: Sequence[Finding]) -> str:
    levels = [wording.level_name(level, comparison.factor) for level in comparison.levels]
    labels = wording.labels(findings) or ["any outcome"]
    sides = wording.joined(wording.shortened(levels, MAX_CLAUSES + 1))
    return f"Do {sides} differ in {wording.joined(wording.shortened(labels, MAX_CLAUSES), 'or')}?"


def _answer(comparison: Comparison, findings: Sequence[Finding]) -> tuple[str, str, str]:
    """Return what is settled, what is not and what that costs, and what to do."""
    if comparison.smoke:
        return "", wording.NO_VERDICT_OF_SMOKE, ""
    if not findings:
        return "", wording.sentences(comparison)[0], ""
    settled = [finding for finding in findings if finding.judged]
    unsettled = [finding for finding in findings if not finding.judged]
    text = "; ".join(wording.shortened(wording.clauses(settled), MAX_CLAUSES))
    first = f"{wording.capitalised(text, wording.names(settled[0])[1])}." if text else ""
    if comparison.primary and (shown := _exploratory(comparison, findings)):
        clauses = wording.shortened(list(map(wording.clause, shown)), MAX_CLAUSES)
        first = f"{first} Exploratory: {'; '.join(clauses)}.".strip()
    return first, _unsettled(unsettled), _recommendation(comparison, findings)


def _exploratory(comparison: Comparison, findings: Sequence[Finding]) -> list[Finding]:
    """Return the differences that are shown though they are of no primary outcome."""
    open_quality = _others(
        comparison,
        (),
        lambda finding: (
            finding.outcome.question == QUALITY
            and finding.decision is Decision.SIZE_OPEN
            and not finding.primary
        ),
    )
    return [*_other_settled(comparison, findings), *open_quality[:1]]


def _unsettled(findings: Sequence[Finding]) -> str:
    """Return what is not settled, and what it costs to settle it."""
    estimated = [finding for finding in findings if finding.decision in OPEN]
    texts = [wording.sentence(finding).removesuffix(".") for finding in estimated]
    costs: dict[str, list[str]] = {}
    for finding in estimated:
        name = f"{wording.describe_outcome(finding)} of {wording.names(finding)[1]}"
        costs.setdefault(finding.sample_size_text, []).append(name)
    clauses = wording.clauses([finding for finding in findings if finding not in estimated])
    for cost, names in costs.items():
        about = f"{wording.joined(names)}: " if len(costs) > 1 else ""
        clauses += [about + cost] if cost else []
    texts = wording.shortened(texts, MAX_CLAUSES)
    texts += map(wording.capitalised, wording.shortened(clauses, MAX_CLAUSES))
    return " ".join(f"{text}." for text in texts)


def _recommendation(comparison: Comparison, findings: Sequence[Finding]) -> str:
    """Return what to do on each question: which level to choose, or what is left to measure.

    A question is what the reader asks: training, inference, memory, or a metric of no headline.
    """
    questions: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.outcome.better != "neither":
            parts = _of_strata(finding, comparison)
            questions.setdefault(finding.outcome.question, []).extend(parts)
    for finding in _other_settled(comparison, findings):
        questions.setdefault(finding.outcome.question, []).append(finding)
    actions: dict[str, list[str]] = {}
    for question, group in questions.items():
        is_primary = not comparison.primary or any(finding.primary for finding in group)
        name = question if is_primary else f"{question} (exploratory)"
        actions.setdefault(_action(group, comparison), []).append(name)
    return " ".join(
        f"{wording.capitalised(', '.join(wording.shortened(names, MAX_CLAUSES)))}: {action}."
        for action, names in actions.items()
    )


def _action(findings: Sequence[Finding], comparison: Comparison) -> str:
    """Return what to do on one question. More blocks repair no level that fails."""
    if choice := _choice(findings, comparison):
        return choice
    if all(finding.judged for finding in findings):
        margins = (wording.amount(finding.row.margin, finding) for finding in findings)
        codes = {warning.code for warning in comparison.warnings}
        curves = ", but their learning curves differ" * (WarningCode.LEARNING_DIFFERS in codes)
        return (
            f"no difference of {wording.joined(list(dict.fromkeys(margins)), 'or')} or more{curves}"
        )
    sides = {level for finding in findings for level in (finding.row.a, finding.row.b)}
    if failed := [failure.level for failure in comparison.failures if failure.level in sides]:
        names = wording.joined([wording.level_name(level, comparison.factor) for level in failed])
        return f"find out why {names} fail{'s' * (len(failed) == 1)}, then measure again"
    if count := max(map(sample_size.more_blocks, findings)):
        seconds = count * max(finding.block_seconds or 0.0 for finding in findings)
        time = f" ({durations.format_duration(seconds)} of machine time)" if seconds else ""
        return f"run {wording.counted(count, 'more block')}{time}"
    is_busy = any(finding.busy for finding in findings)
    return "measure again on an idle machine" if is_busy else "no choice yet"


def _of_strata(finding: Finding, comparison: Comparison) -> list[Finding]:
    """Return the findings of the strata that a summary without a verdict leaves to them."""
    if finding.judged or not wording.verdicts_of_strata(finding, comparison):
        return [finding]
    return [part for part in comparison.findings if wording.key_of(part) == wording.key_of(finding)]


def _choice(findings: Sequence[Finding], comparison: Comparison) -> str:
    """Return the levels that are better than another and worse than none, if any differ.

    Findings are of one question, of all pairs of levels and all strata.
    """
    settled = [finding for finding in findings if finding.good is not None]
    wins = {
        (finding.row.b, finding.row.a) if finding.good else (finding.row.a, finding.row.b)
        for finding in settled
    }
    if not wins:
        return ""
    pairs = {(wording.key_of(finding), finding.good) for finding in settled if finding.row.stratum}
    if len(pairs) > len({key for key, _ in pairs}):
        return "the choice depends on the stratum"
    winners, losers = (set(levels) for levels in zip(*wins, strict=True))
    name = partial(wording.level_name, factor=comparison.factor)
    best = [level for level in comparison.levels if level in winners - losers]
    if not best:
        return "the choice depends on the outcome"
    failed = {failure.level for failure in comparison.failures}
    sound = [name(level) for level in best if level not in failed]
    if not sound:
        better, has = wording.joined(list(map(name, best))), "has" if len(best) == 1 else "have"
        return f"{better} would be better, but {has} failed runs"
    beaten = [name(level) for level in comparison.levels if level in losers]
    over = f" over {wording.joined(beaten)}" if len(comparison.levels) > 2 else ""
    return f"choose {wording.joined(sound, 'or')}{over}"


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
    return {
        "Model": values("model"),
        "Data": values("dataset"),
        "CPU": values("cpu"),
        "GPU": values("gpu"),
        "Versions": ", ".join(sorted(versions)),
        "Date": span.days if span else "",
        "Duration": f"{durations.format_duration(span.seconds)}, first run to last" if span else "",
        "Runs": runs,
        "Precision": "" if comparison.smoke else wording.smallest_detectable(comparison),
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
        for at, (end, value) in enumerate(zip(("", "_low", "_high"), values, strict=True)):
            if value is not None:
                rounded = (float(f"{value:.4g}"), *wording.outwards(value, value, digits=4))
                figures[f"{key}{end}"] = rounded[at]
    return figures

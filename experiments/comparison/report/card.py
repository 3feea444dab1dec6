"""Answer card of a comparison, shown by the page, Markdown, the terminal and MLflow."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from textwrap import shorten
from typing import NamedTuple

from experiments.comparison.report import tables, wording
from experiments.comparison.runs.environment import Span
from experiments.comparison.runs.warning import WarningCode
from experiments.comparison.verdicts import sample_size
from experiments.comparison.verdicts.decision import Decision
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
    return AnswerCard(
        title,
        _question(comparison, headlines),
        _failures(comparison),
        settled,
        unsettled,
        recommendation,
        conditions,
        [warning.text for warning in comparison.warnings],
        {name: text for name, text in _facts(comparison, span).items() if text},
        lines,
        max(0, len(shown) - MAX_OUTCOMES),
        {} if comparison.smoke else _figures(headlines),
        shorten(_short(comparison, headlines) or settled or unsettled, MAX_SHORT, placeholder=" …"),
        _advice(chosen, more_blocks)
        if more_blocks and not comparison.smoke and not comparison.failures
        else None,
    )


def _line(finding: Finding, comparison: Comparison) -> OutcomeLine:
    level = wording.level_name(finding.row.b, comparison.factor)
    label, question = wording.describe_outcome(finding), finding.outcome.question
    if question != finding.outcome.label:
        label = f"{question} ({label})"
    label += f": {level}"
    family = "" if finding.primary or not comparison.primary else "exploratory"
    verdicts = (finding.row.verdict, wording.verdicts_of_strata(finding, comparison), family)
    return OutcomeLine(
        label,
        wording.effect(finding),
        wording.effect_interval(finding),
        " · ".join(filter(None, verdicts)),
        tables.style(finding),
    )


def _other_questions(comparison: Comparison, headlines: Sequence[Finding]) -> list[Finding]:
    """Return the first finding on training, inference and quality that no headline answers."""
    answered = {finding.outcome.question for finding in headlines}
    others: dict[tuple[str, str, str, str], Finding] = {}
    for finding in sorted(comparison.findings, key=_rank):
        row, question = finding.row, finding.outcome.question
        is_asked = question in QUESTIONS and question not in answered
        if is_asked and row.n_blocks and wording.is_meaningful(finding, comparison):
            others.setdefault((question, row.a, row.b, row.stratum), finding)
    ordered = sorted(others.values(), key=lambda finding: QUESTIONS.index(finding.outcome.question))
    return ordered if len(grouped(ordered)) == 1 else []


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
    texts: dict[str, list[str]] = {
        wording.level_name(failure.level, comparison.factor): [
            f"{failure.failed} of {failure.runs} runs failed"
        ]
        for failure in comparison.failures
    }
    for finding in findings:
        verdict = finding.row.verdict
        if finding.decision in (Decision.DIFFERENT, Decision.SIZE_OPEN):
            verdict = wording.effect(finding)
            verdict += ", size open" * (finding.decision is Decision.SIZE_OPEN)
        name = wording.level_name(finding.row.b, comparison.factor)
        texts.setdefault(name, []).append(f"{finding.outcome.question} {verdict}")
    return "; ".join(f"{name}: {', '.join(parts)}" for name, parts in texts.items())


def _question(comparison: Comparison, findings: Sequence[Finding]) -> str:
    levels = [wording.level_name(level, comparison.factor) for level in comparison.levels]
    labels = _labels(findings) or ["any outcome"]
    sides = wording.joined(wording.shortened(levels, MAX_CLAUSES + 1))
    return f"Do {sides} differ in {wording.joined(wording.shortened(labels, MAX_CLAUSES), 'or')}?"


def _labels(findings: Iterable[Finding]) -> list[str]:
    return list(dict.fromkeys(finding.outcome.label for finding in findings))


def _answer(comparison: Comparison, findings: Sequence[Finding]) -> tuple[str, str, str]:
    """Return what is settled, what is not and what that costs, and what to do."""
    if comparison.smoke:
        return "", wording.NO_VERDICT_OF_SMOKE, ""
    if not findings:
        return "", wording.sentences(comparison)[0], ""
    counts = {id(finding): wording.verdicts_of_strata(finding, comparison) for finding in findings}
    settled = [finding for finding in findings if finding.judged or counts[id(finding)]]
    counted = [finding for finding in settled if counts[id(finding)]]
    clauses = wording.clauses([finding for finding in settled if finding not in counted])
    clauses += [_over_strata(finding, counts[id(finding)]) for finding in counted]
    text = f"{'; '.join(wording.shortened(clauses, MAX_CLAUSES))}." if clauses else ""
    text = wording.begin(text, settled[0]) if text else ""
    unsettled = [finding for finding in findings if not finding.judged]
    first = f"{text} {_exploratory(comparison, findings)}".strip()
    return first, _unsettled(unsettled), _recommendation(comparison, findings)


def _over_strata(finding: Finding, counts: str) -> str:
    if finding.judged:
        return f"{wording.clause(finding)} ({counts})"
    a, b = wording.names(finding)
    return f"{finding.outcome.label} of {b} against {a}: {counts}"


def _unsettled(findings: Sequence[Finding]) -> str:
    """Return what is not settled, and what it costs to settle it."""
    if not findings:
        return ""
    estimated = [finding for finding in findings if finding.decision in sample_size.OPEN]
    texts = wording.shortened(list(map(wording.sentence, estimated)), MAX_CLAUSES)
    if rest := wording.joined(_labels(finding for finding in findings if finding not in estimated)):
        over = " over all strata" if all(finding.across for finding in findings) else ""
        texts.append(f"Not settled: {rest}{over}.")
    return " ".join([*texts, *map(wording.capitalised, _costs(findings))])


def _costs(findings: Sequence[Finding]) -> list[str]:
    """Return what it costs to settle outcomes, or what may help."""
    texts = []
    busy = [finding for finding in findings if finding.busy]
    few = [finding for finding in findings if finding.missing_blocks]
    planned = [finding for finding in findings if sample_size.payable(finding)]
    open_ones = [finding for finding in findings if sample_size.remedies(finding)]
    if busy:
        count = max(finding.row.n_blocks for finding in busy)
        texts.append(f"the same {_blocks_with_time(count, busy)} on an idle machine may settle it")
    rest = [finding for finding in findings if finding.decision in wording.WITHOUT_EFFECT]
    texts += dict.fromkeys(
        finding.row.reason for finding in rest if not finding.busy and finding not in few
    )
    if few:
        count = max(map(sample_size.more_blocks, few))
        texts.append(f"a verdict needs at least {_blocks_with_time(count, few, 'more ')}")
    if planned:
        count = max(map(sample_size.more_blocks, planned))
        only = "" if len(planned) == len(findings) else f" {wording.joined(_labels(planned))}"
        texts.append(
            f"at most {_blocks_with_time(count, planned, 'more ')} should settle{only or ' it'} "
            f"(predicted probability {sample_size.PREDICTED})"
        )
    if open_ones:
        ways = dict.fromkeys(way for finding in open_ones for way in sample_size.remedies(finding))
        only = "it" if len(open_ones) == len(findings) else wording.joined(_labels(open_ones))
        texts.append(
            f"no number of blocks is predicted to settle {only}; "
            f"{wording.joined(list(ways), 'or')} may help"
        )
    return texts


def _blocks_with_time(count: int, findings: Sequence[Finding], more: str = "") -> str:
    """Return `6 more blocks (3 min of machine time)`."""
    seconds = count * max((finding.block_seconds or 0.0 for finding in findings), default=0.0)
    time = f" ({durations.format_duration(seconds)} of machine time)" if seconds else ""
    return f"{count:,} {more}block{'' if count == 1 else 's'}{time}"


def _recommendation(comparison: Comparison, findings: Sequence[Finding]) -> str:
    """Return what to do: from all settled rows which level to choose, and what is left to measure.

    A question is what the reader asks: training, inference, memory, or a metric of no headline.
    """
    headlines: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.outcome.better != "neither":
            parts = _of_strata(finding, comparison)
            headlines.setdefault(finding.outcome.question, []).extend(parts)
    settled = {question: list(group) for question, group in headlines.items()}
    for finding in _other_settled(comparison, findings):
        settled.setdefault(finding.outcome.question, []).append(finding)
    choices: dict[str, list[str]] = {}
    to_do: dict[str, list[str]] = {}
    for question, group in settled.items():
        if choice := _choice(group, comparison):
            is_primary = not comparison.primary or any(
                finding.primary for finding in group if finding.good is not None
            )
            name = question if is_primary else f"{question} (exploratory)"
            kind = choices if choice.is_choice else to_do
            kind.setdefault(choice.text, []).append(name)
    clear = {
        question: group
        for question, group in headlines.items()
        if not any(finding.good is not None for finding in settled[question])
    }
    equal = {
        question: group
        for question, group in clear.items()
        if all(finding.judged for finding in group)
    }
    for question, group in clear.items():
        if question not in equal:
            to_do.setdefault(_next_step(group, comparison), []).append(question)
    texts = []
    if choices:
        chosen = [f"{choice} for {_questions(names)}" for choice, names in choices.items()]
        texts.append(f"choose {wording.joined(chosen, 'but')}")
    if equal:
        margins = dict.fromkeys(
            wording.amount(finding.row.margin, finding)
            for group in equal.values()
            for finding in group
        )
        is_free = len(equal) == len(settled) and not comparison.failures
        is_free = is_free and all(finding.good is None for finding in comparison.findings)
        either = "choose either" if len(comparison.levels) == 2 else "choose any"
        texts.append(
            f"{either if is_free else _questions(equal)}{'; ' if is_free else ': '}"
            f"no difference of {wording.joined(list(margins), 'or')} or more"
            f"{_curves(comparison)}"
        )
    texts += [f"{_questions(questions)}: {action}" for action, questions in to_do.items()]
    return " ".join(map(wording.capitalised, texts))


def _questions(names: Iterable[str]) -> str:
    return wording.joined(wording.shortened(list(names), MAX_CLAUSES))


def _curves(comparison: Comparison) -> str:
    differs = any(w.code is WarningCode.LEARNING_DIFFERS for w in comparison.warnings)
    return ", but their learning curves differ" if differs else ""


def _next_step(findings: Sequence[Finding], comparison: Comparison) -> str:
    """Return what may settle the outcomes of a question. More blocks repair no level that fails."""
    sides = {level for finding in findings for level in (finding.row.a, finding.row.b)}
    failed = [failure.level for failure in comparison.failures if failure.level in sides]
    if failed:
        names = wording.joined([wording.level_name(level, comparison.factor) for level in failed])
        return f"find out why {names} fail{'s' if len(failed) == 1 else ''}, then measure again"
    if count := max(map(sample_size.more_blocks, findings)):
        return f"run {_blocks_with_time(count, findings, 'more ')}"
    if any(finding.busy for finding in findings):
        return "measure again on an idle machine"
    return "no choice yet"


def _other_settled(comparison: Comparison, findings: Sequence[Finding]) -> list[Finding]:
    """Return the settled differences with a better side on questions that no headline answers.

    A question is answered by its best metric. Details of the catalogue answer none.
    """
    answered = {finding.outcome.question for finding in findings}
    best: dict[tuple[str, ...], Finding] = {}
    for finding in sorted(comparison.findings, key=_rank):
        row, outcome = finding.row, finding.outcome
        is_detail = not outcome.headline and is_known(row.metric)
        if finding.good is None or is_detail or outcome.question in answered:
            continue
        if wording.is_meaningful(finding, comparison):
            best.setdefault((outcome.question, row.a, row.b, row.stratum), finding)
    return list(best.values())


def _rank(finding: Finding) -> int:
    return (finding.outcome.headline or ("", 9))[1]


def _of_strata(finding: Finding, comparison: Comparison) -> list[Finding]:
    """Return the findings of the strata that a summary without a verdict leaves to them."""
    if finding.judged or not wording.verdicts_of_strata(finding, comparison):
        return [finding]
    return [part for part in comparison.findings if wording.key_of(part) == wording.key_of(finding)]


class _Choice(NamedTuple):
    """Level to choose for a question, or why there is none."""

    text: str
    is_choice: bool


def _choice(findings: Sequence[Finding], comparison: Comparison) -> _Choice | None:
    """Return the levels that are better than another and worse than none.

    Findings are of one question, of all pairs of levels and all strata. None without a difference.
    """
    wins = {
        (finding.row.b, finding.row.a) if finding.good else (finding.row.a, finding.row.b)
        for finding in findings
        if finding.good is not None
    }
    if not wins:
        return None
    pairs = {(wording.key_of(finding), finding.good) for finding in findings if finding.row.stratum}
    if len(pairs) > len({key for key, _ in pairs}):
        return _Choice("the choice depends on the stratum", is_choice=False)
    losers = {loser for _, loser in wins}
    best = [
        level for level in comparison.levels if level in {winner for winner, _ in wins} - losers
    ]
    if not best:
        return _Choice("the choice depends on the outcome", is_choice=False)
    failed = {failure.level for failure in comparison.failures}
    name = partial(wording.level_name, factor=comparison.factor)
    sound = [name(level) for level in best if level not in failed]
    if not sound:
        better, has = wording.joined(list(map(name, best))), "has" if len(best) == 1 else "have"
        return _Choice(f"{better} would be better, but {has} failed runs", is_choice=False)
    beaten = [name(level) for level in comparison.levels if level in losers]
    over = f" over {wording.joined(beaten)}" if len(comparison.levels) > 2 else ""
    return _Choice(wording.joined(sound, "or") + over, is_choice=True)


def _failures(comparison: Comparison) -> str:
    """Return the levels with failed runs: `flaky failed in 8 of 16 runs: exit code 1.`."""
    texts = [wording.failed_runs(failure, comparison.factor) for failure in comparison.failures]
    return f"{'; '.join(texts)}." if texts else ""


def _exploratory(comparison: Comparison, findings: Sequence[Finding]) -> str:
    """Return the differences that are shown though they are of no primary outcome."""
    if not comparison.primary:
        return ""
    open_quality = [
        finding
        for finding in sorted(comparison.findings, key=_rank)
        if finding.outcome.question == QUALITY
        and finding.decision is Decision.SIZE_OPEN
        and not finding.primary
        and not comparison.random_weights
    ]
    shown = [*_other_settled(comparison, findings), *open_quality[:1]]
    clauses = wording.shortened(list(map(wording.clause, shown)), MAX_CLAUSES)
    return f"Exploratory: {'; '.join(clauses)}." if clauses else ""


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
    smallest = "" if comparison.smoke else wording.smallest_detectable(comparison)
    return {
        "Model": values("model"),
        "Data": values("dataset"),
        "CPU": values("cpu"),
        "GPU": values("gpu"),
        "Versions": ", ".join(sorted(versions)),
        "Date": span.days if span else "",
        "Duration": f"{durations.format_duration(span.seconds)}, first run to last" if span else "",
        "Runs": runs,
        "Precision": f"effects of {smallest}" if smallest else "",
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

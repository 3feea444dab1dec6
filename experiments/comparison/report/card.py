"""Answer card of a comparison, shown by the page, Markdown, the terminal and MLflow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.comparison.report import strata, tables, wording
from experiments.comparison.report.remarks import Advice
from experiments.comparison.runs.environment import Span
from experiments.comparison.verdicts import outlook
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Comparison, Finding, grouped
from experiments.config import durations

# More than that nobody reads in ten seconds; the tables have all.
MAX_OUTCOMES, MAX_LEVELS = 12, 4
IN_ONE = "In this campaign"
_NOT_IN_A_METRIC = re.compile(r"[^\w\-. :/]")


@dataclass(frozen=True)
class OutcomeLine:
    """Line of a card for one outcome.

    Attributes:
        verdict: with what single strata show, if they differ.
        style: as of a `Cell`.
    """

    label: str
    effect: str
    interval: str
    verdict: str
    style: str

    @property
    def basis(self) -> str:
        return " · ".join(
            filter(None, (self.verdict, self.interval and f"95 % CI {self.interval}"))
        )


@dataclass(frozen=True)
class AnswerCard:
    """Card of a comparison.

    Attributes:
        answer: a sentence to be read aloud, and a second one on what would settle it.
        caution: the number of warnings.
        facts: name → text: model, data, machine, versions, date, duration, precision.
        outcomes: settled ones first.
        figures: `verdict/…` metrics of the campaign's run.
        advice: the command that measures what would settle it.
    """

    title: str
    question: str
    answer: str
    caution: str
    facts: Mapping[str, str]
    outcomes: Sequence[OutcomeLine]
    left_out: int
    figures: Mapping[str, float]
    advice: Advice | None = None

    @property
    def told(self) -> str:
        """Answer with its caution."""
        return " ".join(filter(None, (self.answer, self.caution)))


def build_card(
    comparison: Comparison,
    title: str,
    span: Span | None = None,
    advice: Advice | None = None,
) -> AnswerCard:
    """Return the card of a comparison.

    Args:
        span: when the runs were measured.
        advice: how more blocks are measured.
    """
    headlines = wording.settled_first(_headlines(comparison))
    shown = headlines[:MAX_OUTCOMES]
    several = len(grouped(headlines)) > 1
    count = len(comparison.warnings)
    return AnswerCard(
        title,
        _question(comparison, headlines),
        " ".join(filter(None, (_answer(comparison, headlines), _quality(comparison)))),
        f"Read it with the report’s {f'{count} warnings' if count > 1 else 'warning'}."
        if count
        else "",
        {name: text for name, text in _facts(comparison, span).items() if text},
        [_line(finding, comparison, several=several) for finding in shown],
        len(headlines) - len(shown),
        _figures(headlines),
        advice,
    )


def _headlines(comparison: Comparison) -> list[Finding]:
    chosen = wording.headlines(comparison)
    keys = {(finding.row.metric, finding.row.a, finding.row.b) for finding in chosen}
    return [
        finding
        for finding in comparison.summaries
        if (finding.row.metric, finding.row.a, finding.row.b) in keys
    ] or chosen


def _line(finding: Finding, comparison: Comparison, *, several: bool) -> OutcomeLine:
    label = wording.describe_outcome(finding)
    whom = f": {wording.spoken(finding.row.b, comparison)}" if several else ""
    verdict = " · ".join(filter(None, (finding.row.verdict, strata.counted(finding, comparison))))
    return OutcomeLine(
        label + whom,
        wording.effect(finding),
        wording.effect_interval(finding),
        verdict,
        tables.style(finding),
    )


def _question(comparison: Comparison, findings: Sequence[Finding]) -> str:
    sides = wording.joined(
        [wording.spoken(level, comparison) for level in comparison.levels[: MAX_LEVELS + 1]]
    )
    more = len(comparison.levels) - MAX_LEVELS - 1
    what = (
        wording.joined(list(dict.fromkeys(finding.outcome.label for finding in findings)), "or")
        or "any outcome"
    )
    return f"Do {sides}{f' and {more} more' if more > 0 else ''} differ in {what}?"


def _answer(comparison: Comparison, findings: Sequence[Finding]) -> str:
    reported = [finding for finding in findings if strata.is_told(finding, comparison)]
    nothing = not any(finding.row.estimate is not None for finding in findings) or all(
        finding.decision is Decision.TOO_FEW for finding in findings
    )
    if nothing and not reported:
        return wording.sentences(comparison)[0]
    if len(grouped(findings)) > 1:
        return _of_many(comparison, findings)
    first = reported or findings[:1]
    clauses = [strata.clause(finding, comparison) for finding in first]
    rest = [
        finding.outcome.label
        for finding in findings
        if all(finding is not other for other in first)
    ]
    clauses += [f"not settled: {wording.joined(rest)}"] if rest else []
    sentence = "; ".join(clauses)
    shown = bool(reported) or first[0].decision is Decision.SIZE_OPEN
    sentence = (
        f"{IN_ONE} {sentence}"
        if shown and _of_one_campaign(comparison)
        else f"{sentence[:1].upper()}{sentence[1:]}"
    )
    return " ".join(
        filter(
            None, (f"{sentence}.", _how([finding for finding in findings if not finding.judged]))
        )
    )


def _how(unsettled: Sequence[Finding]) -> str:

    def names(findings: Sequence[Finding]) -> str:
        return (
            "it"
            if len(unsettled) == 1
            else wording.joined(list(dict.fromkeys(finding.outcome.label for finding in findings)))
        )

    sentences = []
    if planned := [
        (blocks, finding) for finding in unsettled if (blocks := outlook.payable(finding))
    ]:
        blocks, longest = max(planned, key=lambda pair: pair[0])
        takes = (
            f", {durations.format_duration(blocks * longest.block_seconds)},"
            if longest.block_seconds
            else ""
        )
        each = " each" if len(planned) > 1 else ""
        sentences.append(
            f"At most {blocks:,} more block{'s' * (blocks > 1)}{takes} settle "
            f"{names([finding for _, finding in planned])} "
            f"with a predicted probability of {outlook.PREDICTED}{each}."
        )
    if rest := [finding for finding in unsettled if outlook.remedies(finding)]:
        ways = wording.joined(
            list(dict.fromkeys(way for finding in rest for way in outlook.remedies(finding))), "or"
        )
        sentences.append(
            f"How many more blocks would settle {names(rest)} cannot be predicted; {ways} may help."
        )
    return " ".join(sentences)


def _of_many(comparison: Comparison, findings: Sequence[Finding]) -> str:
    metric = findings[0].row.metric
    group = [finding for finding in findings if finding.row.metric == metric]
    seen = [
        f"{_whom(finding, comparison)} {_brief(finding, comparison)}"
        for finding in group[:MAX_LEVELS]
    ]
    seen += [f"{len(group) - len(seen)} more in the report"] if len(group) > len(seen) else []
    bases = list(dict.fromkeys(wording.spoken(finding.row.a, comparison) for finding in group))
    against = f" against {bases[0]}" if len(bases) == 1 else ""
    label = group[0].outcome.label
    where = f" {IN_ONE.lower()}" if _of_one_campaign(comparison) else ""
    return f"{label[:1].upper()}{label[1:]}{against}{where}: {'; '.join(seen)}."


def _of_one_campaign(comparison: Comparison) -> bool:
    """Return whether a campaign's effect on a side could be taken for the side's."""
    return len(comparison.rests_on.get("campaigns", ())) == 1


def _quality(comparison: Comparison) -> str:
    """Return the differences in quality that are shown though no primary outcome."""
    if not comparison.primary:
        return ""
    clauses = []
    for (stratum, *_), group in grouped(comparison.findings).items():
        ranked = [
            (finding.outcome.headline[1], at, finding)
            for at, finding in enumerate(group)
            if finding.outcome.headline
            and finding.outcome.headline[0] == "quality"
            and not finding.primary
            if finding.decision in (Decision.DIFFERENT, Decision.SIZE_OPEN)
        ]
        if ranked:
            clauses.append(
                wording.clause(min(ranked)[2], comparison) + (f" [{stratum}]" if stratum else "")
            )
    rest = [f"{len(clauses) - MAX_LEVELS} more in the report"] if len(clauses) > MAX_LEVELS else []
    return (
        f"Quality differs (exploratory): {'; '.join([*clauses[:MAX_LEVELS], *rest])}."
        if clauses
        else ""
    )


def _brief(finding: Finding, comparison: Comparison) -> str:
    text, counted = wording.brief(finding), strata.counted(finding, comparison)
    if not counted:
        return text
    return f"{text.removesuffix(')')}; {counted})" if text.endswith(")") else f"{text} ({counted})"


def _whom(finding: Finding, comparison: Comparison) -> str:
    where = f" [{finding.row.stratum}]" if finding.row.stratum else ""
    return wording.spoken(finding.row.b, comparison) + where


def _facts(comparison: Comparison, span: Span | None) -> dict[str, str]:
    facts = {
        name: wording.joined(
            list(
                dict.fromkeys(
                    facts[name] for facts in comparison.environment.values() if name in facts
                )
            )
        )
        for name in ("model", "dataset", "cpu", "gpu")
    }
    versions = {
        f"{name.removeprefix('version.')} {text}"
        for facts in comparison.environment.values()
        for name, text in facts.items()
        if name.startswith("version.")
    }
    of_rows = {finding.row.n_blocks for finding in comparison.findings}
    counted = wording.block_range(of_rows - {0} or of_rows)
    smallest = wording.smallest_detectable(comparison)
    return {
        "Model": facts["model"],
        "Data": facts["dataset"],
        "CPU": facts["cpu"],
        "GPU": facts["gpu"] or ("none recorded" if facts["cpu"] else ""),
        "Versions": ", ".join(sorted(versions)),
        "Date": span.days if span else "",
        "Duration": f"{durations.format_duration(span.seconds)}, first run to last" if span else "",
        "Runs": ", ".join(filter(None, (f"{comparison.n_runs:,} usable", counted))),
        "Precision": f"smallest detectable effect {smallest}" if smallest else "",
    }


def _figures(findings: Sequence[Finding]) -> dict[str, float]:
    several = len({(finding.row.a, finding.row.b) for finding in findings}) > 1
    values: dict[str, float] = {}
    for finding in findings:
        row = finding.row
        if row.stratum:
            continue
        key = _NOT_IN_A_METRIC.sub("_", f"verdict/{row.metric}{f'/{row.b}' if several else ''}")
        names = (row.kind, "low", "high")
        named = dict(zip(names, wording.logged(row.estimate, row.ci_low, row.ci_high), strict=True))
        values |= {f"{key}/{name}": value for name, value in named.items() if value is not None}
    return values

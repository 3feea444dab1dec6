"""Tables of verdicts and runs, and the cells that tables of analyses share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from experiments.comparison.report import wording
from experiments.comparison.report.sections import Cell, Column, Header, Line, Section
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Comparison, Finding

Link = Callable[[str], str]
ONE_FAMILY = (
    "at most 5 % of reports show a difference where there is none (Holm’s correction over all "
    "rows). "
)
TWO_FAMILIES = (
    "at most 5 % of reports show a difference where there is none among the primary rows, "
    "declared beforehand, and at most "
    "another 5 % among the exploratory ones (Holm’s correction inside each family). "
)
PROMISE = (
    "The two other claims are promised for each row: a true effect that just reaches the margin "
    "is called equivalent in at most "
    "5 % of rows, and beyond the margin in at most 2.5 %. Many rows together have more such "
    "errors. "
    "“Smallest detectable effect”: the true effect that 80 % of such campaigns show, among all "
    "rows of its family. “Smallest "
    "effect with a verdict”: the true effect that 80 % of them show to lie beyond the margin."
)


def nowhere(_run: str) -> str:
    """Return the link of a run without a known page."""
    return ""


def number(name: str, **more: int) -> Column:
    return Column(name, numeric=True, **more)  # type: ignore[arg-type]


def under(name: str, **more: int) -> Column:
    return Column(name, under=True, **more)  # type: ignore[arg-type]


EFFECT: Header = ("effect", under("95 % interval"), Column("verdict", pill=True), under("reason"))


def style(finding: Finding) -> str:
    """Return the style of a verdict."""
    if finding.decision is Decision.NOT_COMPARABLE:
        return "none"
    if not finding.judged:
        return "open"
    if finding.decision is not Decision.DIFFERENT:
        return "alike"
    return {True: "better", False: "worse", None: "differs"}[finding.good]


def several(comparison: Comparison) -> bool:
    """Return whether there are several pairs of levels: every line then names its level."""
    return len({(finding.row.a, finding.row.b) for finding in comparison.findings}) > 1


def versus(comparison: Comparison) -> str:
    baseline, others = _labels(comparison)
    return f"{wording.joined(others)} against {baseline}"


def _labels(comparison: Comparison) -> tuple[str, list[str]]:
    others = [wording.labelled(level, comparison.factor) for level in comparison.levels[1:]]
    return wording.labelled(comparison.baseline, comparison.factor), others


def _side_names(comparison: Comparison) -> tuple[str, str]:
    baselines = {finding.row.a for finding in comparison.findings} or {comparison.baseline}
    a = baselines.pop() if len(baselines) == 1 else "baseline"
    return (a, "value") if several(comparison) else (a, comparison.levels[1])


def verdicts(comparison: Comparison) -> Section:
    """Return a row for each finding, with headings for strata and families."""
    many, (first, second) = several(comparison), _side_names(comparison)
    header: Header = (
        Column("outcome", once=True, terminal=16),
        *([Column(comparison.factor, terminal=8), under("")] if many else []),
        *(number(name, terminal=1) for name in (first, second)),
        *(Column("effect", terminal=1), under("95 % interval", terminal=1)),
        *(Column("verdict", pill=True, terminal=14), under("reason")),
        *(
            number("p (Holm)", terminal=8),
            number("b > a in a block"),
            number("smallest detectable effect (80 % power)"),
            number("smallest effect with a verdict"),
        ),
        number("blocks", terminal=6),
    )
    rows: list[Line] = []
    heading, one_reason = "", len({finding.row.reason for finding in comparison.findings}) == 1
    for finding in comparison.findings:
        row = finding.row
        family = row.family if comparison.primary else ""
        over = ", ".join(filter(None, (row.stratum, family)))
        if over != heading:
            heading = over
            rows.append(heading)
        against = f"against {row.a}" if row.a != comparison.baseline else ""
        rows.append(
            (
                finding.outcome.label,
                *((row.b, against) if many else ()),
                *sides(finding),
                *effect(finding, quiet=one_reason),
                *(
                    wording.p_value(row.p_holm),
                    decimal(row.probability_within_blocks, "{:.0%}").replace("%", " %"),
                ),
                wording.amount(row.minimum_in_family, finding),
                wording.amount(row.minimum_for_verdict, finding),
                str(row.n_blocks),
            )
        )
    whom = " (or the baseline named in the line)" if many else ""
    whose = "those of the baseline and of the level" if many else "those of each side"
    baseline, others = _labels(comparison)
    caption = (
        f"Every line compares {wording.joined(others)} with the baseline {baseline}{whom}. "
        f"Values are {whose}: geometric means over blocks for ratios, means for differences. "
        "“b > a in a block”: the share of blocks in which the level (b) has the greater value "
        "than the baseline (a), ties half. "
        f"Error rates: {TWO_FAMILIES if comparison.primary else ONE_FAMILY}{PROMISE}"
    )
    return Section("Verdicts", caption, header, rows)


def effect(finding: Finding, *, quiet: bool = False) -> tuple[str | Cell, ...]:
    """Return the cells of `EFFECT`; `quiet` shows the reason only on demand."""
    row = finding.row
    verdict = (Cell(row.verdict, style(finding)), Cell(row.reason, aside=quiet or finding.judged))
    return wording.effect(finding), wording.effect_interval(finding), *verdict


def sides(finding: Finding) -> tuple[str, str]:
    return wording.quantity(finding.a_value, finding.outcome), wording.quantity(
        finding.b_value, finding.outcome
    )


def decimal(value: float | None, form: str = "{:.2f}") -> str:
    return wording.NONE if value is None else form.format(value)


def environment(comparison: Comparison) -> Section:
    by_level: Mapping[str, Mapping[str, str]] = comparison.environment
    facts = dict.fromkeys(name for values in by_level.values() for name in values)
    rows = [
        (fact, *(by_level[level].get(fact, wording.NONE) for level in comparison.levels))
        for fact in facts
    ]
    return Section("Environment, side by side", "", ("", *comparison.levels), rows)


def excluded(comparison: Comparison, link: Link = nowhere) -> Section:
    header: Header = ("run", under(""), comparison.factor, "block", "metric", "reason")
    rows: list[Line] = [
        (
            Cell(exclusion.name, link=link(exclusion.run_id)),
            exclusion.run_id,
            exclusion.level or wording.NONE,
            exclusion.block or wording.NONE,
            exclusion.metric or "all",
            exclusion.reason,
        )
        for exclusion in comparison.excluded
    ]
    return Section("Left out, and why", "" if rows else _none_left_out(comparison), header, rows)


def _none_left_out(comparison: Comparison) -> str:
    if any(finding.row.n_blocks for finding in comparison.findings):
        return "No run was left out."
    return (
        "No run was left out by itself, but no pair of runs was compared: the reasons stand "
        "beside the verdicts."
    )

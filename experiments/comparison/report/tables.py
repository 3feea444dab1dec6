"""Tables of verdicts and runs, and the cells that tables of analyses share."""

from __future__ import annotations

from collections.abc import Callable

from experiments.comparison.report import wording
from experiments.comparison.report.sections import Cell, Column, Header, Line, Section
from experiments.comparison.verdicts import reasons
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Comparison, Finding

Link = Callable[[str], str]
EFFECT: Header = ("effect", "95 % CI", "verdict")
FAMILIES = {
    False: "at most 5 % of reports show a difference where there is none (Holm, over all rows).",
    True: "at most 5 % of reports show a difference where there is none among the primary rows, "
    "declared beforehand, and another 5 % among the exploratory ones (Holm, in each family).",
}
CAPTION = (
    "Every line compares a level with the baseline {baseline}. Values are geometric means over "
    "blocks for ratios, means for differences. Error rates: {families} A true effect that just "
    "reaches the margin is called equivalent in at most 5 % of rows, and beyond the margin in at "
    "most 2.5 %; many rows together have more such errors. Smallest detectable effect: the true "
    "effect that 80 % of such campaigns show, among all rows of its family."
)


def nowhere(_run: str) -> str:
    """Return the link of a run without a known page."""
    return ""


def number(name: str, *, in_terminal: bool = True) -> Column:
    return Column(name, numeric=True, in_terminal=in_terminal)


def style(finding: Finding) -> str:
    """Return the style of a verdict."""
    if finding.decision is Decision.NOT_COMPARABLE:
        return "none"
    if not finding.judged:
        return "open"
    if finding.decision is not Decision.DIFFERENT:
        return "alike"
    return {True: "better", False: "worse", None: "differs"}[finding.good]


def versus(comparison: Comparison) -> str:
    baseline, *others = (
        wording.level_name(level, comparison.factor)
        for level in (comparison.baseline, *comparison.levels[1:])
    )
    return f"{wording.joined(others)} against {baseline}"


def verdicts(comparison: Comparison) -> Section:
    """Return a row for each finding, with headings for strata and families."""
    if comparison.smoke:
        return _measured(comparison)
    findings = comparison.findings
    bases = {finding.row.a for finding in findings} or {comparison.baseline}
    several = len({(finding.row.a, finding.row.b) for finding in findings}) > 1
    sides = (
        bases.pop() if len(bases) == 1 else "baseline",
        "value" if several else comparison.levels[1],
    )
    header: Header = (
        *("outcome", *([comparison.factor] if several else []), *map(number, sides), *EFFECT),
        *(number("p (Holm)"), number("smallest detectable effect", in_terminal=False)),
        number("blocks"),
    )
    rows: list[Line] = []
    heading, same_reason = "", len({finding.row.reason for finding in findings}) == 1
    for finding in findings:
        row = finding.row
        group = ", ".join(filter(None, (row.stratum, row.family if comparison.primary else "")))
        if group != heading:
            heading = group
            rows.append(heading)
        level = row.b if row.a == comparison.baseline else f"{row.b} against {row.a}"
        rows.append(
            (
                *(finding.outcome.label, *([level] if several else []), *values(finding)),
                *effect(finding, with_reason=not same_reason),
                wording.p_value(row.p_holm),
                wording.amount(row.minimum_in_family, finding),
                str(row.n_blocks),
            )
        )
    families = FAMILIES[bool(comparison.primary)]
    caption = CAPTION.format(
        baseline=wording.level_name(comparison.baseline, comparison.factor), families=families
    )
    return Section("Verdicts", caption, header, rows)


def _measured(comparison: Comparison) -> Section:
    """Return the values of both sides, without verdicts."""
    header: Header = ("outcome", comparison.factor, *map(number, ("baseline", "value")))
    rows = [
        (wording.describe_outcome(finding), finding.row.b, *values(finding))
        for finding in comparison.findings
        if finding.a_value is not None
    ]
    return Section("Measured values", wording.NO_VERDICT_OF_SMOKE, header, rows)


def effect(finding: Finding, *, with_reason: bool = True) -> tuple[str | Cell, ...]:
    """Return the cells of `EFFECT`; a verdict that is open has its reason."""
    row = finding.row
    note = reasons.widening(row) if finding.judged else row.reason
    verdict = Cell(row.verdict, style(finding), note if with_reason else "")
    return wording.effect(finding), wording.effect_interval(finding), verdict


def values(finding: Finding) -> tuple[str, str]:
    """Return the values of both sides with their units."""
    outcome = finding.outcome
    return wording.quantity(finding.a_value, outcome), wording.quantity(finding.b_value, outcome)


def decimal(value: float | None, form: str = "{:.2f}") -> str:
    return wording.NONE if value is None else form.format(value)


def environment(comparison: Comparison) -> Section:
    by_level = comparison.environment
    facts = dict.fromkeys(name for values in by_level.values() for name in values)
    rows = [
        (fact, *(by_level[level].get(fact, wording.NONE) for level in comparison.levels))
        for fact in facts
    ]
    return Section("Environment, side by side", "", ("", *comparison.levels), rows)


def excluded(comparison: Comparison, link: Link = nowhere) -> Section:
    header = ("run", comparison.factor, "block", "metric", "reason")
    rows: list[Line] = [
        (
            Cell(exclusion.name, note=exclusion.run_id, link=link(exclusion.run_id)),
            exclusion.level or wording.NONE,
            exclusion.block or wording.NONE,
            exclusion.metric or "all",
            exclusion.reason,
        )
        for exclusion in comparison.excluded
    ]
    caption = "" if rows else "No run was left out. The verdicts say why a pair was not compared."
    return Section("Left out, and why", caption, header, rows)

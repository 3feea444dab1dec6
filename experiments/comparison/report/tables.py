"""Tables of verdicts and runs, and the cells that tables of analyses share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from experiments.comparison.report import wording
from experiments.comparison.report.sections import (
    Cell,
    Column,
    Header,
    Line,
    Note,
    Section,
)
from experiments.comparison.verdicts import reasons
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Comparison, Finding
from experiments.metrics import outcome

Link = Callable[[str], str]
EFFECT: Header = (Column("effect", decimal=True), Column("95 % CI", decimal=True), "verdict")
CAPTION = "Every line compares a level with the baseline {baseline}."
VALUES = (
    "The effect is the typical one: a trimmed mean over blocks, without the lowest and the highest "
    "eighth (of 8 blocks or more), so that single slow runs do not decide. The values of both "
    "sides are trimmed means, too; geometric where the effect is a ratio."
)
SLOW_RUNS = (
    "A slow run is far from the median run of its side: its modified z-score, by the median "
    "absolute deviation, is above 3.5. p: Fisher’s exact test that one side has more."
)
FAMILIES = {
    False: "At most 5 % of reports show a difference where there is none (Holm, over all rows).",
    True: "At most 5 % of reports show a difference where there is none among the primary rows, "
    "declared beforehand, and another 5 % among the exploratory ones (Holm, in each family).",
}
EQUIVALENCE = (
    "Equivalence is tested with the 90 % interval (TOST): the 95 % interval of an equivalent row "
    "may reach beyond the margin. If the true effect is exactly the margin, a row is wrongly "
    "equivalent in at most 5 %, wrongly larger in at most 2.5 %. Many rows together have more "
    "such errors."
)
DETECTABLE = (
    "The smallest true effect that such a campaign tells from none with a probability of 80 % "
    "(power), after Holm’s correction over its family. A difference beyond the margin needs more."
)
# Rows from which the table has the headlines only, with all rows in a section that opens.
MANY_ROWS = 40
MAX_LABELS = 6


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
    """Return a row for each finding, with headings for strata and families.

    Of a smoke test only the values of both sides.
    """
    smoke = comparison.smoke
    findings = [
        finding
        for finding in comparison.findings
        if finding.row.metric not in comparison.unmeasurable
        and (not smoke or (finding.a_value, finding.b_value) != (None, None))
    ]
    bases = {finding.row.a for finding in findings} or {comparison.baseline}
    several = len({(finding.row.a, finding.row.b) for finding in findings}) > 1
    sides = (
        bases.pop() if len(bases) == 1 else "baseline",
        "value" if several else comparison.levels[1],
    )
    header: Header = (
        *("outcome", *([comparison.factor] * several), *map(number, sides), *EFFECT),
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
        judged = (
            *effect(finding, with_reason=not same_reason),
            wording.p_value(row.p_holm),
            wording.amount(row.minimum_in_family, finding),
            str(row.n_blocks),
        )
        label = (finding.outcome.label, *([level] * several))
        rows.append((*label, *values(finding), *(("",) * len(judged) if smoke else judged)))
    if smoke:
        return Section("Measured values", "", header, rows)
    caption = CAPTION.format(baseline=wording.level_name(comparison.baseline, comparison.factor))
    notes = reason_notes(findings)
    if same_reason and notes:
        caption, notes = f"{caption} {notes[0].text}", []
    notes.append(Note("values", VALUES))
    if slow := [_slow_runs(finding) for finding in findings if finding.row.slow_runs_p is not None]:
        listed = wording.joined(wording.shortened(slow, MAX_LABELS))
        notes.append(Note("slow runs", SLOW_RUNS, listed))
    if any(finding.row.p is not None for finding in findings):
        error_rates = f"{FAMILIES[bool(comparison.primary)]} {EQUIVALENCE}"
        notes += [Note("error rates", error_rates), Note("smallest detectable effect", DETECTABLE)]
    return Section("Verdicts", caption, header, rows, notes=notes)


def _slow_runs(finding: Finding) -> str:
    row, label = finding.row, wording.describe_outcome(finding)
    return (
        f"{label}: {row.slow_runs_b} of {row.n_blocks} runs of {row.b}, {row.slow_runs_a} of "
        f"{row.a} (p = {wording.p_value(row.slow_runs_p)})"
    )


def headline_verdicts(comparison: Comparison) -> Section:
    """Return the verdict table; of many rows the headlines."""
    if len(comparison.findings) > MANY_ROWS:
        comparison = replace(comparison, findings=tuple(wording.headlines(comparison)))
    return verdicts(comparison)


def all_verdicts(comparison: Comparison) -> list[Section]:
    """Return the verdict table of every row, if there are too many for the first one."""
    if len(comparison.findings) <= MANY_ROWS:
        return []
    section = verdicts(comparison)
    count = len([line for line in section.rows if not isinstance(line, str)])
    return [replace(section, title="All verdicts", folded=True, hint=f"{count:,} rows")]


def effect(finding: Finding, *, with_reason: bool = True) -> tuple[str | Cell, ...]:
    """Return the cells of `EFFECT`; a verdict that is open has its reason."""
    code, note = reason_code(finding) if with_reason else "", ""
    if code:
        widened = f"interval widened {finding.row.widening or 1.0:.1f} times"
        note = widened if finding.judged else reasons.phrase(finding)
    verdict = Cell(finding.row.verdict, style(finding), note, code=code)
    return wording.effect(finding), wording.effect_interval(finding), verdict


def reason_code(finding: Finding) -> str:
    """Return the code of what a row's reader should know; empty of a plain verdict."""
    row = finding.row
    if finding.judged:
        return "autocorrelation" if reasons.widening(row) else ""
    return str(finding.mismatch or finding.withheld or row.no_estimate or finding.decision)


def reason_notes(findings: Iterable[Finding]) -> list[Note]:
    """Return every distinct reason in full, with the outcomes that it concerns."""
    labels: dict[tuple[str, str], dict[str, None]] = {}
    for finding in findings:
        if code := reason_code(finding):
            row = finding.row
            text = reasons.as_sentence(reasons.widening(row) if finding.judged else row.reason)
            labels.setdefault((code, text), {})[wording.describe_outcome(finding)] = None
    return [
        Note(code, text, wording.joined(wording.shortened(list(rows), MAX_LABELS)))
        for (code, text), rows in labels.items()
    ]


def values(finding: Finding) -> tuple[str, str]:
    """Return the values of both sides with their units."""
    outcome = finding.outcome
    return wording.quantity(finding.a_value, outcome), wording.quantity(finding.b_value, outcome)


def decimal(value: float | None, form: str = "{:.2f}") -> str:
    return wording.NONE if value is None else form.format(value)


def environment(comparison: Comparison) -> Section:
    """Return the facts of each level's runs, those that differ first."""
    by_level = comparison.environment
    facts = dict.fromkeys(name for values in by_level.values() for name in values)
    lines = [
        (fact, *(by_level[level].get(fact, wording.NONE) for level in comparison.levels))
        for fact in facts
    ]
    different = [line for line in lines if len(set(line[1:])) > 1]
    same = [line for line in lines if len(set(line[1:])) == 1]
    rows: list[Line] = [*different, *same]
    if different and same:
        rows = ["Different", *different, "The same", *same]
    hint = f"{len(different)} of {len(lines)} facts differ"
    header = ("", *comparison.levels)
    return Section("Environment, side by side", "", header, rows, folded=True, hint=hint)


def not_measured(comparison: Comparison) -> list[Section]:
    """Return what this design, these runs or this machine cannot measure, once for each reason."""
    labels: dict[str, dict[str, None]] = {}
    for finding in comparison.findings:
        if finding.row.metric in comparison.unmeasurable:
            text = reasons.as_sentence(finding.row.reason)
            labels.setdefault(text, {})[finding.outcome.label] = None
    for metric in comparison.unmeasured:
        labels.setdefault("No run has a value.", {})[outcome(metric).label] = None
    for sensor, why in comparison.missing_sensors.items():
        labels.setdefault(reasons.as_sentence(why), {})[sensor] = None
    rows: list[Line] = [(", ".join(names), reason) for reason, names in labels.items()]
    names = [name for of_reason in labels.values() for name in of_reason]
    hint = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    header = ("what", "reason")
    return [Section("Not measured", "", header, rows, folded=True, hint=hint)] if rows else []


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
    hint = f"{len(rows)} runs or values" if rows else "none"
    caption = (
        ""
        if rows
        else "No run was left out. A row without a comparison has its reason under “Verdicts”."
    )
    return Section("Left out, and why", caption, header, rows, folded=True, hint=hint)

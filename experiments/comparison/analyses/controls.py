"""Controls of a campaign: cells of the baseline that test the measurement itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from experiments.comparison.analyses.evidence import Evidence
from experiments.comparison.report import tables, wording
from experiments.comparison.report.sections import Header, Line, Section
from experiments.comparison.report.tables import EFFECT, number
from experiments.comparison.runs import pairing
from experiments.comparison.runs.pairing import CONTROL
from experiments.comparison.verdicts.findings import Control, Finding
from experiments.comparison.verdicts.verdict import ComparisonSpec, judge

TREATMENT, DELAY = "tags.treatment", "params.inject_delay"
SAME_WORK = "A/A"


def judged(table: pd.DataFrame, spec: ComparisonSpec) -> tuple[Control, ...]:
    """Judge every control against the cells that it repeats, in the campaigns that have it."""
    if not {CONTROL, TREATMENT} <= set(table.columns):
        return ()
    names, controls, compared = pairing.texts_of(table, CONTROL), list[Control](), spec.factor
    allowed = (*spec.allowed_to_differ, "inject_delay")
    spec = replace(spec, factor=TREATMENT, primary=(), allowed_to_differ=allowed, all_pairs=False)
    # Of varied settings, a control has only the first value.
    keys = [key for key in ("framework", "campaign", "settings_hash") if key in table.columns]
    if (factor := pairing.column_of(table, compared)) != TREATMENT:
        keys.append(factor)
    for (name, _), runs in table[names != ""].groupby([CONTROL, TREATMENT], sort=True):
        same = names == ""
        for key in keys:
            same &= table[key].isin(runs[key])
        expected = "no difference: both did the same work"
        if name != SAME_WORK:
            expected = f"every step, request or command to be slower ({name})"
        for baseline, repeated in table[same].groupby(TREATMENT, sort=True):
            both = pd.concat([repeated, runs])
            comparison = judge(both, replace(spec, baseline=str(baseline)))
            controls.append(Control(str(name), comparison, expected, _injected(runs)))
    return tuple(controls)


def _injected(runs: pd.DataFrame) -> float | None:
    """Return the share by which all runs of a control were slowed; None if by none or unknown."""
    shares = pd.to_numeric(runs.reindex(columns=[DELAY])[DELAY], errors="coerce").unique()
    return float(shares[0]) if len(shares) == 1 and shares[0] > 0 else None


def sentences(evidence: Evidence) -> list[str]:
    """Return the expected and the actual result of each control."""
    return [
        f"Control {control.name} of {control.comparison.baseline}: expected {control.expected}. "
        f"{wording.capitalised(result(control))}."
        for control in evidence.comparison.controls
    ]


def result(control: Control) -> str:
    """Return which outcomes a control called different, and whether it should."""
    if not control.tested:
        return "nothing could be tested"
    if control.name.startswith(SAME_WORK):
        flagged = [finding for finding in control.tested if finding.different]
        text = f"{len(flagged)} of {len(control.tested)} tested outcomes called different"
        return f"{text}: {_named(flagged)}" if flagged else text
    if not control.delayed:
        return "no time that would show the delay was tested"
    failed = missed(control)
    count = len(control.delayed) - len(failed)
    text = f"the delay and its size are seen in {count} of {len(control.delayed)} delayed times"
    return f"{text}; not {_named(failed)}" if failed else text


def missed(control: Control) -> list[Finding]:
    """Return the times in which an injected delay is not shown, or not in its size."""
    return [
        finding
        for finding in control.delayed
        if not (finding.different and finding.way == "slower" and control.as_injected(finding))
    ]


def _named(findings: Sequence[Finding]) -> str:
    return wording.joined(
        [f"{wording.describe_outcome(finding)} ({wording.effect(finding)})" for finding in findings]
    )


def sections(evidence: Evidence) -> list[Section]:
    """Return a table for each control."""
    tables_of_controls = []
    for control in evidence.comparison.controls:
        comparison = control.comparison
        sides = (number(comparison.baseline), number(comparison.levels[1]))
        header: Header = ("outcome", *sides, *EFFECT, number("p (Holm)"), number("blocks"))
        rows: list[Line] = [
            (
                *(wording.describe_outcome(finding), *tables.values(finding)),
                *tables.effect(finding),
                *(wording.p_value(finding.row.p_holm), str(finding.row.n_blocks)),
            )
            for finding in comparison.findings
        ]
        title = f"Control {control.name}: {tables.versus(comparison)}"
        caption = f"Expected {control.expected}. {wording.capitalised(result(control))}."
        notes = tables.reason_notes(comparison.findings)
        section = Section(title, caption, header, rows, True, result(control), notes=notes)
        tables_of_controls.append(section)
    return tables_of_controls

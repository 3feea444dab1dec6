"""Controls of a campaign: cells of the baseline that test the measurement itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from experiments.comparison.analyses import Analysis, Evidence
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
    names, controls = pairing.control_names(table), list[Control]()
    allowed = (*spec.allowed_to_differ, "inject_delay")
    spec = replace(spec, factor=TREATMENT, primary=(), allowed_to_differ=allowed, all_pairs=False)
    # Of varied settings, a control has only the first value.
    keys = [key for key in ("framework", "campaign", "settings_hash") if key in table.columns]
    for (name, _), runs in table[names != ""].groupby([CONTROL, TREATMENT], sort=True):
        same = names == ""
        for key in keys:
            same &= table[key].isin(runs[key])
        expected = "no difference: it is the same work twice"
        if name != SAME_WORK:
            expected = f"every step and every request slower ({name})"
        for baseline, repeated in table[same].groupby(TREATMENT, sort=True):
            both = pd.concat([repeated, runs])
            comparison = judge(both, replace(spec, baseline=str(baseline)))
            controls.append(Control(str(name), comparison, expected, _injected(runs)))
    return tuple(controls)


def _injected(runs: pd.DataFrame) -> float | None:
    """Return the share by which all runs of a control were slowed; None if by none or unknown."""
    if DELAY not in runs.columns:
        return None
    shares = pd.to_numeric(runs[DELAY], errors="coerce").unique()
    return float(shares[0]) if len(shares) == 1 and shares[0] > 0 else None


def sentences(evidence: Evidence) -> list[str]:
    """Return the expected and the actual result of each control."""
    return [
        f"Control {control.name} of {control.comparison.baseline}: expected {control.expected}; "
        f"{result(control)}."
        for control in evidence.comparison.controls
    ]


def result(control: Control) -> str:
    """Return which outcomes a control called different, and whether it should."""
    if not control.tested:
        return "nothing could be tested"
    return _same_work(control) if control.name.startswith(SAME_WORK) else _slowed(control)


def _same_work(control: Control) -> str:
    wrong, count = control.flagged, len(control.tested)
    were = "was" if len(wrong) == 1 else "were"
    falsely = f", falsely: {_named(wrong)}" if wrong else ""
    still_open = sum(not finding.judged for finding in control.tested)
    inconclusive = f"; {still_open} of the {count} are inconclusive" if still_open else ""
    called = f"{len(wrong)} of {count} tested outcomes {were} called different"
    return f"{called}{falsely}{inconclusive}"


def _slowed(control: Control) -> str:
    if not control.delayed:
        return "no median time of steps or requests was tested, in which it must show"
    shown = [finding for finding in control.delayed if control.shows_delay(finding)]
    other = [finding for finding in shown if not control.as_injected(finding)]
    missed = [finding for finding in control.delayed if finding not in shown]
    as_injected = [finding for finding in shown if finding not in other]
    also_different = [finding for finding in control.flagged if finding not in control.delayed]
    injected = f"{1 + (control.injected or 0.0):.3g}×"
    parts = (
        ("NOT FOUND in", missed, True),
        ("found in", as_injected, True),
        (f"found, but not as the {injected} that was injected, in", other, True),
        ("also called different:", also_different, False),
    )
    texts = [f"{text} {_named(group, effects=effects)}" for text, group, effects in parts if group]
    return "; ".join(texts)


def _named(findings: Sequence[Finding], *, effects: bool = False) -> str:
    texts = []
    for finding in findings:
        interval = wording.effect_interval(finding) or "always"
        effect = f" ({wording.effect(finding)}, {interval})" if effects else ""
        texts.append(wording.describe_outcome(finding) + effect)
    return wording.joined(texts)


def sections(evidence: Evidence) -> list[Section]:
    """Return a table for each control."""
    controls = evidence.comparison.controls
    title = Section("Controls: is the measurement to be trusted?", "", (), ())
    return [title, *map(_section, controls)] if controls else []


def _section(control: Control) -> Section:
    inside = control.comparison
    sides = (number(inside.baseline), number(inside.levels[1]))
    header: Header = ("outcome", *sides, *EFFECT, number("p (Holm)"), number("blocks"))
    rows: list[Line] = [
        (
            *(wording.describe_outcome(finding), *tables.sides(finding), *tables.effect(finding)),
            *(wording.p_value(finding.row.p_holm), str(finding.row.n_blocks)),
        )
        for finding in inside.findings
    ]
    caption = f"Expected {control.expected}; {result(control)}."
    return Section(f"{control.name}: {tables.versus(inside)}", caption, header, rows, level=3)


ANALYSIS = Analysis(sentences={20: sentences}, tables={130: sections})

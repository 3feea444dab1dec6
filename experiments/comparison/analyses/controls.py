"""The controls of a campaign: cells of the baseline that test the measurement itself, kept apart from what is compared."""

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


def judged(table: pd.DataFrame, spec: ComparisonSpec) -> tuple[Control, ...]:
    """Every control against the cells that it repeats, in the campaigns that have it; each baseline has controls of its own."""
    if not {CONTROL, TREATMENT} <= set(table.columns):
        return ()
    names, allowed, found = (
        pairing.control_names(table),
        (*spec.allowed_to_differ, "inject_delay"),
        [],
    )
    asked = replace(spec, factor=TREATMENT, primary=(), allowed_to_differ=allowed, all_pairs=False)
    for (name, _), here in table[names != ""].groupby([CONTROL, TREATMENT], sort=True):
        same = (
            (names == "")
            & table["framework"].isin(here["framework"])
            & table["campaign"].isin(here["campaign"])
        )
        if (
            "settings_hash" in table.columns
        ):  # of what is varied, a control has the first value alone
            same &= table["settings_hash"].isin(here["settings_hash"])
        for baseline, repeated in table[same].groupby(TREATMENT, sort=True):
            comparison = judge(pd.concat([repeated, here]), replace(asked, baseline=str(baseline)))
            found.append(Control(str(name), comparison, _expected(str(name)), _injected(here)))
    return tuple(found)


def _injected(runs: pd.DataFrame) -> float | None:
    """The share by which all of a control's runs were slowed; None if by none, or where they do not say."""
    if DELAY not in runs.columns:
        return None
    shares = pd.to_numeric(runs[DELAY], errors="coerce").unique()
    return float(shares[0]) if len(shares) == 1 and shares[0] > 0 else None


def _expected(name: str) -> str:
    return (
        "no difference: it is the same work twice"
        if name == "A/A"
        else f"every step and every request slower ({name})"
    )


def sentences(evidence: Evidence) -> list[str]:
    """Return what had to come out of each control, and what did."""
    return [
        f"Control {one.name} of {one.comparison.baseline}: expected {one.expected}; {result(one)}."
        for one in evidence.comparison.controls
    ]


def result(control: Control) -> str:
    """Which outcomes a control called different, and whether those are the ones that it should."""
    if not control.tested:
        return "nothing could be tested"
    return _same_work(control) if control.name.startswith("A/A") else _slowed(control)


def _same_work(control: Control) -> str:
    """Nothing must be called different; what is inconclusive shows neither."""
    wrong, count = control.flagged, len(control.tested)
    told = f"{len(wrong)} of {count} tested outcomes {'was' if len(wrong) == 1 else 'were'} called different"
    told += f", falsely: {_named(wrong)}" if wrong else ""
    still_open = sum(not finding.judged for finding in control.tested)
    return told + (f"; {still_open} of the {count} are inconclusive" if still_open else "")


def _slowed(control: Control) -> str:
    """Every median time must be slower, and by what was injected."""
    if not control.delayed:
        return "no median time of steps or requests was tested, in which it must show"
    found = [one for one in control.delayed if control.shows_delay(one)]
    missed = [one for one in control.delayed if one not in found]
    other = [one for one in found if not control.as_injected(one)]
    beside = [one for one in control.flagged if one not in control.delayed]
    expected = f"{1 + (control.injected or 0.0):.3g}×"
    parts = (
        ("NOT FOUND in", missed, True),
        ("found in", [one for one in found if one not in other], True),
        (f"found, but not as the {expected} that was injected, in", other, True),
        ("also called different:", beside, False),
    )
    return "; ".join(
        f"{what} {_named(those, effects=effects)}" for what, those, effects in parts if those
    )


def _named(findings: Sequence[Finding], *, effects: bool = False) -> str:
    """Outcomes by their names in a report, and what was seen of them."""
    told = []
    for one in findings:
        seen = (
            f" ({wording.effect(one)}, {wording.effect_interval(one) or 'always'})"
            if effects
            else ""
        )
        told.append(wording.named(one) + seen)
    return wording.joined(told)


def sections(evidence: Evidence) -> list[Section]:
    controls = evidence.comparison.controls
    if not controls:
        return []
    return [
        Section("Controls: is the measurement to be trusted?", "", (), ()),
        *map(_section, controls),
    ]


def _section(control: Control) -> Section:
    inside = control.comparison
    header: Header = (
        *("outcome", number(inside.baseline), number(inside.levels[1]), *EFFECT),
        *(number("p (Holm)"), number("blocks")),
    )
    rows: list[Line] = [
        (
            *(wording.named(one), *tables.sides(one), *tables.effect(one)),
            *(wording.p_value(one.row.p_holm), str(one.row.n_blocks)),
        )
        for one in inside.findings
    ]
    caption = f"Expected {control.expected}; {result(control)}."
    return Section(f"{control.name}: {tables.versus(inside)}", caption, header, rows, level=3)


ANALYSIS = Analysis(sentences={20: sentences}, tables={130: sections})

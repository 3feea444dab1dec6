"""Published figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Section
from experiments.comparison.runs.environment import medians
from experiments.metrics import outcome


def table(evidence: Evidence) -> list[Section]:
    """Return one line a published figure."""
    caption = "Other hardware, other versions, often other data: compare directions and ratios, not absolute figures."
    caption = f"Source: {evidence.source}. {caption}" if evidence.source else caption
    rows = [_line(evidence, one) for one in evidence.published]
    return (
        [Section("Published figures beside ours", caption, ("what", "published", "here"), rows)]
        if rows
        else []
    )


def _line(evidence: Evidence, one: Mapping[str, str]) -> tuple[str, str, str]:
    """A published figure and ours beside it, level by level; ours of another network are not put beside it."""
    comparison, runs = evidence.comparison, evidence.runs
    metric = one.get("metric", "")
    ours: dict[str, float | None] = {}
    for finding in comparison.findings:
        if finding.row.metric == metric:
            ours |= {finding.row.a: finding.a_value, finding.row.b: finding.b_value}
    if not ours and metric and runs is not None:
        ours = dict(medians(runs, factor=comparison.factor, metric=metric))
    wanted = one.get("model", "")
    same = {
        level
        for level in ours
        if wanted in ("", comparison.environment.get(level, {}).get("model", wanted))
    }
    told = [
        f"{level}: {wording.quantity(value, outcome(metric))}"
        for level, value in ours.items()
        if value is not None and level in same
    ]
    otherwise = (
        ("not measured here" if same or not ours else "another model here")
        if metric
        else "see the verdicts above"
    )
    return one["what"], one["published"], "; ".join(told) or otherwise


ANALYSIS = Analysis(tables={150: table})

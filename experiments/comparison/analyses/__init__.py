"""Analyses of a comparison: a module each, with its numbers, tables and figure."""

from __future__ import annotations

from experiments.comparison.analyses import (
    batch_sizes,
    breakdown,
    controls,
    intervals,
    learning,
    memory_limits,
    published,
    roofline,
    runs,
)
from experiments.comparison.analyses.evidence import Evidence, Part
from experiments.comparison.report import tables
from experiments.comparison.report.canvas import Drawing
from experiments.comparison.runs.warning import ComparisonWarning
from experiments.comparison.verdicts import busy

# Parts of a report in their order: the summary, figures, analyses, then what the reader opens.
BODY: tuple[Part, ...] = (
    lambda evidence: [tables.headline_verdicts(evidence.comparison)],
    intervals.strata,
    intervals.forest,
    runs.latencies,
    runs.by_level,
    learning.figure,
    learning.table,
    lambda evidence: evidence.study_sections,
    learning.times_to_accuracy,
    breakdown.table,
    roofline.figure,
    roofline.table,
    memory_limits.table,
    batch_sizes.table,
    lambda evidence: tables.all_verdicts(evidence.comparison),
    lambda evidence: tables.not_measured(evidence.comparison),
    controls.sections,
    intervals.looks,
    published.procedure,
    published.table,
    lambda evidence: [tables.environment(evidence.comparison)],
    lambda evidence: [tables.excluded(evidence.comparison, evidence.link)],
    runs.table,
)
# Parts that show measured values only.
SMOKE: tuple[Part, ...] = (
    lambda evidence: [tables.verdicts(evidence.comparison)],
    lambda evidence: [tables.environment(evidence.comparison)],
    lambda evidence: [tables.excluded(evidence.comparison, evidence.link)],
)


def drawings(evidence: Evidence) -> list[Drawing]:
    """Return every figure that there is something to show in."""
    return [part for make in BODY for part in make(evidence) if isinstance(part, Drawing)]


def warnings(evidence: Evidence) -> list[ComparisonWarning]:
    """Return the warnings that an analysis adds to those of the verdicts."""
    comparison = evidence.comparison
    return [
        *busy.warning(comparison.findings),
        *runs.eager_warnings(comparison.environment),
        *runs.answer_warnings(comparison.environment),
        *learning.warnings(evidence),
    ]


__all__ = ["BODY", "SMOKE", "Evidence", "drawings", "warnings"]

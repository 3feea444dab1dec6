"""Versions of a registered model: a campaign's trained networks, with the verdict as tags."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pandas as pd

from experiments.comparison.judgement import ComparisonSpec, judged
from experiments.comparison.verdicts.findings import Comparison, Finding
from experiments.metrics import outcome
from experiments.run import journal_runs
from experiments.run.campaign import Campaign
from tracking import journal
from tracking.records import ModelRegistered, ModelSaved, RunOutcome

BASELINE, FASTEST = "baseline", "fastest"
FIRST_BLOCK = "1"


def register(
    campaign: Campaign,
    name: str,
    headline: str,
    spec: ComparisonSpec,
    comparison: Comparison | None,
    runs: pd.DataFrame | None,
) -> None:
    """Record that the models of the first block are versions of a registered model.

    Args:
        campaign: Whose cells have ended.
        name: Name of the registered model.
        headline: Answer of the campaign.
        spec: Question that was judged.
        comparison: Verdicts; None if there is nothing to compare.
        runs: Table of the judged runs; None if there is nothing to compare.
    """
    recorder = campaign.recorder
    factor, baseline = campaign.prepared.plan.factor, campaign.prepared.plan.baseline
    levels = models_of_first_block(campaign)
    if not levels:
        recorder.warn([f"register={name}: no cell of the first block has logged a model"])
        return
    fastest = ""
    if comparison is not None and runs is not None and comparison.factor == factor:
        fastest = fastest_level(spec, comparison, runs)
    for level, run in sorted(levels.items(), key=lambda entry: entry[0] != baseline):
        tags = {
            "campaign": recorder.run_id,
            "block": FIRST_BLOCK,
            factor: level,
            BASELINE: baseline,
            "verdict": headline[:1_000],
            **verdict_tags(comparison, level),
        }
        holders = {BASELINE: baseline, FASTEST: fastest}
        aliases = tuple(alias for alias, holder in holders.items() if holder == level)
        # of an earlier campaign: this one does not support it
        removed = tuple(alias for alias, holder in holders.items() if holder not in levels)
        recorder.write(ModelRegistered(run, name, tags, aliases, removed))
        named = f" as {' and '.join(aliases)}" if aliases else ""
        recorder.display.say(f"  {level} goes to the registered model {name}{named}")


def models_of_first_block(campaign: Campaign) -> dict[str, str]:
    """Return the journal's id of the run whose model is registered, by level of the factor.

    Models of later blocks are never chosen, be they better or not. Of a cell that was run again
    this is the last run.
    """
    folder, factor = campaign.recorder.folder, campaign.prepared.plan.factor
    saved = {record.run for record in journal.read_all(folder) if isinstance(record, ModelSaved)}
    runs = {}
    for run_id, run in sorted(
        journal_runs.read(folder).items(), key=lambda entry: entry[1].closed_at
    ):
        is_good = run.opened and run.closed and run.closed.outcome == RunOutcome.OK
        is_first = run.tags.get("block") == FIRST_BLOCK and "control" not in run.tags
        if run.opened and is_good and is_first and run_id in saved:
            runs[{**run.tags, **run.opened.params}[factor]] = run_id
    return runs


def verdict_tags(comparison: Comparison | None, level: str) -> dict[str, str]:
    """Return the rows of the primary outcomes of a level against the baseline, as tags."""
    if comparison is None or level == comparison.baseline:
        return {}
    missing = set(comparison.primary) & set(comparison.unmeasured)
    tags = {f"verdict/{metric}": "not measured" for metric in sorted(missing)}
    for finding in _primary(comparison):
        row = finding.row
        if row.b != level:
            continue
        values = {
            "": row.verdict,
            "/code": finding.decision.value,
            "/kind": row.kind,
            "/estimate": row.estimate,
            "/ci_low": row.ci_low,
            "/ci_high": row.ci_high,
            "/blocks": row.n_blocks,
            "/reason": row.reason[:1_000],
        }
        tags |= {
            f"verdict/{row.metric}{name}": f"{value:.6g}"
            if isinstance(value, float)
            else str(value)
            for name, value in values.items()
            if value not in (None, "")
        }
    return tags


def fastest_level(spec: ComparisonSpec, comparison: Comparison, runs: pd.DataFrame) -> str:
    """Return the level that is faster than every other one by a verdict; empty without one.

    Each other level is slower in a primary time or rate, and faster in none. All are measured and
    none is open.
    """
    speeds = [metric for metric in comparison.primary if "faster" in outcome(metric).words]
    for level in comparison.levels:
        against = comparison
        if level != comparison.baseline:
            against = judged(replace(spec, baseline=level), runs)
        findings = [finding for finding in _primary(against) if finding.row.metric in speeds]
        settled = {
            (finding.row.metric, finding.row.b)
            for finding in findings
            if finding.judged and finding.good is not True
        }
        slower = {finding.row.b for finding in findings if finding.good is False}
        others = set(comparison.levels) - {level}
        if slower == others and settled == set(product(speeds, others)):
            return level
    return ""


def _primary(comparison: Comparison) -> list[Finding]:
    """Return the primary findings, of all strata together if there are several."""
    findings = comparison.summaries or comparison.findings
    return [finding for finding in findings if finding.primary]

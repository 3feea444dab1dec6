"""Room on a shared server: raw files of old cells go, where a report has been made of them; metrics never do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tracking.records import RunKind, StoredRun
from tracking.store import Store

DAY_MS = 86_400_000
REPORT = "report.html"
PRUNED = "pruned_files"
RAW = (RunKind.CELL, RunKind.EXTRACTION, RunKind.TRIAL)


@dataclass(frozen=True)
class Prunable:
    """A cell's run with files, and the campaign whose report stays."""

    run: StoredRun
    campaign: StoredRun
    days: int


def prunable(store: Store, experiments: Sequence[str], days: int) -> list[Prunable]:
    """Runs that ended so many days ago or more, whose campaign has a report, and whose files are still there."""
    before_ms = int(time.time() * 1_000) - days * DAY_MS
    runs = list(store.runs(experiments, f"attributes.end_time <= {before_ms}"))
    campaigns = {run.run_id: run for run in runs if run.tags.get("kind") in (RunKind.CAMPAIGN, RunKind.SWEEP)}
    reported = {run_id for run_id in campaigns if store.has_file(run_id, REPORT) or store.has_file(run_id, "sweep.html")}
    now_ms = int(time.time() * 1_000)
    return [
        Prunable(run, campaigns[run.tags["campaign"]], (now_ms - (run.end_ms or now_ms)) // DAY_MS)
        for run in runs
        if run.tags.get("kind") in RAW and run.tags.get("campaign") in reported and PRUNED not in run.tags
    ]


def prune(store: Store, found: Sequence[Prunable]) -> None:
    """Deletes their files, for good; their metrics, params and tags stay, and say that the files went."""
    for one in found:
        store.delete_files(one.run.run_id)
        store.tag(one.run.run_id, {PRUNED: time.strftime("%Y-%m-%d")})

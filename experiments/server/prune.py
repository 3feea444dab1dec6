"""Disk space on a shared server: raw files of old cells that a report was made of."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tracking.records import RunKind, StoredRun
from tracking.store import Store

DAY_MS = 86_400_000
REPORTS = ("report.html", "sweep.html")
PRUNED = "pruned_files"
RAW = (RunKind.CELL, RunKind.EXTRACTION, RunKind.TRIAL)
CAMPAIGNS = (RunKind.CAMPAIGN, RunKind.SWEEP)


@dataclass(frozen=True)
class Prunable:
    """Cell run with files, and the campaign whose report stays."""

    run: StoredRun
    campaign: StoredRun
    days: int


def prunable(store: Store, experiments: Sequence[str], days: int) -> list[Prunable]:
    """Return runs with files that ended at least `days` ago and whose campaign has a report."""
    now_ms = int(time.time() * 1_000)
    runs = list(store.runs(experiments, f"attributes.end_time <= {now_ms - days * DAY_MS}"))
    campaigns = {
        run.run_id: run
        for run in runs
        if run.tags.get("kind") in CAMPAIGNS
        and any(store.has_file(run.run_id, name) for name in REPORTS)
    }
    return [
        Prunable(run, campaigns[run.tags["campaign"]], (now_ms - (run.end_ms or now_ms)) // DAY_MS)
        for run in runs
        if run.tags.get("kind") in RAW
        and run.tags.get("campaign") in campaigns
        and PRUNED not in run.tags
    ]


def prune(store: Store, cells: Sequence[Prunable]) -> None:
    """Delete the files of runs for good; a tag records it, and metrics, params and tags stay."""
    for cell in cells:
        store.delete_files(cell.run.run_id)
        store.tag(cell.run.run_id, {PRUNED: time.strftime("%Y-%m-%d")})

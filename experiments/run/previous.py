"""What a campaign's journal has of earlier launches: results of cells, looks, runs that were left open."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

from experiments.run.scheduler import CellResult
from tracking import clock, journal
from tracking.journal import Journal
from tracking.records import RepeatCause, RunClosed, RunOpened, RunOutcome, Tags

# Of a campaign's own run: the block that is measured once more, why, and by which rule.
ODD_BLOCK, RULE, REASON = "odd_block", "odd_block.rule", "odd_block.reason"


def cell_results(folder: Path) -> dict[str, CellResult]:
    """Return, by the key of every cell that has a closed run, how the last ended, or the last that ended well."""
    opened: dict[str, RunOpened] = {}
    tags: dict[str, dict[str, str]] = {}
    results: list[tuple[str, CellResult]] = []
    for record in journal.read_all(folder):
        if isinstance(record, RunOpened):
            opened[record.run] = record
        elif isinstance(record, Tags):
            tags.setdefault(record.run, {}).update(record.values)
            if ODD_BLOCK in record.values:
                results = [_owed(key, result, record.values) for key, result in results]
        elif isinstance(record, RunClosed) and record.outcome in set(RunOutcome):
            first = opened[record.run].tags if record.run in opened else {}
            later = tags.get(record.run, {})
            result = CellResult(
                *(RunOutcome(record.outcome), later.get("phase", "")),
                disturbed=later.get("disturbed", ""),
                repeat="repeats" in first,
                machine=first.get("machine", ""),
            )
            results.append((first.get("cell", ""), result))
    ok = [(key, result) for key, result in results if result.ok]
    return {key: result for key, result in (*results, *ok) if key}


def _owed(key: str, result: CellResult, odd: Mapping[str, str]) -> tuple[str, CellResult]:
    """Return a result; that of a cell of the odd block, by these tags, asks for a repetition."""
    if key.startswith(f"block-{int(odd[ODD_BLOCK]):03d}-"):
        result = dataclasses.replace(result, disturbed=odd[REASON], cause=RepeatCause.ODD_BLOCK, repeat=False)
    return key, result


def looks(folder: Path, campaign: str) -> tuple[int, ...]:
    """Return the blocks after which a campaign has been judged, though more were or may be to come."""
    texts = [text for values in tags_of(folder, campaign) if (text := values.get("looks"))]
    return tuple(map(int, texts[-1].split(","))) if texts else ()


def looks_tag(campaign: str, blocks: Iterable[int]) -> Tags:
    """Return the record of the blocks after which a campaign has been judged."""
    return Tags(campaign, {"looks": as_text(blocks)})


def as_text(blocks: Iterable[int]) -> str:
    return ",".join(map(str, blocks))


def tags_of(folder: Path, run: str) -> list[Mapping[str, str]]:
    """Return the tags that a journal's run was given, in their order."""
    return [record.values for record in journal.read_all(folder) if isinstance(record, Tags) and record.run == run]


def open_runs(folder: Path) -> dict[str, RunOpened]:
    """Return the runs that a journal has not closed, by name."""
    runs: dict[str, RunOpened] = {}
    for record in journal.read_all(folder):
        if isinstance(record, RunOpened):
            runs[record.run] = record
        elif isinstance(record, RunClosed):
            runs.pop(record.run, None)
    return runs


def close_open_runs(records: Journal, reason: str) -> None:
    """End runs that an earlier process of this journal has left open as interrupted."""
    for run in open_runs(records.folder):
        records.append(RunClosed(run, clock.now_ms(), RunOutcome.INTERRUPTED, reason))

"""A neighbour's load: real busy processes beside a real campaign, whose cells are repeated and whose times are not judged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from experiments.campaign.campaign import ended_cells
from tests import neighbours
from tests.conftest import Place, toy_costs
from tests.faults.test_campaign import records
from tracking.records import OTHERS_CPU, RunOpened, RunOutcome, StoredRun, Tags
from tracking.store import Store

# Two frameworks that sleep: whatever else the CPUs do is others' work. A cell's timed windows take 0.4 s or more.
TOYS = {"frameworks": "toy,toy+twin", "data": "synthetic", "vocabulary": "60", "length": "8", "inference_requests": "2"}
BUSY = "this machine was busy ("


@pytest.fixture
def slow_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in toy_costs(step=0.05).items():
        monkeypatch.setenv(name, text)


def cells(place: Place) -> dict[str, list[StoredRun]]:
    """Runs of every cell, in the order in which they began."""
    found: dict[str, list[StoredRun]] = {}
    for run in sorted(Store(place.uri).runs("captioning"), key=lambda one: one.start_ms):
        if run.tags["kind"] == "cell":
            found.setdefault(run.name, []).append(run)
    return found


@pytest.mark.usefixtures("slow_toys")
def test_cells_beside_busy_neighbours_are_repeated_once_and_not_judged(place: Place) -> None:
    with neighbours.busy(os.cpu_count() or 1):
        done = place.run(**TOYS, blocks="1", others_limit_percent="10")
    assert done.returncode == 3, done.stderr + done.stdout
    assert BUSY in done.stdout
    found = cells(place)
    assert set(found) == {"toy · block 1", "toy+twin · block 1"}
    for first, again in found.values():  # each once more, although the machine is as busy then
        assert first.metrics[OTHERS_CPU] > 50, "a neighbour a CPU, beside frameworks that sleep"
        assert first.tags["disturbed"].startswith("others used ")
        assert "repeats" not in first.tags
        assert again.tags["repeats"] == first.tags["disturbed"]
        assert again.metrics[OTHERS_CPU] > 50
    assert max(one[0].start_ms for one in found.values()) < min(one[1].start_ms for one in found.values())
    report = json.loads((next(place.journal.iterdir()) / "report" / "comparison.json").read_text())
    timed = [row for row in report["rows"] if row["metric"] == "train/step_seconds"]
    assert [row["verdict"] for row in timed] == ["inconclusive"]
    assert timed[0]["reason"].startswith(BUSY)
    assert timed[0]["reason"].endswith("1 block; a verdict needs 6")
    left_out = {one["name"]: one["reason"] for one in report["excluded"] if not one["metric"]}
    assert {name: text.partition(";")[2] for name, text in left_out.items()} == dict.fromkeys(
        found, " a later run of the same cell is used instead"
    )
    assert all(text.startswith("others used ") for text in left_out.values())
    page = (next(place.journal.iterdir()) / "report" / "report.md").read_text()
    assert "This machine was busy (" in "\n".join(page.splitlines()[:12])


@pytest.mark.usefixtures("slow_toys")
def test_nothing_is_repeated_where_that_is_not_asked_and_resume_repeats_what_is_owed(place: Place) -> None:
    done = place.run(**TOYS, blocks="1", others_limit_percent="100")
    assert BUSY not in done.stdout
    assert [len(runs) for runs in cells(place).values()] == [1, 1]
    assert all(OTHERS_CPU in runs[0].metrics for runs in cells(place).values())

"""Faults while cells take turns: the block fails as a whole, and no process remains."""

from __future__ import annotations

import signal
from collections.abc import Collection

import psutil
import pytest

from tests.conftest import Place, are_gone, set_toy_costs, wait_for
from tests.faults.test_campaign import stored
from tests.warm import Process
from tracking.records import StoredRun

TOYS = {
    "frameworks": "toy,toy+twin",
    "data": "synthetic",
    "vocabulary": "60",
    "length": "8",
    "bleu_images": "1",
    "epochs": "2",
    "steps_per_epoch": "30",
    "inference_requests": "2",
    "pairing": "interleaved",
}


@pytest.fixture(autouse=True)
def _slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    set_toy_costs(monkeypatch, step=0.03)


def wait_for_turns(
    parent: Process, earlier: Collection[psutil.Process] = ()
) -> list[psutil.Process]:
    """Return the two cells of a block: first the one that waits, halted, then the working one."""
    cells: list[psutil.Process] = []

    def is_taking_turns() -> bool:
        assert parent.poll() is None, parent.output
        try:
            children = psutil.Process(parent.pid).children()
            states = {child.status(): child for child in children if child not in earlier}
        except psutil.NoSuchProcess:
            return False
        if len(states) == 2 and psutil.STATUS_STOPPED in states:
            cells[:] = [states.pop(psutil.STATUS_STOPPED), *states.values()]
        return bool(cells)

    wait_for(is_taking_turns, 120)
    return cells


def runs_of(place: Place, block: int) -> list[StoredRun]:
    runs = stored(place)
    return [run for name in ("toy", "toy+twin") for run in runs[f"{name} · block {block}"]]


@pytest.mark.slow
def test_killed_cell_fails_its_block_and_resume_repeats_it(place: Place) -> None:
    parent = place.start(**TOYS, blocks="3")
    first = wait_for_turns(parent)
    first[0].kill()
    second = wait_for_turns(parent, first)
    second[1].kill()
    output, _ = parent.communicate(timeout=180)
    assert parent.returncode == 1, output
    assert are_gone([*first, *second])
    for block in (1, 2):
        ends = [run.tags for run in runs_of(place, block)]
        assert [tags["outcome"] for tags in ends] == ["failed", "failed"]
        assert all("SIGKILL" in tags["outcome_reason"] for tags in ends)
    assert {run.tags["outcome"] for run in runs_of(place, 3)} == {"ok"}

    resumed = place.resume()
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    for block, outcomes in ((1, ["failed", "ok"] * 2), (2, ["failed", "ok"] * 2), (3, ["ok"] * 2)):
        assert sorted(run.tags["outcome"] for run in runs_of(place, block)) == sorted(outcomes)


def test_sigterm_ends_waiting_cells_and_resume_runs_them(place: Place) -> None:
    parent = place.start(**TOYS, blocks="1")
    cells = wait_for_turns(parent)
    parent.send_signal(signal.SIGTERM)
    output, _ = parent.communicate(timeout=60)
    assert parent.returncode == 128 + signal.SIGTERM, output
    assert "--resume=" in output
    assert "Traceback" not in output
    assert are_gone(cells)
    assert stored(place)["captioning demo"][0].status == "KILLED"
    ends = [run.tags for run in runs_of(place, 1)]
    assert {tags["outcome"] for tags in ends} == {"interrupted"}
    assert all("SIGTERM" in tags["outcome_reason"] for tags in ends)
    assert place.resume().returncode == 3
    outcomes = [run.tags["outcome"] for run in runs_of(place, 1)]
    assert sorted(outcomes) == ["interrupted", "interrupted", "ok", "ok"]


def test_killed_parent_ends_halted_cells(place: Place) -> None:
    parent = place.start(**TOYS, blocks="1")
    cells = wait_for_turns(parent)
    parent.kill()
    wait_for(lambda: are_gone(cells), 30)

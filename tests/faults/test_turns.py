"""Cells that take turns when something dies: the block fails as a whole, the campaign goes on, and nothing is left behind."""

from __future__ import annotations

import signal

import psutil
import pytest

from tests.conftest import Place, toy_costs, wait_for
from tests.faults.test_campaign import stored
from tests.warm import Process

TOYS = {
    "frameworks": "toy,toy+twin",
    "data": "synthetic",
    "vocabulary": "60",
    "length": "8",
    "bleu_images": "1",
}
TOYS |= {
    "epochs": "2",
    "steps_per_epoch": "30",
    "inference_requests": "2",
    "pairing": "interleaved",
}
NAMES = ("toy", "toy+twin")


@pytest.fixture(autouse=True)
def _steps_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in toy_costs(step=0.03).items():
        monkeypatch.setenv(name, text)


def in_turns(parent: Process, but: set[int] = frozenset()) -> tuple[psutil.Process, psutil.Process]:  # type: ignore[assignment]
    """Two cells of a block: one that waits, halted, and the other, which works. but: those of earlier blocks."""
    found: list[tuple[psutil.Process, psutil.Process]] = []

    def there() -> bool:
        assert parent.poll() is None, parent.said
        try:
            everyone = [one for one in psutil.Process(parent.pid).children() if one.pid not in but]
            halted = [one for one in everyone if one.status() == psutil.STATUS_STOPPED]
            working = [one for one in everyone if one not in halted]
        except psutil.NoSuchProcess:
            return False
        if (len(halted), len(working)) == (1, 1):
            found.append((halted[0], working[0]))
        return bool(found)

    wait_for(there, 120)
    return found[0]


def gone(*cells: psutil.Process) -> bool:
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in cells)


@pytest.mark.slow
def test_killed_cell_fails_its_block_and_resume_repeats_it(
    place: Place,
) -> None:
    parent = place.start(**TOYS, blocks="3")
    first = in_turns(parent)
    first[0].kill()
    second = in_turns(parent, {one.pid for one in first})
    second[1].kill()
    output, _ = parent.communicate(timeout=180)
    assert parent.returncode == 1, output
    assert gone(*first, *second)
    runs = stored(place)
    for block in (1, 2):
        ended = [runs[f"{name} · block {block}"][0] for name in NAMES]
        assert {one.tags["outcome"] for one in ended} == {"failed"}
        reasons = sorted(one.tags["outcome_reason"] for one in ended)
        assert "killed by SIGKILL" in reasons[0]
        assert reasons[1].startswith("took turns with ")
        assert reasons[1].endswith(reasons[0])
    assert {runs[f"{name} · block 3"][0].tags["outcome"] for name in NAMES} == {"ok"}

    resumed = place.resume()
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    again = stored(place)
    for name in NAMES:
        assert [len(again[f"{name} · block {block}"]) for block in (1, 2, 3)] == [2, 2, 1]
        assert {run.tags["outcome"] for run in again[f"{name} · block 1"]} == {"failed", "ok"}


def test_sigterm_ends_waiting_cells_and_resume_runs_them(place: Place) -> None:
    parent = place.start(**TOYS, blocks="1")
    cells = in_turns(parent)
    parent.send_signal(signal.SIGTERM)
    output, _ = parent.communicate(timeout=60)
    assert parent.returncode == 128 + signal.SIGTERM, output
    assert gone(*cells)
    runs = stored(place)
    assert {runs[f"{name} · block 1"][0].tags["outcome_reason"] for name in NAMES} == {
        "the campaign got SIGTERM"
    }
    assert place.resume().returncode == 3
    assert all(
        [run.tags["outcome"] for run in stored(place)[f"{name} · block 1"]].count("ok") == 1
        for name in NAMES
    )


def test_killed_parent_ends_halted_cells(place: Place) -> None:
    parent = place.start(**TOYS, blocks="1")
    cells = in_turns(parent)
    parent.kill()
    wait_for(lambda: gone(*cells), 30)

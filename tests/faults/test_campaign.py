"""Faults during a campaign: killed processes, a killed server, a full disk."""

from __future__ import annotations

import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import Place, Server, are_gone, cell_processes, set_toy_costs, titled, wait_for
from tests.warm import Process
from tracking import journal
from tracking.records import Metrics, Record, RunClosed, RunOpened, StoredRun
from tracking.store import Store

# No framework is the subject: the toy starts at once, and its steps last long enough for a fault.
LONG = {
    "frameworks": "toy",
    "data": "synthetic",
    "vocabulary": "60",
    "length": "8",
    "epochs": "12",
    "blocks": "2",
    "steps_per_epoch": "4",
    "save_model": "first",
}
TURNS = {
    **LONG,
    "frameworks": "toy,toy+twin",
    "bleu_images": "1",
    "epochs": "2",
    "steps_per_epoch": "30",
    "inference_requests": "2",
    "pairing": "interleaved",
    "save_model": "none",
}
EPOCHS = list(range(1, 13))


def cell_process(parent: Process | psutil.Process) -> psutil.Process | None:
    return next(iter(cell_processes(parent.pid)), None)


def records(place: Place) -> list[Record]:
    folders = journal.campaigns(place.journal) if place.journal.exists() else []
    return list(journal.read_all(folders[-1])) if folders else []


def wait_for_epochs(place: Place, parent: Process, epochs: int) -> None:
    """Wait until the campaign's newest cell has reported so many validation losses."""

    def has_epochs() -> bool:
        assert parent.poll() is None, parent.output
        losses: dict[str, int] = {}
        for record in records(place):
            if isinstance(record, RunOpened) and record.tags["kind"] == "cell":
                losses[record.run] = 0
            elif isinstance(record, Metrics) and record.run in losses:
                losses[record.run] += sum(point.key == "val/loss" for point in record.points)
        return bool(losses) and list(losses.values())[-1] >= epochs

    wait_for(has_epochs, 120)


def stored(place: Place) -> dict[str, list[StoredRun]]:
    runs: dict[str, list[StoredRun]] = {}
    for run in Store(place.uri).runs("captioning"):
        runs.setdefault(titled(run), []).append(run)
    return runs


def statuses(place: Place) -> dict[str, list[str]]:
    return {name: sorted(run.status for run in runs) for name, runs in stored(place).items()}


def history(place: Place, run: StoredRun, key: str) -> dict[int, float]:
    return {point.step: point.value for point in Store(place.uri).points(run.run_id, key)}


def kill_cell(parent: Process) -> None:
    child = cell_process(parent)
    assert child is not None
    child.kill()


def fill(ballast: Path) -> None:
    """Fill the disk of a file."""
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65_536))


@pytest.fixture(autouse=True)
def _slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    set_toy_costs(monkeypatch, step=0.025)


def test_killed_check_of_a_framework_is_failed_work(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_toy_costs(monkeypatch, start=60.0)
    parent = place.start(**LONG)
    wait_for(lambda: cell_process(parent) is not None, 60)
    kill_cell(parent)
    assert parent.wait(60) == 1, parent.output
    assert "SIGKILL" in parent.output.splitlines()[-1]


def test_campaign_survives_kills_of_cell_server_and_parent(place: Place, server: Server) -> None:
    """Kill one after the other in a campaign that is replayed and resumed."""
    remote = Place(place.folder, place.cache, server.uri)
    parent = remote.start(**LONG)
    wait_for_epochs(remote, parent, 5)
    kill_cell(parent)
    wait_for(lambda: any(isinstance(record, RunClosed) for record in records(remote)), 60)
    wait_for_epochs(remote, parent, 1)
    server.kill()
    assert parent.wait(240) == 1, parent.output
    assert "replay --journal" in parent.output
    server.start()
    ends = {"toy · block 1": ["FAILED"], "toy · block 2": ["FINISHED"]}
    for _ in range(2):  # the second time changes nothing
        done = remote.call(*remote.command("replay")[:4], f"--journal={remote.journal}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert statuses(remote).items() >= ends.items()
        assert list(history(remote, stored(remote)["toy · block 2"][0], "train/loss")) == EPOCHS
    (first,) = stored(remote)["toy · block 1"]
    assert "SIGKILL" in first.tags["outcome_reason"]
    learned = history(remote, first, "val/loss")

    options = [f"--cache={place.cache}", f"--journal={remote.journal}", "--resume=last"]
    parent = remote.begin(*remote.command("captioning")[:4], *options)
    wait_for(lambda: len(stored(remote)["toy · block 1"]) == 2, 60)
    wait_for_epochs(remote, parent, len(learned) + 1)
    child = cell_process(parent)
    parent.kill()
    assert child is not None
    wait_for(lambda: are_gone([child]), 10)
    assert statuses(remote)["captioning demo"] == ["RUNNING"]
    resumed = remote.resume()
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    assert statuses(remote) == {
        "captioning demo": ["FINISHED"],
        "toy · block 1": ["FAILED", "FINISHED", "KILLED"],
        "toy · block 2": ["FINISHED"],
    }
    (newest,) = (run for run in stored(remote)["toy · block 1"] if run.status == "FINISHED")
    losses = history(remote, newest, "val/loss")
    assert list(losses) == EPOCHS
    assert learned.items() <= losses.items(), "not trained again"


@pytest.mark.parametrize("small_disk", ["40m"], indirect=True)
def test_resume_after_full_disk(place: Place, small_disk: Path) -> None:
    disk = Place(small_disk, place.cache, place.uri)
    parent = place.start(**{**LONG, "journal": str(disk.journal)})
    wait_for(lambda: any(isinstance(record, RunClosed) for record in records(disk)), 120)
    fill(small_disk / "ballast")
    assert parent.wait(180) == 1, parent.output
    assert "Traceback" not in parent.output
    (failed,) = stored(place)["toy · block 2"]
    assert "No space left" in failed.tags["outcome_reason"]
    (small_disk / "ballast").unlink()
    resumed = place.resume(disk.journal)
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    ends = {"toy · block 1": ["FINISHED"], "toy · block 2": ["FAILED", "FINISHED"]}
    assert statuses(place).items() >= ends.items()


# Cells that take turns: the block fails as a whole, and no process remains


def wait_for_turns(
    parent: Process, earlier: Collection[psutil.Process] = ()
) -> list[psutil.Process]:
    """Return the two cells of a block: first the one that waits, halted, then the working one."""
    cells: list[psutil.Process] = []

    def is_taking_turns() -> bool:
        assert parent.poll() is None, parent.output
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(parent.pid).children()
            states = {child.status(): child for child in children if child not in earlier}
            if len(states) == 2 and psutil.STATUS_STOPPED in states:
                cells[:] = [states.pop(psutil.STATUS_STOPPED), *states.values()]
        return bool(cells)

    wait_for(is_taking_turns, 120)
    return cells


def outcomes(place: Place, block: int) -> list[str]:
    runs = stored(place)
    names = (f"{framework} · block {block}" for framework in ("toy", "toy+twin"))
    ends = [run.tags for name in names for run in runs[name]]
    assert all("SIG" in tags["outcome_reason"] for tags in ends if tags["outcome"] != "ok")
    return sorted(tags["outcome"] for tags in ends)


def test_faults_of_cells_that_take_turns_end_their_block(place: Place) -> None:
    """Kill a waiting cell, terminate the campaign during the next block, and resume it."""
    parent = place.start(**TURNS | {"blocks": "2"})
    first = wait_for_turns(parent)
    first[0].kill()
    second = wait_for_turns(parent, first)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(60) == 128 + signal.SIGTERM, parent.output
    assert "--resume=" in parent.output
    assert "Traceback" not in parent.output
    assert are_gone([*first, *second])
    assert stored(place)["captioning demo"][0].status == "KILLED"
    assert outcomes(place, 1) == ["failed"] * 2
    assert outcomes(place, 2) == ["interrupted"] * 2
    resumed = place.resume()
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    assert outcomes(place, 1) == ["failed", "failed", "ok", "ok"]
    assert outcomes(place, 2) == ["interrupted", "interrupted", "ok", "ok"]


def test_killed_parent_ends_halted_cells(place: Place) -> None:
    parent = place.start(**TURNS | {"blocks": "1"})
    cells = wait_for_turns(parent)
    parent.kill()
    wait_for(lambda: are_gone(cells), 30)

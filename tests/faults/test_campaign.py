"""Faults during a campaign: killed processes, a killed server, a full disk."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import Place, Server, set_toy_costs, titled, wait_for
from tests.experiments.race import races
from tests.warm import Process
from tracking import journal
from tracking.records import Metrics, Record, RunClosed, RunOpened, StoredRun
from tracking.store import Store
from tracking.whereabouts import STALE_SECONDS_OF_DEAD

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
EPOCHS = list(range(1, 13))


def cell_process(parent: Process | psutil.Process) -> psutil.Process | None:
    try:
        children = psutil.Process(parent.pid).children()
    except psutil.NoSuchProcess:
        return None
    return next((child for child in children if "experiments.workloads" in child.cmdline()), None)


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
    points = Store(place.uri)._client.get_metric_history(run.run_id, key)
    return {point.step: point.value for point in points}


@pytest.fixture(autouse=True)
def _slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    set_toy_costs(monkeypatch, step=0.025)


def test_killed_check_of_a_framework_is_failed_work(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_toy_costs(monkeypatch, start=60.0)
    parent = place.start(**LONG)
    wait_for(lambda: cell_process(parent) is not None, 60)
    child = cell_process(parent)
    assert child is not None
    child.kill()
    output, _ = parent.communicate(timeout=60)
    assert parent.returncode == 1, output
    assert "SIGKILL" in output.splitlines()[-1]


def test_resume_continues_killed_cell_from_checkpoint(place: Place) -> None:
    parent = place.start(**LONG)
    wait_for_epochs(place, parent, 5)
    child = cell_process(parent)
    assert child is not None
    child.kill()
    output, _ = parent.communicate(timeout=180)
    assert parent.returncode == 1, output
    first, second = (stored(place)[f"toy · block {block}"][0] for block in (1, 2))
    assert (first.status, first.tags["outcome"]) == ("FAILED", "failed")
    assert "SIGKILL" in first.tags["outcome_reason"]
    assert second.status == "FINISHED"

    resumed = place.resume()
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    assert statuses(place) == {
        "captioning demo": ["FINISHED"],
        "toy · block 1": ["FAILED", "FINISHED"],
        "toy · block 2": ["FINISHED"],
    }
    (newest,) = (run for run in stored(place)["toy · block 1"] if run.status == "FINISHED")
    losses = history(place, newest, "val/loss")
    assert list(losses) == EPOCHS
    assert history(place, first, "val/loss").items() <= losses.items(), "not trained again"


def kill_parent(place: Place, epochs: int) -> None:
    parent = place.start(**LONG)
    wait_for_epochs(place, parent, epochs)
    child = cell_process(parent)
    wait_for(lambda: len(stored(place)) >= 2, 30)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert child is not None
    wait_for(lambda: not child.is_running(), 10)
    assert statuses(place)["captioning demo"] == ["RUNNING"]


def test_resume_after_killed_parent(place: Place) -> None:
    kill_parent(place, 2)
    resumed = place.resume()
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    assert statuses(place) == {
        "captioning demo": ["FINISHED"],
        "toy · block 1": ["FINISHED", "KILLED"],
        "toy · block 2": ["FINISHED"],
    }


@pytest.mark.slow
def test_new_campaign_closes_vanished_runs(place: Place) -> None:
    kill_parent(place, 1)
    # without it, another process of the same number might still send heartbeats
    heartbeat = str(int(time.time()) - 2 * STALE_SECONDS_OF_DEAD)
    Store(place.uri).tag(stored(place)["captioning demo"][0].run_id, {"heartbeat": heartbeat})
    done = place.run(frameworks="toy", blocks="1")
    assert done.returncode == 3, done.stdout + done.stderr
    assert statuses(place)["captioning demo"] == ["FINISHED", "KILLED"]


def test_replay_after_server_crash(place: Place, server: Server) -> None:
    remote = Place(place.folder, place.cache, server.uri)
    parent = remote.start(**LONG)
    wait_for_epochs(remote, parent, 1)
    server.kill()
    output, _ = parent.communicate(timeout=240)
    assert parent.returncode == 3, output
    assert "replay --journal" in output
    server.start()
    for _ in range(2):  # the second time changes nothing
        done = remote.call(*remote.command("replay")[:4], f"--journal={remote.journal}")
        assert done.returncode == 0, done.stdout + done.stderr
        names = ("captioning demo", "toy · block 1", "toy · block 2")
        assert statuses(remote) == {name: ["FINISHED"] for name in names}
        assert list(history(remote, stored(remote)["toy · block 2"][0], "train/loss")) == EPOCHS


@pytest.mark.slow
def test_race_goes_on_after_server_crash(place: Place, server: Server) -> None:
    remote = Place(place.folder, place.cache, server.uri)
    parent = remote.begin(*races.command(remote, "a=touch started; sleep 1", blocks="3"))
    wait_for(lambda: (remote.folder / "started").exists(), 120)
    server.kill()
    output, _ = parent.communicate(timeout=240)
    server.start()
    assert parent.returncode == 3, output
    assert "replay --journal" in output
    ends = [record.outcome for record in records(remote) if isinstance(record, RunClosed)]
    assert ends == ["ok"] * 4  # three cells and the campaign


@pytest.mark.parametrize("small_disk", ["40m"], indirect=True)
def test_resume_after_full_disk(place: Place, small_disk: Path) -> None:
    disk = Place(small_disk, place.cache, place.uri)
    parent = place.start(**{**LONG, "journal": str(disk.journal), "blocks": "3"})
    wait_for(lambda: any(isinstance(record, RunClosed) for record in records(disk)), 120)
    fill(small_disk / "ballast")
    output, _ = parent.communicate(timeout=180)
    assert parent.returncode == 1, output
    assert "Traceback" not in output
    ends = {name: runs[0] for name, runs in stored(place).items()}
    assert [ends[f"toy · block {block}"].status for block in (1, 2, 3)] == [
        "FINISHED",
        "FAILED",
        "FAILED",
    ]
    assert "No space left" in ends["toy · block 2"].tags["outcome_reason"]

    (small_disk / "ballast").unlink()
    resumed = place.resume(disk.journal)
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    assert statuses(place)["toy · block 2"] == ["FAILED", "FINISHED"]
    assert statuses(place)["toy · block 3"] == ["FAILED", "FINISHED"]


def fill(ballast: Path) -> None:
    """Fill the disk of a file."""
    with pytest.raises(OSError, match="No space left"), ballast.open("wb") as file:  # noqa: PT012
        while True:
            file.write(bytes(65_536))
            file.flush()

"""What was measured is kept: real signals, a real server killed, a real full disk; and a campaign resumes where it was."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import Place, Server, titled, toy_costs, wait_for
from tests.warm import Process
from tracking import journal
from tracking.records import Metrics, RunClosed, RunOpened, StoredRun
from tracking.store import Store
from tracking.whereabouts import STALE_SECONDS_OF_DEAD


def cell_process(parent: Process) -> psutil.Process | None:
    try:
        children = psutil.Process(parent.pid).children()
    except psutil.NoSuchProcess:
        return None
    return next((child for child in children if "experiments.cell" in child.cmdline()), None)


def records(place: Place) -> list[object]:
    folders = journal.campaigns(place.journal) if place.journal.exists() else []
    return list(journal.read_all(folders[-1])) if folders else []


def wait_for_epochs(place: Place, parent: Process, epochs: int) -> None:
    """Until the campaign's newest run has told so many validation losses."""

    def reached() -> bool:
        assert parent.poll() is None, parent.said
        found = records(place)
        runs = [
            record.run
            for record in found
            if isinstance(record, RunOpened) and record.tags["kind"] == "cell"
        ]
        points = [
            p
            for r in found
            if isinstance(r, Metrics) and runs and r.run == runs[-1]
            for p in r.points
        ]
        return sum(point.key == "val/loss" for point in points) >= epochs

    wait_for(reached, 120)


def stored(place: Place) -> dict[str, list[StoredRun]]:
    found: dict[str, list[StoredRun]] = {}
    for run in Store(place.uri).runs("captioning"):
        found.setdefault(titled(run), []).append(run)
    return found


# No framework is the subject here: the toy starts at once, and takes so long for a step that there is time to break something.
LONG = {
    "frameworks": "toy",
    "data": "synthetic",
    "vocabulary": "60",
    "length": "8",
    "epochs": "12",
    "blocks": "2",
}
LONG |= {"steps_per_epoch": "4"}
STEP_SECONDS = 0.025


@pytest.fixture(autouse=True)
def _steps_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in toy_costs(step=STEP_SECONDS).items():
        monkeypatch.setenv(name, text)


def test_resume_continues_killed_cell_from_checkpoint(
    place: Place,
) -> None:
    parent = place.start(**LONG)
    wait_for_epochs(place, parent, 5)
    child = cell_process(parent)
    assert child is not None
    child.kill()
    output, _ = parent.communicate(timeout=180)
    assert parent.returncode == 1, output
    assert "the process was killed by SIGKILL" in output
    runs = stored(place)
    first, second = runs["toy · block 1"][0], runs["toy · block 2"][0]
    assert (first.status, first.tags["outcome"]) == ("FAILED", "failed")
    assert "SIGKILL" in first.tags["outcome_reason"]
    assert second.status == "FINISHED"
    told = first.metrics["val/loss"]

    resumed = place.resume()
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    assert "[ 1/1] toy · block 1: ok" in resumed.stdout
    again = stored(place)
    assert len(again["toy · block 2"]) == 1, "what was finished is not run again"
    newest = next(run for run in again["toy · block 1"] if run.status == "FINISHED")
    history = Store(place.uri)._client.get_metric_history(newest.run_id, "val/loss")
    assert [point.step for point in history] == list(range(1, 13))
    earlier = {
        point.step: point.value
        for point in Store(place.uri)._client.get_metric_history(first.run_id, "val/loss")
    }
    kept = [history[step - 1].value == value for step, value in earlier.items()]
    assert all(kept), "epochs before the kill are kept, not trained again"
    assert told in earlier.values()
    assert again["captioning demo"][0].status == "FINISHED"


def test_sigterm_ends_runs_and_prints_resume_command(place: Place) -> None:
    """Ctrl-C is in test_interrupt.py."""
    number = signal.SIGTERM
    parent = place.start(**LONG)
    wait_for_epochs(place, parent, 1)
    child = cell_process(parent)
    parent.send_signal(number)
    output, _ = parent.communicate(timeout=60)
    assert parent.returncode == 128 + number
    assert f"stopped by {number.name}" in output
    assert "--resume=" in output
    assert "Traceback" not in output
    assert child is not None
    assert not child.is_running()
    runs = stored(place)
    assert runs["toy · block 1"][0].status == "KILLED"
    assert runs["toy · block 1"][0].tags["outcome"] == "interrupted"
    assert runs["captioning demo"][0].status == "KILLED"


def test_resume_after_killed_parent(
    place: Place,
) -> None:
    parent = place.start(**LONG)
    wait_for_epochs(place, parent, 2)
    child = cell_process(parent)
    wait_for(lambda: len(stored(place)) >= 2, 30)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert child is not None
    wait_for(lambda: not child.is_running(), 10)
    assert stored(place)["captioning demo"][0].status == "RUNNING"

    resumed = place.resume()
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    runs = stored(place)
    assert sorted(run.status for run in runs["toy · block 1"]) == ["FINISHED", "KILLED"]
    assert runs["captioning demo"][0].status == "FINISHED"
    assert len(runs["toy · block 2"]) == 1


@pytest.mark.slow
def test_new_campaign_closes_vanished_runs(place: Place) -> None:
    parent = place.start(**LONG)
    wait_for_epochs(place, parent, 1)
    wait_for(lambda: len(stored(place)) >= 2, 30)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    silent = str(
        int(time.time()) - 2 * STALE_SECONDS_OF_DEAD
    )  # another process might beat in its place: that is waited for
    Store(place.uri).tag(stored(place)["captioning demo"][0].run_id, {"heartbeat": silent})
    done = place.run(frameworks="toy", blocks="1")
    assert done.returncode == 3, done.stdout + done.stderr
    campaigns = stored(place)["captioning demo"]
    assert sorted(run.status for run in campaigns) == ["FINISHED", "KILLED"]
    assert (
        "ended without a message"
        in next(run for run in campaigns if run.status == "KILLED").tags["outcome_reason"]
    )


def test_replay_after_server_crash(place: Place, server: Server) -> None:
    remote = Place(place.folder, place.cache, server.uri)
    parent = remote.start(**LONG)
    wait_for_epochs(remote, parent, 1)
    server.kill()
    output, _ = parent.communicate(timeout=240)
    assert parent.returncode == 3, output
    assert "block 1: ok" in output
    assert "block 2: ok" in output
    assert "replay --journal" in output
    server.start()
    for _ in range(2):  # the second time changes nothing
        told = remote.call(*remote.command("replay")[:4], f"--journal={remote.journal}")
        assert told.returncode == 0, told.stdout + told.stderr
        runs = stored(remote)
        assert {
            name: [run.status for run in found]
            for name, found in runs.items()
            if "features" not in name
        } == {
            "captioning demo": ["FINISHED"],
            "toy · block 1": ["FINISHED"],
            "toy · block 2": ["FINISHED"],
        }
        history = Store(remote.uri)._client.get_metric_history(
            runs["toy · block 2"][0].run_id, "train/loss"
        )
        assert [point.step for point in history] == list(range(1, 13))


@pytest.mark.parametrize("small_disk", ["40m"], indirect=True)
def test_resume_after_full_disk(place: Place, small_disk: Path) -> None:
    parent = place.start(**{**LONG, "journal": str(small_disk / "journal"), "blocks": "3"})

    def first_is_done() -> bool:
        folders = (
            journal.campaigns(small_disk / "journal") if (small_disk / "journal").exists() else []
        )
        found = list(journal.read_all(folders[-1])) if folders else []
        keys = {
            record.run: record.tags.get("cell") for record in found if isinstance(record, RunOpened)
        }
        return any(
            isinstance(record, RunClosed) and keys.get(record.run) == "block-001-toy"
            for record in found
        )

    wait_for(first_is_done, 120)
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space left"), ballast.open("wb") as file:  # noqa: PT012
        while True:
            file.write(b"x" * 65_536)
            file.flush()
    output, _ = parent.communicate(timeout=180)
    assert parent.returncode == 1, output
    assert "No space left on device" in output
    assert "Traceback" not in output
    runs = stored(place)
    assert runs["toy · block 1"][0].status == "FINISHED"
    assert runs["toy · block 2"][0].status == "FAILED"
    assert "No space left" in runs["toy · block 2"][0].tags["outcome_reason"]
    assert runs["toy · block 3"][0].status == "FAILED", "the campaign went on"

    (small_disk / "ballast").unlink()
    resumed = place.resume(small_disk / "journal")
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    statuses = {name: sorted(run.status for run in found) for name, found in stored(place).items()}
    assert statuses["toy · block 2"] == ["FAILED", "FINISHED"]
    assert statuses["toy · block 3"] == ["FAILED", "FINISHED"]

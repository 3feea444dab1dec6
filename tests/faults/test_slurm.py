"""What happens to a cluster happens to a campaign: dead nodes, a time limit, a controller that restarts, a full shared disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import slurm
from tests.conftest import Place, toy_costs, wait_for
from tests.experiments.test_slurm import TOYS, ended
from tests.faults.test_campaign import stored, wait_for_epochs
from tests.slurm import Slurm
from tests.warm import Process
from tracking import journal
from tracking.records import RunClosed
from tracking.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.debian(package="slurm-wlm")]


@pytest.fixture
def cluster() -> Iterator[Slurm]:
    """One for each test, which breaks it."""
    with slurm.running(nodes=4) as found:
        yield found


def wait_for_ends(place: Place, parent: Process, count: int) -> None:
    """Until so many cells have ended."""

    def reached() -> bool:
        assert parent.poll() is None, parent.said
        folders = journal.campaigns(place.journal) if place.journal.exists() else []
        found = journal.read_all(folders[-1]) if folders else iter(())
        return sum(isinstance(record, RunClosed) for record in found) >= count

    wait_for(reached, 300)


def outcomes(place: Place) -> dict[str, Counter[str]]:
    """Of the runs of every cell."""
    return {
        name: Counter(run.tags["outcome"] for run in runs)
        for name, runs in stored(place).items()
        if "block" in name
    }


@pytest.mark.timeout(1_500)
def test_200_cells_survive_dead_nodes_and_controller(on_cluster: Place, cluster: Slurm) -> None:
    parent = on_cluster.start(**{**TOYS, "blocks": "100", "nodes": "4", "epochs": "1"})
    try:
        wait_for_ends(on_cluster, parent, 20)
        cluster.kill_node("n1")
        cluster.ask(
            "scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=test"
        )  # its job runs to its end
        wait_for_ends(on_cluster, parent, 60)
        cluster.kill_controller()
        cluster.start_controller()
        wait_for_ends(on_cluster, parent, 100)
        cluster.kill_node("n2")
        output, _ = parent.communicate(timeout=1_200)
    finally:
        parent.kill()
    assert parent.returncode in (0, 3), output
    found = outcomes(on_cluster)
    assert len(found) == 200
    assert {count["ok"] for count in found.values()} == {1}
    others = sum((count - Counter({"ok": 1}) for count in found.values()), Counter[str]())
    print(f"200 cells, each ok once; besides: {dict(others)}; nodes: {cluster.states()}")
    assert set(others) <= {"interrupted"}, others
    assert cluster.jobs() == {}


def wait_for_state(cluster: Slurm, state: str) -> None:
    wait_for(lambda: any(found.startswith(state) for found in cluster.jobs().values()), 120)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("moment", ["queued", "running", "over"])
def test_resume_after_killed_parent_runs_no_cell_twice(
    on_cluster: Place, cluster: Slurm, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """moment: what its jobs do when the campaign is resumed."""
    for name, text in toy_costs(step=0.1).items():
        monkeypatch.setenv(name, text)
    parent = on_cluster.start(**{**TOYS, "blocks": "2", "nodes": "2", "steps_per_epoch": "10"})
    wait_for_state(cluster, "RUNNING")  # the check before all else
    if moment == "queued":
        cluster.ask(
            "scontrol", "update", "PartitionName=main", "State=DOWN"
        )  # what is at work goes on
        wait_for_state(cluster, "PENDING")
    else:
        wait_for_ends(on_cluster, parent, 1)
    parent.kill()
    parent.wait(60)
    assert len(cluster.jobs()) == 2, "jobs live without the campaign's process"
    if moment == "queued":
        cluster.ask("scontrol", "update", "PartitionName=main", "State=UP")
    if moment == "over":
        wait_for(lambda: cluster.jobs() == {}, 120)
    resumed = on_cluster.resume()
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    found = outcomes(on_cluster)
    assert len(found) == 4
    assert {count["ok"] for count in found.values()} == {1}
    again = sum((count - Counter({"ok": 1}) for count in found.values()), Counter[str]())
    assert set(again) <= ({"interrupted"} if moment == "running" else set()), (
        "nothing was done for nothing"
    )
    wait_for(lambda: cluster.jobs() == {}, 60)


@pytest.mark.timeout(600)
def test_requeued_job_continues_from_checkpoint(
    on_cluster: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in toy_costs(step=0.25).items():
        monkeypatch.setenv(name, text)
    long = {
        "blocks": "1",
        "frameworks": "toy",
        "steps_per_epoch": "10",
        "epochs": "30",
        "time_limit": "1m",
    }
    output, _ = ended(
        on_cluster.start(**{**TOYS, **long}), 500
    )  # 75 s of sleep alone: no job of a minute trains it whole
    runs = stored(on_cluster)["toy · block 1"]
    told = sorted(
        (run.start_ms, run.tags["outcome"], run.tags.get("outcome_reason", "")) for run in runs
    )
    assert [outcome for _, outcome, _ in told][-1] == "ok", output
    assert {(outcome, reason) for _, outcome, reason in told[:-1]} == {
        ("interrupted", "its job reached the time limit, or gave way to another")
    }
    newest = max(runs, key=lambda run: run.start_ms)
    points = Store(on_cluster.uri)._client.get_metric_history(newest.run_id, "val/loss")
    assert [point.step for point in points] == list(range(1, 31))


@pytest.mark.parametrize("small_disk", ["24m"], indirect=True)
def test_resume_after_full_shared_disk(
    on_cluster: Place, cluster: Slurm, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in toy_costs(step=0.1).items():
        monkeypatch.setenv(name, text)
    where = Place(small_disk, on_cluster.cache, on_cluster.uri)
    parent = where.start(**{**TOYS, "blocks": "2", "steps_per_epoch": "10", "epochs": "20"})
    wait_for_epochs(where, parent, 1)
    with (small_disk / "ballast").open("wb") as file, pytest.raises(OSError, match="No space left"):  # noqa: PT012
        while True:
            file.write(b"x" * 65_536)
            file.flush()
    output, _ = ended(parent, 240)
    assert parent.returncode == 1, output
    assert "Traceback" not in output
    assert "No space left on device" in output
    assert cluster.jobs() == {}
    (small_disk / "ballast").unlink()
    monkeypatch.delenv("EVENHAND_TOY_COSTS")
    resumed = where.resume()
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    assert {count["ok"] for count in outcomes(where).values()} == {1}

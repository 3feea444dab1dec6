"""Faults of a cluster: dead nodes, a time limit, a restarted controller."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from experiments.run.backends.slurm import REQUEUED
from tests import slurm
from tests.conftest import Place, set_toy_costs, wait_for
from tests.experiments.test_slurm import TOYS, stored_cells, wait_for_end
from tests.faults.test_campaign import history, records, stored
from tests.slurm import Slurm
from tests.warm import Process
from tracking.records import RunClosed

pytestmark = [pytest.mark.slow, pytest.mark.debian(package="slurm-wlm")]


@pytest.fixture
def cluster() -> Iterator[Slurm]:
    """Cluster of a single test, which breaks it."""
    with slurm.running(nodes=4) as cluster:
        yield cluster


def wait_for_ends(place: Place, parent: Process, count: int) -> None:
    """Wait until so many cells have ended."""

    def are_closed() -> bool:
        assert parent.poll() is None, parent.output
        return sum(isinstance(record, RunClosed) for record in records(place)) >= count

    wait_for(are_closed, 300)


def wait_for_state(cluster: Slurm, state: str) -> None:
    wait_for(lambda: any(text.startswith(state) for text in cluster.jobs().values()), 120)


def other_outcomes(place: Place, cells: int) -> set[str]:
    """Return the outcomes of all runs but one `ok` of each of so many cells."""
    runs = [[tags["outcome"] for tags in cell] for cell in stored_cells(place).values()]
    assert [outcomes.count("ok") for outcomes in runs] == [1] * cells
    return {outcome for outcomes in runs for outcome in outcomes} - {"ok"}


@pytest.mark.timeout(1_500)
def test_200_cells_survive_dead_nodes_and_controller(on_cluster: Place, cluster: Slurm) -> None:
    parent = on_cluster.start(**{**TOYS, "blocks": "100", "nodes": "4", "epochs": "1"})
    wait_for_ends(on_cluster, parent, 20)
    cluster.kill_node("n1")
    # the job of a drained node runs to its end
    cluster.ask("scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=test")
    wait_for_ends(on_cluster, parent, 60)
    cluster.kill_controller()
    cluster.start_controller()
    wait_for_ends(on_cluster, parent, 100)
    cluster.kill_node("n2")
    assert parent.wait(1_200) in (0, 3), parent.output
    assert other_outcomes(on_cluster, 200) <= {"interrupted"}
    assert cluster.jobs() == {}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("moment", ["queued", "running", "over"])
def test_resume_after_killed_parent_runs_no_cell_twice(
    on_cluster: Place, cluster: Slurm, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_toy_costs(monkeypatch, step=0.1)
    parent = on_cluster.start(**{**TOYS, "blocks": "2", "nodes": "2", "steps_per_epoch": "10"})
    wait_for_state(cluster, "RUNNING")  # the check before the first cell
    if moment == "queued":
        cluster.ask("scontrol", "update", "PartitionName=main", "State=DOWN")
        wait_for_state(cluster, "PENDING")
    else:
        wait_for_ends(on_cluster, parent, 1)
    parent.kill()
    parent.wait(60)
    wait_for(lambda: len(cluster.jobs()) == 2, 30)  # they live without the campaign's process
    cluster.ask("scontrol", "update", "PartitionName=main", "State=UP")
    if moment == "over":
        wait_for(lambda: cluster.jobs() == {}, 120)
    resumed = on_cluster.resume()
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    # a job may begin a cell before the resumed campaign cancels it
    assert other_outcomes(on_cluster, 4) <= (set() if moment == "over" else {"interrupted"})
    wait_for(lambda: cluster.jobs() == {}, 60)


@pytest.mark.timeout(600)
def test_requeued_job_continues_from_checkpoint(
    on_cluster: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train for 75 s of sleep: no job of a minute does it all."""
    set_toy_costs(monkeypatch, step=0.25)
    settings = {"frameworks": "toy", "steps_per_epoch": "10", "epochs": "30", "time_limit": "1m"}
    output = wait_for_end(on_cluster.start(**{**TOYS, **settings, "blocks": "1"}), 500)
    *earlier, last = sorted(stored(on_cluster)["toy · block 1"], key=lambda run: run.start_ms)
    assert last.tags["outcome"] == "ok", output
    ends = {(run.tags["outcome"], run.tags["outcome_reason"]) for run in earlier}
    assert ends == {("interrupted", REQUEUED)}
    assert list(history(on_cluster, last, "val/loss")) == list(range(1, 31))

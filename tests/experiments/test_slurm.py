"""Campaigns on a real Slurm, which these tests start: blocks stay on one node, and every end is an outcome with its reason."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests import slurm
from tests.conftest import Place, toy_costs, wait_for
from tests.faults.test_campaign import stored, wait_for_epochs
from tests.slurm import Slurm
from tests.warm import Process

pytestmark = pytest.mark.debian(package="slurm-wlm")

# The toy framework starts at once.
TOYS = {
    "frameworks": "toy,toy+twin",
    "data": "synthetic",
    "vocabulary": "60",
    "length": "8",
    "bleu_images": "1",
}
TOYS |= {
    "epochs": "2",
    "steps_per_epoch": "2",
    "inference_requests": "2",
    "executor": "slurm",
    "partition": "main",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm.running(nodes=2) as found:
        yield found


def ended(parent: Process, seconds: float = 120) -> tuple[str, None]:
    """What a campaign said until its end; one that does not end is killed."""
    try:
        return parent.communicate(timeout=seconds)
    finally:
        if parent.poll() is None:
            parent.kill()


def test_campaign_runs_as_jobs_with_one_node_per_block(on_cluster: Place, cluster: Slurm) -> None:
    done = on_cluster.run(**TOYS, blocks="2", nodes="2")
    assert done.returncode == 3, done.stdout + done.stderr  # two blocks have no verdict
    runs = {name: found for name, found in stored(on_cluster).items() if "block" in name}
    assert sorted(runs) == sorted(
        f"{name} · block {block}" for name in ("toy", "toy+twin") for block in (1, 2)
    )
    assert {run.tags["outcome"] for found in runs.values() for run in found} == {"ok"}
    assert [len(found) for found in runs.values()] == [1] * 4
    for block in (1, 2):
        both = [runs[f"{name} · block {block}"][0].tags for name in ("toy", "toy+twin")]
        assert both[0]["slurm.job"] == both[1]["slurm.job"]
        assert both[0]["slurm.node"] == both[1]["slurm.node"]
    assert {found[0].tags["slurm.node"] for found in runs.values()} == set(cluster.nodes)
    wait_for(lambda: cluster.jobs() == {}, 60)  # a job leaves the queue a moment after its result


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"partition": "mian"}, "partition=mian does not exist; did you mean main?"),
        ({"gres": "gpu:8"}, "Slurm takes no job as partition=main, gres=gpu:8, time_limit=1h: "),
        (
            {"time_limit": "2h"},
            "would never start a job as partition=main, time_limit=2h: PartitionTimeLimit",
        ),
        ({"time_limit": "none"}, "time_limit=none: a job needs a limit"),
        ({"executor": "local"}, "partition=main is for jobs of a cluster; add executor=slurm"),
    ],
)
def test_slurm_refusals_are_one_line(
    on_cluster: Place, cluster: Slurm, given: dict[str, str], told: str
) -> None:
    done = on_cluster.run(**{**TOYS, **given})
    assert done.returncode == 2, done.stdout + done.stderr
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    wait_for(lambda: cluster.jobs() == {}, 60)  # a job leaves the queue a moment after its result
    assert not stored(on_cluster)


@pytest.mark.slow
def test_missing_slurm_or_controller_is_one_line(
    on_cluster: Place, cluster: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    (on_cluster.folder / "slurm.conf").write_text(
        (cluster.folder / "slurm.conf").read_text().replace(str(cluster.port), "1")
    )
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_CONF", str(on_cluster.folder / "slurm.conf"))
        done = on_cluster.run(**TOYS)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert "executor=slurm: Slurm does not answer: " in done.stderr
    monkeypatch.setenv("PATH", str(on_cluster.folder))
    done = on_cluster.run(**TOYS)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "sbatch, srun, squeue, scancel, sinfo not found on this machine" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="a node with a mount of its own needs root")
def test_unshared_folder_is_one_line(on_cluster: Place, cluster: Slurm) -> None:
    on_cluster.journal.mkdir()
    for name in cluster.nodes:
        cluster.kill_node(name)
        cluster.start_node(name, without=on_cluster.journal)
    try:
        done = on_cluster.run(**TOYS)
    finally:
        for name in cluster.nodes:
            cluster.kill_node(name)
            cluster.start_node(name)
        wait_for(lambda: set(cluster.states().values()) == {"idle"}, 60)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stdout + done.stderr
    assert f"could not write to {on_cluster.journal}" in done.stderr
    assert (
        "give journal=DIR and cache=DIR on a file system that this machine and all nodes share"
        in done.stderr
    )
    wait_for(lambda: cluster.jobs() == {}, 60)  # a job leaves the queue a moment after its result
    assert not stored(on_cluster)


@pytest.mark.slow
def test_resume_runs_cells_of_cancelled_job(
    on_cluster: Place, cluster: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in toy_costs(step=0.1).items():
        monkeypatch.setenv(name, text)
    parent = on_cluster.start(**{**TOYS, "blocks": "1", "steps_per_epoch": "10", "epochs": "60"})
    wait_for_epochs(on_cluster, parent, 1)
    (job,) = cluster.jobs()
    cluster.ask("scancel", job)
    output, _ = ended(parent)
    assert parent.returncode == 1, output
    tags_of = {
        run.tags["framework"]: run.tags
        for name, runs in stored(on_cluster).items()
        if "block" in name
        for run in runs
    }
    assert {tags["outcome"] for tags in tags_of.values()} == {"interrupted"}
    reasons = sorted(tags["outcome_reason"] for tags in tags_of.values())
    assert reasons[0] == f"job {job} got SIGTERM"
    assert reasons[1].startswith(f"job {job} was cancelled")
    wait_for(lambda: cluster.jobs() == {}, 60)  # a job leaves the queue a moment after its result
    monkeypatch.delenv("EVENHAND_TOY_COSTS")
    resumed = on_cluster.resume(executor="local")  # and nothing of what the cluster was asked for
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    again = {
        name: [run.tags["outcome"] for run in runs]
        for name, runs in stored(on_cluster).items()
        if "block" in name
    }
    assert {name: sorted(outcomes) for name, outcomes in again.items()} == {
        name: ["interrupted", "ok"] for name in again
    }

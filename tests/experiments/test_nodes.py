"""Cells of the study `distributed` whose workers are on several nodes of a real Slurm, which these tests start."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import psutil
import pytest

from experiments.studies import distributed
from experiments.workloads.distributed import group, rank
from tests import slurm
from tests.conftest import ROOT, Place, wait_for
from tests.experiments.test_distributed import two_cpus
from tests.slurm import Slurm
from tracking.errors import EvenhandError
from tracking.store import Store

with_slurm = pytest.mark.debian(package="slurm-wlm")
SETTINGS = {
    "frameworks": "pytorch",
    "blocks": "1",
    "steps": "12",
    "figures": "false",
    "others_limit_percent": "100",
}
ON_TWO_NODES = {**SETTINGS, "executor": "slurm", "partition": "main", "nodes": "2"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm.running(nodes=2) as found:
        yield found


def command(place: Place, **given: str) -> list[str]:
    asked = {"journal": str(place.journal), "cache": str(place.cache), **given}
    return [
        sys.executable,
        "-m",
        "experiments",
        "distributed",
        *(f"--{name}={text}" for name, text in asked.items()),
    ]


def left_of(place: Place) -> list[str]:
    """What still runs of the commands of this place: everything they start keeps their working folder."""
    found = []
    for one in psutil.process_iter():
        try:
            if one.cwd() == str(place.folder):
                found.append(" ".join(one.cmdline()))
        except psutil.Error:
            continue
    return found


def refused(place: Place, said: str, **given: str) -> None:
    """One line on standard error, code 2, and nothing that is left running."""
    done = place.call(*command(place, **given))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stdout + done.stderr
    assert said in done.stderr
    wait_for(lambda: left_of(place) == [], 30)


@with_slurm
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_workers_run_on_several_nodes(on_cluster: Place, cluster: Slurm, framework: str) -> None:
    done = on_cluster.call(
        *command(on_cluster, **{**ON_TWO_NODES, "frameworks": framework, "blocks": "2"})
    )
    assert done.returncode == 3, done.stdout + done.stderr  # two blocks: no verdict
    runs = list(Store(on_cluster.uri).runs("distributed", "tags.kind = 'cell'"))
    assert sorted(
        (run.params["group"], run.tags["block"], run.tags["outcome"]) for run in runs
    ) == [(level, block, "ok") for level in ("1", "2") for block in ("1", "2")]
    first = runs[0].tags["slurm.node"]
    other = next(name for name in cluster.nodes if name != first)
    assert {run.params["group"]: run.tags["workers.nodes"] for run in runs} == {
        "1": first,
        "2": f"{first},{other}",
    }
    for shared in ("slurm.job", "slurm.nodes", "machine"):
        assert len({run.tags[shared] for run in runs}) == 1, shared
    assert runs[0].tags["slurm.nodes"] == f"{first},{other}"
    wait_for(lambda: cluster.jobs() == {} and left_of(on_cluster) == [], 60)


def workers_on(place: Place, node: str) -> list[psutil.Process]:
    """The workers of this place's cells on a node."""
    found = []
    for one in psutil.process_iter():
        try:
            if "experiments.workloads.distributed.rank" in one.cmdline() and one.cwd() == str(
                place.folder
            ):
                found += (
                    [one]
                    if one.environ().get("SLURMD_NODENAME") == node and one.name() != "srun"
                    else []
                )
        except psutil.Error:
            continue
    return found


@with_slurm
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("blow", "said"), [(signal.SIGKILL, "worker 1 was killed by SIGKILL"), (signal.SIGSTOP, "")]
)
def test_dead_worker_on_another_node_fails_cell(
    on_cluster: Place, cluster: Slurm, blow: signal.Signals, said: str
) -> None:
    given = {**ON_TWO_NODES, "steps": "4000", "patience_seconds": "8"}
    parent = on_cluster.begin(*command(on_cluster, **given))
    try:
        wait_for(lambda: any(on_cluster.journal.glob("*/cells/*/*/worker_1_of_2.log")), 300)
        wait_for(lambda: bool(workers_on(on_cluster, "n2")), 60)
        workers_on(on_cluster, "n2")[0].send_signal(blow)
        parent.wait(300)
    finally:
        parent.kill()
    assert parent.returncode == 1, parent.said
    (failed,) = (
        run
        for run in Store(on_cluster.uri).runs("distributed", "tags.kind = 'cell'")
        if run.params["group"] == "2"
    )
    assert failed.tags["outcome"] == "failed"
    assert said in failed.tags["outcome_reason"]
    wait_for(lambda: cluster.jobs() == {} and left_of(on_cluster) == [], 60)


@with_slurm
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"partition": "mian"}, "partition=mian does not exist; did you mean main?"),
        (
            {"workers": "1,4"},
            "Slurm takes no job as partition=main, time_limit=1h, nodes=2, mincpus=2: ",
        ),
        ({"workers": "1"}, "nodes=2 are more than the workers=1 that use them"),
    ],
)
def test_impossible_nodes_are_one_line(
    on_cluster: Place, cluster: Slurm, given: dict[str, str], said: str
) -> None:
    refused(on_cluster, said, **{**ON_TWO_NODES, **given})
    assert cluster.jobs() == {}


@pytest.mark.slow
@with_slurm
@pytest.mark.timeout(400)
def test_nodes_with_different_versions_are_refused(on_cluster: Place, cluster: Slurm) -> None:
    other = on_cluster.folder / "other" / "torch-0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.1\n")
    cluster.export("n2", "PYTHONPATH", f"{other.parent}:{ROOT}")
    try:
        refused(on_cluster, "runs different versions on n2: torch 0.1, ", **ON_TWO_NODES)
    finally:
        cluster.export("n2", "PYTHONPATH", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "framework", ["pytorch", pytest.param("tensorflow", marks=pytest.mark.slow)]
)
@two_cpus
def test_unreachable_rendezvous_is_one_line(place: Place, framework: str) -> None:
    given = {
        **SETTINGS,
        "frameworks": framework,
        "rendezvous": "192.0.2.1",
        "patience_seconds": "3",
    }  # reserved: RFC 5737
    refused(place, "does not reach the first at 192.0.2.1:", **given)


def test_version_check_names_node_and_package() -> None:
    first = {"python": "3.11.2", "torch": "2.15.0"}
    rank.check_versions(first, dict(first), "n2")
    with pytest.raises(EvenhandError, match=r"on n2: torch 2\.14\.1, 2\.15\.0 on the first;"):
        rank.check_versions(first, {**first, "torch": "2.14.1"}, "n2")
    with pytest.raises(EvenhandError, match=r"versions: torch missing, 2\.15\.0 on the first;"):
        rank.check_versions(first, {"python": "3.11.2"}, "")


@pytest.mark.parametrize(("workers", "nodes"), [(1, 2), (2, 2), (3, 2), (4, 2), (5, 3), (8, 3)])
def test_workers_are_spread_evenly(workers: int, nodes: int) -> None:
    places = [group.node_of(rank, workers, nodes) for rank in range(workers)]
    assert places == sorted(places)
    assert places[0] == 0
    most = distributed.Settings(workers=(1, workers), nodes=nodes, threads=2).cpus_of_a_node
    assert 2 * max(places.count(node) for node in places) == most

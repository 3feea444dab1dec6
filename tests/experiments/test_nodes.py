"""Cells of the study `distributed` with workers on several nodes of a real Slurm."""

import signal
from collections.abc import Iterator
from subprocess import CompletedProcess

import psutil
import pytest

from experiments.studies import distributed
from experiments.workloads.distributed import group, rank
from tests import slurm
from tests.conftest import ROOT, Place, wait_for
from tests.experiments.test_distributed import command, two_cpus
from tests.slurm import Slurm
from tracking.errors import EvenhandError
from tracking.store import Store

with_slurm = pytest.mark.debian(package="slurm-wlm")
ON_TWO_NODES = {"executor": "slurm", "partition": "main", "nodes": "2"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm.running(nodes=2) as cluster:
        yield cluster


def processes(place: Place) -> list[psutil.Process]:
    """Return what commands of this place have started: it keeps their working folder."""
    running = psutil.process_iter(["cwd", "cmdline", "environ", "name"])
    return [process for process in running if process.info["cwd"] == str(place.folder)]


def assert_refused(done: CompletedProcess[str], place: Place, *values: str) -> None:
    """Assert an error of one line that names these values, exit code 2, and no process left."""
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stdout + done.stderr
    assert all(value in done.stderr for value in values), done.stderr
    wait_for(lambda: processes(place) == [], 30)


@with_slurm
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_workers_run_on_several_nodes(on_cluster: Place, cluster: Slurm, framework: str) -> None:
    settings = {**ON_TWO_NODES, "frameworks": framework, "blocks": "2"}
    done = on_cluster.call(*command(on_cluster, **settings))
    assert done.returncode == 3, done.stdout + done.stderr  # two blocks: no verdict
    runs = list(Store(on_cluster.uri).runs("distributed", "tags.kind = 'cell'"))
    cells = [(run.params["group"], run.tags["block"], run.tags["outcome"]) for run in runs]
    assert sorted(cells) == [(level, block, "ok") for level in "12" for block in "12"]
    first = runs[0].tags["slurm.node"]
    other = next(name for name in cluster.nodes if name != first)
    nodes = {run.params["group"]: run.tags["workers.nodes"] for run in runs}
    assert nodes == {"1": first, "2": f"{first},{other}"}
    for shared in ("slurm.job", "slurm.nodes", "machine"):
        assert len({run.tags[shared] for run in runs}) == 1, shared
    assert runs[0].tags["slurm.nodes"] == f"{first},{other}"
    wait_for(lambda: cluster.jobs() == {} and processes(on_cluster) == [], 60)


def workers_on(place: Place, node: str) -> list[psutil.Process]:
    """Return the workers of this place's cells on a node."""
    return [
        process
        for process in processes(place)
        if "experiments.workloads.distributed.rank" in (process.info["cmdline"] or ())
        and process.info["name"] != "srun"
        and (process.info["environ"] or {}).get("SLURMD_NODENAME") == node
    ]


@with_slurm
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "reason"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSTOP, "")])
def test_dead_worker_on_another_node_fails_cell(
    on_cluster: Place, cluster: Slurm, number: signal.Signals, reason: str
) -> None:
    settings = {**ON_TWO_NODES, "steps": "4000", "patience_seconds": "8"}
    parent = on_cluster.begin(*command(on_cluster, **settings))
    try:
        wait_for(lambda: any(on_cluster.journal.glob("*/cells/*/*/worker_1_of_2.log")), 300)
        wait_for(lambda: bool(workers_on(on_cluster, "n2")), 60)
        workers_on(on_cluster, "n2")[0].send_signal(number)
        parent.wait(300)
    finally:
        parent.kill()
    assert parent.returncode == 1, parent.output
    runs = Store(on_cluster.uri).runs("distributed", "tags.kind = 'cell'")
    (tags,) = (run.tags for run in runs if run.params["group"] == "2")
    assert tags["outcome"] == "failed"
    assert reason in tags["outcome_reason"]
    wait_for(lambda: cluster.jobs() == {} and processes(on_cluster) == [], 60)


@with_slurm
@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"workers": "1,4"}, ["--nodes=2", "--mincpus=2"]),
        ({"workers": "1"}, ["nodes=2", "workers=1"]),
    ],
)
def test_impossible_nodes_are_one_line(
    on_cluster: Place, cluster: Slurm, settings: dict[str, str], values: list[str]
) -> None:
    done = on_cluster.call(*command(on_cluster, **{**ON_TWO_NODES, **settings}))
    assert_refused(done, on_cluster, *values)
    assert cluster.jobs() == {}


@with_slurm
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nodes_with_different_versions_are_refused(on_cluster: Place, cluster: Slurm) -> None:
    package = on_cluster.folder / "other" / "torch-0.1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.1\n")
    cluster.export("n2", "PYTHONPATH", f"{package.parent}:{ROOT}")
    try:
        done = on_cluster.call(*command(on_cluster, **ON_TWO_NODES))
    finally:
        cluster.export("n2", "PYTHONPATH", "")
    assert_refused(done, on_cluster, "n2", "torch 0.1")


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@two_cpus
def test_unreachable_rendezvous_is_one_line(place: Place, framework: str) -> None:
    address = "192.0.2.1"  # reserved: RFC 5737
    settings = {"frameworks": framework, "rendezvous": address, "patience_seconds": "3"}
    done = place.call(*command(place, **settings))
    assert_refused(done, place, address)


@pytest.mark.parametrize(
    ("other", "node"), [({"python": "3.11.2", "torch": "2.14.1"}, "n2"), ({"python": "3.11.2"}, "")]
)
def test_version_check_names_node_and_package(other: dict[str, str], node: str) -> None:
    first = {"python": "3.11.2", "torch": "2.15.0"}
    rank.check_versions(first, dict(first), node)
    values = f"{node}.*torch {other.get('torch', 'missing')}, 2.15.0"
    with pytest.raises(EvenhandError, match=values):
        rank.check_versions(first, other, node)


@pytest.mark.parametrize(("workers", "nodes"), [(1, 2), (2, 2), (3, 2), (4, 2), (5, 3), (8, 3)])
def test_workers_are_spread_evenly(workers: int, nodes: int) -> None:
    places = [group.node_of(rank, workers, nodes) for rank in range(workers)]
    assert places == sorted(places)
    assert places[0] == 0
    most = distributed.Settings(workers=(1, workers), nodes=nodes, threads=2).cpus_of_a_node
    assert 2 * max(places.count(node) for node in places) == most

"""Campaigns on a real Slurm, which these tests start: blocks stay on one node, and every end is an outcome with its reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import slurm
from tests.conftest import Place
from tests.faults.test_campaign import stored
from tests.slurm import Slurm

pytestmark = pytest.mark.skipif(bool(slurm.MISSING), reason=slurm.MISSING)

# The toy framework starts at once.
TOYS = {"frameworks": "toy,toy+twin", "data": "synthetic", "vocabulary": "60", "length": "8", "bleu_images": "1"}
TOYS |= {"epochs": "2", "steps_per_epoch": "2", "inference_requests": "2", "executor": "slurm", "partition": "main"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm.running(nodes=2) as found:
        yield found


@pytest.fixture
def on_cluster(place: Place, cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place whose commands find the cluster."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, cluster.environment[name])
    return place


def test_a_campaign_runs_as_jobs_and_its_blocks_stay_on_one_node(on_cluster: Place, cluster: Slurm) -> None:
    done = on_cluster.run(**TOYS, blocks="3", nodes="2")
    assert done.returncode == 3, done.stdout + done.stderr  # three blocks have no verdict
    runs = {name: found for name, found in stored(on_cluster).items() if "block" in name}
    assert sorted(runs) == sorted(f"{name} · block {block}" for name in ("toy", "toy+twin") for block in (1, 2, 3))
    assert {run.tags["outcome"] for found in runs.values() for run in found} == {"ok"}
    assert [len(found) for found in runs.values()] == [1] * 6
    for block in (1, 2, 3):
        both = [runs[f"{name} · block {block}"][0].tags for name in ("toy", "toy+twin")]
        assert both[0]["slurm.job"] == both[1]["slurm.job"]
        assert both[0]["slurm.node"] == both[1]["slurm.node"]
    assert {found[0].tags["slurm.node"] for found in runs.values()} == set(cluster.nodes)
    assert cluster.jobs() == {}

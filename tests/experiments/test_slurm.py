"""Campaigns on a real Slurm, which these tests start."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from subprocess import CompletedProcess

import pytest

from experiments.config.settings import CampaignSettings
from experiments.run.backends import selection
from tests import slurm
from tests.conftest import QUICK, ROOT, Place, set_toy_costs, titled, wait_for
from tests.experiments.race import races
from tests.faults.test_campaign import stored, wait_for_epochs
from tests.slurm import Slurm
from tests.tracking.postgres import Postgres
from tests.warm import Process
from tracking.errors import ErrorCode, UsageError
from tracking.store import Store

with_slurm = pytest.mark.debian(package="slurm-wlm")

# The toy framework starts at once.
TOYS = {
    "frameworks": "toy,toy+twin",
    "data": "synthetic",
    "vocabulary": "60",
    "length": "8",
    "bleu_images": "1",
    "epochs": "2",
    "steps_per_epoch": "2",
    "inference_requests": "2",
    "executor": "slurm",
    "partition": "main",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm.running(nodes=2) as cluster:
        yield cluster


def wait_for_end(parent: Process, seconds: float = 120) -> str:
    """Return what a campaign printed until its end; one that does not end is killed."""
    try:
        return parent.communicate(timeout=seconds)[0]
    finally:
        if parent.poll() is None:
            parent.kill()


def stored_cells(place: Place) -> dict[str, list[dict[str, str]]]:
    """Return the tags of all runs of every cell by its name."""
    return {
        name: [run.tags for run in runs] for name, runs in stored(place).items() if "block" in name
    }


@with_slurm
def test_campaign_runs_as_jobs_with_one_node_per_block(on_cluster: Place, cluster: Slurm) -> None:
    done = on_cluster.run(**TOYS, blocks="2", nodes="2")
    assert done.returncode == 3, done.stdout + done.stderr  # two blocks have no verdict
    cells = stored_cells(on_cluster)
    assert {name: [tags["outcome"] for tags in runs] for name, runs in cells.items()} == {
        f"{name} · block {block}": ["ok"] for name in ("toy", "toy+twin") for block in (1, 2)
    }
    for place_tag in ("slurm.job", "slurm.node"):
        places = {
            block: {cells[f"{name} · block {block}"][0][place_tag] for name in ("toy", "toy+twin")}
            for block in (1, 2)
        }
        assert len(places[1]) == len(places[2]) == 1
        assert places[1] != places[2]
    wait_for(lambda: cluster.jobs() == {}, 60)  # a job leaves the queue a moment after its result


RACE = """
[levels.good]
command = "sleep 0.1; echo '{\\"speed\\": 7.5}'"
[levels.fails]
command = "echo the key is $API_TOKEN >&2; exit 3"
env = {API_TOKEN = "geheim-1234"}
"""


@with_slurm
def test_race_runs_as_a_job_and_a_failing_level_is_an_outcome(
    on_cluster: Place, cluster: Slurm
) -> None:
    (on_cluster.folder / "race.toml").write_text(RACE)
    settings = {"executor": "slurm", "partition": "main", "figures": "false"}
    done = on_cluster.call(*races.command(on_cluster, file="race.toml", **settings))
    assert done.returncode == 1, done.stdout + done.stderr
    runs = races.by_level(on_cluster)
    good, fails = races.tags(runs["good"]), races.tags(runs["fails"])
    assert (good["outcome"], fails["outcome"]) == ("ok", "failed")
    assert runs["good"].data.metrics["speed"] == 7.5
    assert runs["good"].data.metrics["memory/peak_tree_bytes"] > 0
    assert (fails["exit_code"], good["slurm.node"]) == ("3", fails["slurm.node"])
    assert "the key is ***" in fails["outcome_reason"]


def assert_refused(done: CompletedProcess[str], *values: str) -> None:
    """Assert an error of one line that names these values, and exit code 2."""
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stdout + done.stderr
    assert all(value in done.stderr for value in ("executor=slurm", *values)), done.stderr


@with_slurm
@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"partition": "mian"}, ["--partition=mian"]),
        ({"gres": "gpu:8"}, ["--partition=main", "--gres=gpu:8"]),
        ({"time_limit": "2h"}, ["--time=120", "PartitionTimeLimit"]),
    ],
)
def test_slurm_refusal_names_the_request(
    on_cluster: Place, cluster: Slurm, settings: dict[str, str], values: list[str]
) -> None:
    assert_refused(on_cluster.run(**{**TOYS, **settings}), *values)
    wait_for(lambda: cluster.jobs() == {}, 60)
    assert not stored(on_cluster)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"partition": "main"}, ErrorCode.CONFLICT),
        ({"executor": "slurm", "time_limit": "none"}, ErrorCode.MISSING_VALUE),
        ({"executor": "slurm"}, ErrorCode.UNSUPPORTED),
    ],
)
def test_settings_of_a_cluster_are_checked(
    settings: dict[str, str], code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError) as error:
        selection.check(replace(CampaignSettings(), **settings))
    assert error.value.code is code


@with_slurm
@pytest.mark.slow
def test_unreachable_controller_is_one_line(
    on_cluster: Place, cluster: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = on_cluster.folder / "slurm.conf"
    text = (cluster.folder / "slurm.conf").read_text()
    configuration.write_text(text.replace(str(cluster.ports[0]), "1"))
    monkeypatch.setenv("SLURM_CONF", str(configuration))
    assert_refused(on_cluster.run(**TOYS))


@with_slurm
@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="a node with its own mount needs root")
@pytest.mark.parametrize("name", ["journal", "project"])
def test_unshared_folder_is_one_line(on_cluster: Place, cluster: Slurm, name: str) -> None:
    folder = {"journal": on_cluster.journal, "project": ROOT}[name]
    folder.mkdir(exist_ok=True)
    with cluster.without(folder):
        done = on_cluster.run(**TOYS)
    assert_refused(done, str(folder))
    wait_for(lambda: cluster.jobs() == {}, 60)
    assert not stored(on_cluster)


@with_slurm
@pytest.mark.slow
def test_resume_runs_cells_of_cancelled_job(
    on_cluster: Place, cluster: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_toy_costs(monkeypatch, step=0.1)
    parent = on_cluster.start(**{**TOYS, "blocks": "1", "steps_per_epoch": "10", "epochs": "60"})
    wait_for_epochs(on_cluster, parent, 1)
    (job,) = cluster.jobs()
    cluster.ask("scancel", job)
    output = wait_for_end(parent)
    assert parent.returncode == 1, output
    assert "CANCELLED" in output
    ((cell,),) = stored_cells(on_cluster).values()
    assert cell["outcome"] == "interrupted"
    assert job in cell["outcome_reason"]
    wait_for(lambda: cluster.jobs() == {}, 60)
    monkeypatch.delenv("EVENHAND_TOY_COSTS")
    resumed = on_cluster.resume(executor="local")  # and none of the options of the cluster
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    outcomes = [{tags["outcome"] for tags in runs} for runs in stored_cells(on_cluster).values()]
    assert sorted(outcomes, key=len) == [{"ok"}, {"interrupted", "ok"}]


@with_slurm
@pytest.mark.slow
def test_sweep_workers_run_as_jobs(on_cluster: Place, cluster: Slurm, postgres: Postgres) -> None:
    options = {
        **TOYS,
        "experiment": "captioning",
        "search": "learning_rate=0.05|0.02|0.01|0.005",
        "objectives": "loss",
        "frameworks": "toy",
        "sampler": "grid",
        "trials": "4",
        "confirm": "false",
        "storage": postgres.database("jobs"),
        "nodes": "2",
    }
    done = on_cluster.call(*on_cluster.command("sweep", **options))
    assert done.returncode == 3, done.stdout + done.stderr
    trials = list(Store(on_cluster.uri).runs("captioning", "tags.kind = 'trial'"))
    assert {run.status for run in trials} == {"FINISHED"}
    assert 4 <= len(trials) <= 5  # two workers may begin the last one at the same moment
    assert {run.tags["slurm.node"] for run in trials} <= set(cluster.nodes)
    assert len(list(on_cluster.journal.glob("*/jobs/submitted/*_result.pkl"))) == 2
    wait_for(lambda: cluster.jobs() == {}, 60)


def params(place: Place, **settings: str) -> dict[str, str]:
    small = {name: text for name, text in TOYS.items() if name not in ("executor", "partition")}
    folders = {"cache": str(place.cache), "journal": str(place.journal)}
    return {**QUICK, **small, **folders, **settings}


def mlflow_run(place: Place, **settings: str) -> list[str]:
    """Return the call of `mlflow run -b evenhand-slurm` in the user's experiment."""
    command = [sys.executable, "-m", "mlflow", "run", str(ROOT), "-e", "captioning"]
    command += ["-b", "evenhand-slurm", "--backend-config", '{"partition": "main"}']
    command += ["--experiment-name", "captioning"]
    return [*command, *(f"-P{name}={text}" for name, text in params(place, **settings).items())]


@with_slurm
@pytest.mark.slow
def test_project_backend_runs_the_campaign_as_jobs(on_cluster: Place, cluster: Slurm) -> None:
    done = on_cluster.call(*mlflow_run(on_cluster, blocks="1"))
    assert done.returncode == 0, done.stdout + done.stderr
    runs = {titled(run): run for run in Store(on_cluster.uri).runs("captioning")}
    assert {name: run.status for name, run in runs.items()} == dict.fromkeys(
        ("captioning demo", "toy · block 1", "toy+twin · block 1"), "FINISHED"
    )
    assert runs["toy · block 1"].tags["slurm.node"] in cluster.nodes
    campaign = runs["captioning demo"]
    assert campaign.tags["mlflow.project.backend"] == "evenhand-slurm"
    assert (campaign.params["executor"], campaign.params["partition"]) == ("slurm", "main")


@with_slurm
@pytest.mark.slow
def test_interrupted_project_backend_cancels_its_jobs(
    on_cluster: Place, cluster: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_toy_costs(monkeypatch, step=0.1)
    command = mlflow_run(on_cluster, blocks="1", steps_per_epoch="10", epochs="60")
    runner = on_cluster.begin(*command)
    wait_for_epochs(on_cluster, runner, 1)
    assert cluster.jobs()
    os.killpg(runner.pid, signal.SIGINT)
    assert runner.wait(120) == 1, runner.output
    wait_for(lambda: cluster.jobs() == {}, 60)
    runs = list(Store(on_cluster.uri).runs("captioning"))
    assert {run.tags["outcome"] for run in runs} == {"interrupted"}
    assert "RUNNING" not in {run.status for run in runs}


CANCELLED = """
import time
from pathlib import Path
import mlflow
run = mlflow.projects.run(
    {project!r},
    "captioning",
    parameters={params!r},
    experiment_name="captioning",
    backend="evenhand-slurm",
    backend_config={{"partition": "main"}},
    synchronous=False,
)
while not Path("is_measuring").exists():
    time.sleep(0.1)
run.cancel()
Path("status").write_text(run.get_status())
"""


@with_slurm
@pytest.mark.slow
def test_cancelled_run_cancels_its_jobs(
    on_cluster: Place, cluster: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_toy_costs(monkeypatch, step=0.1)
    values = params(on_cluster, blocks="1", steps_per_epoch="10", epochs="60")
    script = CANCELLED.format(project=str(ROOT), params=values)
    process = on_cluster.begin(sys.executable, "-c", script)
    wait_for_epochs(on_cluster, process, 1)
    (on_cluster.folder / "is_measuring").touch()
    assert process.wait(120) == 0, process.output
    assert (on_cluster.folder / "status").read_text() == "FAILED"
    wait_for(lambda: cluster.jobs() == {}, 60)
    assert {run.tags["outcome"] for run in Store(on_cluster.uri).runs("captioning")} == {
        "interrupted"
    }

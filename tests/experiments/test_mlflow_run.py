"""`mlflow run . -e captioning`: the runner's run leads to the campaign."""

from __future__ import annotations

import signal
import sys

import psutil
import pytest

from models.frameworks import available, missing
from tests.conftest import QUICK, ROOT, Place, are_gone, set_toy_costs, wait_for
from tests.experiments import small_campaigns
from tracking.records import StoredRun
from tracking.store import Store


def command(place: Place, *options: str, **overrides: str) -> list[str]:
    small = {"data": "synthetic", "vocabulary": "60", "length": "8", "frameworks": "toy"}
    folders = {"cache": str(place.cache), "journal": str(place.journal)}
    settings = {**QUICK, **small, **folders, **overrides}
    parameters = [part for name, value in settings.items() for part in ("-P", f"{name}={value}")]
    call = [sys.executable, "-m", "mlflow", "run", str(ROOT), "-e", "captioning"]
    return [*call, "--env-manager", "local", *options, *parameters]


def launch(place: Place, experiment: str, *options: str, **overrides: str) -> dict[str, StoredRun]:
    """Run a campaign and return the last run of each kind in an experiment."""
    done = place.call(*command(place, *options, **overrides))
    # the runner would take 3 (no verdict) for a failure
    assert done.returncode == 0, done.stdout + done.stderr
    return {run.tags["kind"]: run for run in Store(place.uri).runs(experiment)}


def test_launch_in_default_leads_to_its_campaign(place: Place) -> None:
    campaign = launch(place, "captioning", blocks="1")["campaign"]
    (runner,) = Store(place.uri).runs("Default")
    assert (runner.tags["kind"], runner.tags["campaign"]) == ("launch", campaign.run_id)
    assert campaign.name in runner.name
    assert campaign.run_id in runner.tags["mlflow.note.content"]
    assert campaign.tags["mlflow.source.type"] == "PROJECT"
    assert runner.status == campaign.status == "FINISHED"


@pytest.mark.slow
def test_launch_in_the_users_experiment_is_the_campaign(place: Place) -> None:
    runs = launch(place, "mine", "--experiment-name", "mine", blocks="1", warmup_steps="2")
    assert runs["cell"].tags["campaign"] == runs["campaign"].run_id
    params = runs["campaign"].params
    assert (params["warmup_steps"], params["learning_rate"]) == ("2", "0.001")


def test_killed_runner_ends_the_campaign(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    set_toy_costs(monkeypatch, step=0.2)
    store = Store(place.uri)
    list(store.runs("captioning"))  # two processes that create a database at once fail in MLflow
    runner = place.begin(*command(place, blocks="2", epochs="40"))

    def is_measuring() -> bool:
        assert runner.poll() is None, runner.output
        return any(run.tags.get("kind") == "cell" for run in store.runs("captioning"))

    wait_for(is_measuring, 120)
    children = psutil.Process(runner.pid).children(recursive=True)
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    wait_for(lambda: are_gone(children), 60)
    runs = {run.tags["kind"]: run for run in store.runs("captioning")}
    assert (runs["campaign"].status, runs["cell"].status) == ("KILLED", "KILLED")
    assert "SIGTERM" in runs["campaign"].tags["outcome_reason"]


@pytest.mark.slow
def test_every_framework_and_variant_runs_the_study(place: Place) -> None:
    names = [name for name in available() if not missing(name)]
    launch(place, "captioning", data="scenes", frameworks=",".join(names), blocks="1")
    cells = small_campaigns.cells(place)
    assert {run.data.tags["framework"] for run in cells if run.info.status == "FINISHED"} == {
        *names
    }
    losses = [run.data.metrics["check/initial_loss"] for run in cells]
    assert max(losses) - min(losses) < 1e-5 * min(losses)

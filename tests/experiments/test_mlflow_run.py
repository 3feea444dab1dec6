"""What MLflow shows; `mlflow run . -e captioning`, and `-b evenhand-slurm` without Slurm."""

import json
import math
import signal
import sys
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest

from experiments import metrics, studies, workloads
from experiments.cli import project_backend
from experiments.config import settings as settings_
from experiments.run import cell_run, mlflow_run
from experiments.run.recorder import shown_and_details
from models.frameworks import available, missing
from tests.conftest import QUICK, ROOT, Place, are_gone, set_toy_costs, wait_for
from tests.experiments import small_campaigns
from tests.experiments.datasets.folders import refused
from tracking.errors import ErrorCode
from tracking.links import OUR_VIEW, VIEWS
from tracking.records import Metrics, Point, RunOpened, StoredRun
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


def run_project(
    place: Place, project: Path, entry_point: str, config: dict[str, Any], *options: str
) -> tuple[int, str]:
    """Return exit code and errors of `mlflow run -b evenhand-slurm`."""
    file = place.folder / "cluster.json"
    file.write_text(json.dumps(config))
    command = [sys.executable, "-m", "mlflow", "run", str(project), "-e", entry_point]
    command += ["-b", "evenhand-slurm", "--backend-config", str(file), *options]
    done = place.call(*command)
    return done.returncode, done.stderr


def test_parameters_override_the_configuration() -> None:
    config = {"partition": "gpu", "nodes": 4, "time_limit": "1h", "figures": False}
    config |= {"frameworks": ["pytorch", "tensorflow"]}
    params = {"nodes": "2", "time-limit": "2h", "blocks": "12"}
    assert project_backend.parameters("captioning", config, params) == {
        "executor": "slurm",
        "partition": "gpu",
        "nodes": "2",
        "time-limit": "2h",
        "figures": "false",
        "frameworks": "pytorch,tensorflow",
        "blocks": "12",
    }
    of_sweep = project_backend.parameters("sweep", {"nodes": 8, "trials": 40}, {})
    assert of_sweep == {"executor": "slurm", "nodes": "8", "trials": "40"}


@pytest.mark.parametrize(
    ("entry_point", "config", "code"),
    [
        ("compare", {}, ErrorCode.UNSUPPORTED),
        ("import", {}, ErrorCode.UNSUPPORTED),
        ("captioning", {"partitoin": "gpu"}, ErrorCode.UNKNOWN_NAME),
    ],
)
def test_unusable_configuration_is_refused(
    entry_point: str, config: dict[str, Any], code: ErrorCode
) -> None:
    with refused(code):
        project_backend.parameters(entry_point, config, {})


def test_other_project_is_refused_without_a_run(place: Place) -> None:
    project = place.folder / "project"
    project.mkdir()
    marker = place.folder / "started"
    entry = f"entry_points:\n  captioning:\n    command: touch {marker}\n"
    (project / "MLproject").write_text(f"name: other\n{entry}")
    code, errors = run_project(place, project, "captioning", {})
    assert (code, errors.count("evenhand-slurm"), "Traceback" in errors) == (1, 1, False), errors
    assert str(project)[-40:] in errors
    assert not marker.exists()
    assert list(Store(place.uri).runs("Default")) == []


def test_refused_campaign_is_a_failed_run(place: Place) -> None:
    config = {"partition": "main", "time_limit": "none"}
    code, errors = run_project(place, ROOT, "captioning", config, "-P", "partition=gpu")
    assert code == 1, errors
    (run,) = Store(place.uri).runs("Default")
    assert run.status == "FAILED"
    assert run.tags["mlflow.project.backend"] == "evenhand-slurm"
    assert run.params == {"executor": "slurm", "partition": "gpu", "time_limit": "none"}


ASYNCHRONOUS = """
import mlflow
run = mlflow.projects.run(
    {project!r},
    "captioning",
    parameters={{"time_limit": "none"}},
    backend="evenhand-slurm",
    synchronous=False,
)
print(run.get_status())
"""


@pytest.mark.slow
def test_process_waits_at_exit_for_an_asynchronous_run(place: Place) -> None:
    done = place.call(sys.executable, "-c", ASYNCHRONOUS.format(project=str(ROOT)))
    assert (done.returncode, done.stdout.split()) == (0, ["RUNNING"]), done.stderr
    (run,) = Store(place.uri).runs("Default")
    assert run.status == "FAILED"


# ---- what MLflow shows of studies: metrics, data sets, charts

FEW = {"images": "40", "batch_size": "8", "steps_per_epoch": "4", "validation_captions": "8"}
NEEDED = {"captioning": FEW, "race": {"level": "a=true"}}


def test_metrics_are_split_into_shown_ones_and_details() -> None:
    values = {
        "train/examples_per_second": 12.5,
        "inference/latency_seconds_p50": 0.0033,
        "inference/batch_8/latency_seconds_p50": 0.0064,
        "inference/batch_8/latency_seconds_p95": 0.0085,
        "check/initial_loss": math.inf,
        "gpu/temperature_celsius_max": 60.0,
        "own/metric": 1.0,
        "system/cpu_utilization_percentage": 50.0,
    }
    points = tuple(Point(key, value, 3, 7) for key, value in values.items())
    shown, details = shown_and_details(Metrics("r", points))
    assert (shown.detail, details.detail) == (False, True)
    assert {point.key: point.value for point in shown.points} == {
        "train/examples_per_second": 12.5,
        "inference/latency_milliseconds_p50": pytest.approx(3.3),
        "inference/batch_8/latency_milliseconds_p50": pytest.approx(6.4),
        "own/metric": 1.0,
        "system/cpu_utilization_percentage": 50.0,
    }
    everything = {point.key: point.value for point in (*shown.points, *details.points)}
    assert metrics.without_copies(everything) == values
    foreign = {"mine/latency_milliseconds_p50": 3.0}  # without seconds, it is no copy
    assert metrics.without_copies(foreign) == foreign


def test_data_set_and_charts_of_every_study(place: Place) -> None:
    store = Store(place.uri)
    for name in studies.available():
        study = studies.load(name)
        texts = {"cache": str(place.cache), "journal": str(place.journal)}
        texts |= NEEDED.get(name, {})
        settings = settings_.parse(study.settings, study.presets, texts)
        data = workloads.load(study.workload).prepare(settings, lambda *_: None).dataset
        assert bool(data.name) == (name != "race")  # commands are no data set
        if data.name:
            records = [RunOpened(name, 1, name, name), cell_run.dataset_used(name, data)]
            assert store.apply(records, place.folder) == []
            (run,) = store.runs(name)
            (used,) = store._client.get_run(run.run_id).inputs.dataset_inputs
            assert mlflow.data.get_source(used).to_dict()["tags"]["description"]

        mlflow_run.describe(store, name, study)
        tags = store._client.get_experiment_by_name(name).tags
        primary = tags["mlflow.experiment.primaryMetric.name"]
        assert metrics.shown_name(study.primary[0]) == primary
        is_rate = str(primary.endswith("per_second"))
        assert tags["mlflow.experiment.primaryMetric.greaterIsBetter"] == is_rate
        view = json.loads(tags[f"{VIEWS}{OUR_VIEW}"])
        assert view["compareRunCharts"][0]["metricKey"] == primary
        assert view["compareRunSections"][0]["uuid"] == OUR_VIEW
        side = "framework" if study.factor == "framework" else "treatment"
        assert {f"metrics.`{primary}`", f"tags.`{side}`"} <= set(view["selectedColumns"])

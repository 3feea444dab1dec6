"""Tests of what MLflow shows of studies: metrics, data sets, charts."""

from __future__ import annotations

import json
import math

import mlflow
import pytest

from experiments import metrics, studies, workloads
from experiments.config import settings as settings_
from experiments.run import cell_run, mlflow_run
from experiments.run.recorder import shown_and_details
from tests.conftest import Place
from tracking.links import OUR_VIEW, VIEWS
from tracking.records import Metrics, Point, RunOpened
from tracking.store import Store

SMALL = {"images": "40", "batch_size": "8", "steps_per_epoch": "4", "validation_captions": "8"}
NEEDED = {"captioning": SMALL, "race": {"level": "a=true"}}


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

"""Trainings at other batch sizes: the same examples an epoch, and enough steps to be measured."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.config import settings as settings_
from experiments.config.settings import CampaignSettings
from experiments.planning import length
from experiments.planning.length import Length
from experiments.studies import captioning
from experiments.sweep import requests, space
from experiments.sweep.requests import SweepRequest
from experiments.sweep.settings import Sweep
from experiments.workloads import steps
from tracking.errors import ErrorCode, UsageError

CAPTIONS = {"training_captions": 1_360}  # of scenes
SHORT = {"epochs": "2", "steps_per_epoch": "30"}  # too few steps for the largest batches


def demo(**texts: str) -> captioning.Settings:
    return settings_.parse(captioning.Settings, captioning.STUDY.presets, texts)


def of(
    settings: CampaignSettings,
    searched: frozenset[str] = frozenset(),
    counts: dict[str, int] = CAPTIONS,
) -> Length:
    trained = length.of(captioning.STUDY, settings, counts, searched)
    assert trained is not None
    return trained


def make_request(search: str, texts: dict[str, str] | None = None, **sweep: Any) -> SweepRequest:
    request = requests.parse(Sweep(search=search, **sweep), texts or {})
    return requests.with_length(request, CAPTIONS)


def test_every_batch_size_of_the_documented_search_runs_on_the_defaults() -> None:
    request = make_request("batch_size=8..256:log,framework=pytorch|tensorflow")
    for size in range(8, 257):
        settings: Any = space.settled(
            request.base, request.goal.dimensions, {"batch_size": size, "framework": "pytorch"}
        )
        steps.check(settings, 1_360, "training captions", "scenes")  # raises
        seen = settings.steps_per_epoch * size
        assert 1_280 - size < seen <= 1_280, "the examples of 40 steps of 32, whole batches of them"
        measured = settings.epochs * settings.steps_per_epoch - settings.warmup_steps
        assert measured >= captioning.STUDY.scaling.measured_steps
        fewer = (settings.epochs - 1) * settings.steps_per_epoch - settings.warmup_steps
        assert settings.epochs == 8 or fewer < captioning.STUDY.scaling.measured_steps, (
            "no epoch more than that takes"
        )


def test_default_batch_size_trains_unchanged() -> None:
    assert of(demo()).settings(32) == {}
    assert of(demo()).steps(32) == 8 * 40
    short = demo(epochs="1", steps_per_epoch="3", warmup_steps="2")
    assert of(short).settings(32) == {}
    assert of(short).settings(96) == {"steps_per_epoch": 1, "epochs": 3}, (
        "a single step is measured by default: no more"
    )


def test_searched_settings_are_never_changed() -> None:
    assert of(demo(), frozenset({"epochs"})).settings(256) == {"steps_per_epoch": 5}
    assert of(demo(), frozenset({"steps_per_epoch"})).settings(256) == {}
    request = make_request("batch_size=8..256:log,epochs=4..8")
    assert (
        space.settled(
            request.base, request.goal.dimensions, {"batch_size": 256, "epochs": 5}
        ).epochs
        == 5
    )  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("metric", "rate"),
    [
        ("train/examples_per_second", True),
        ("energy/joules_per_example", True),
        ("memory/peak_rss_bytes", True),
        ("inference/latency_seconds_p50", True),
        ("train/step_seconds", True),
        ("train/total_seconds", False),
        ("train/epoch_seconds", False),
        ("energy/joules", False),
        ("val/loss", False),
        ("val/accuracy", False),
        ("train/to_accuracy_90_percent_seconds", False),
        ("somebody's/own", False),
    ],
)
def test_rates_do_not_depend_on_the_length_of_training(metric: str, rate: bool) -> None:
    assert length.is_rate(metric) is rate


@pytest.mark.parametrize(
    "options", [{"objectives": "time"}, {"objectives": "loss"}, {"constraints": "val/loss<2.5"}]
)
def test_trainings_of_different_length_are_compared_by_rates_only(options: dict[str, str]) -> None:
    with pytest.raises(UsageError) as error:
        requests.check_rates(make_request("batch_size=8|32|256", SHORT, **options))
    assert error.value.code is ErrorCode.CONFLICT
    # 8: 120 steps, 2 epochs; 256: 3 steps, 8 epochs, for 10 + 12 steps
    assert "1,920" in str(error.value)
    assert "6,144" in str(error.value)
    requests.check_rates(make_request("batch_size=8|32|256", SHORT))
    requests.check_rates(make_request("dropout=0.1|0.2", SHORT, **options))

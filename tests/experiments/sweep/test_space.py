"""Search spaces, goals and lengths of trainings, and the errors of malformed searches."""

from __future__ import annotations

import math
from typing import Any

import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from experiments.config.settings import CampaignSettings
from experiments.config.settings import parse as parse_settings
from experiments.planning import length
from experiments.planning.length import Length
from experiments.studies import captioning, grid
from experiments.sweep import goals, requests, space
from experiments.sweep.requests import SweepRequest
from experiments.sweep.settings import Sweep
from experiments.workloads import steps
from tracking.errors import ErrorCode, UsageError

INVALID, UNKNOWN, MISSING = (
    ErrorCode.INVALID_VALUE,
    ErrorCode.UNKNOWN_NAME,
    ErrorCode.MISSING_VALUE,
)


def parse(text: str) -> tuple[space.Dimension, ...]:
    return space.parse(text, captioning.Settings)


def test_ranges_choices_and_lists_become_settings_of_the_right_type() -> None:
    size, rate, dropout, framework, beams = parse(
        "batch_size=8..256:log, learning_rate=1e-4..1e-1:log, dropout=0..0.5:0.1, "
        "framework=pytorch|tensorflow+xla, beams=1|3"
    )
    assert size.distribution == IntDistribution(8, 256, log=True)
    assert rate.distribution == FloatDistribution(1e-4, 1e-1, log=True)
    assert dropout.distribution == FloatDistribution(0, 0.5, step=0.1)
    assert framework.settled("tensorflow+xla") == {"frameworks": ("tensorflow+xla",)}
    assert size.settled(64) == {"batch_size": 64}
    assert beams.choices == (1, 3)
    dimensions = space.parse("model=resnet18|vgg16,batch_size=1..8", grid.Settings)
    settings: Any = space.settled(grid.Settings(), dimensions, {"model": "vgg16", "batch_size": 4})
    assert (settings.models, settings.batch_sizes) == (("vgg16",), (4,))
    widest: Any = space.widest(grid.Settings(), dimensions)
    assert widest.models == ("resnet18", "vgg16")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("batch_size=8..64:log", (8, 16, 32, 64)),
        ("batch_size=8..100:log", (8, 16, 32, 64, 100)),
        ("batch_size=2..8:3", (2, 5, 8)),
        ("dropout=0..0.3:0.1", pytest.approx((0.0, 0.1, 0.2, 0.3))),
        ("beams=3..5", (3, 4, 5)),
        ("formulation=prefix|sequence", ("prefix", "sequence")),
    ],
)
def test_grid_has_both_ends_of_a_range(text: str, values: tuple[space.Value, ...]) -> None:
    assert parse(text)[0].grid() == values


MALFORMED: dict[str, ErrorCode] = {
    "": MISSING,
    "batchsize=8..16": UNKNOWN,
    "blocks=1..6": UNKNOWN,  # a setting of the campaign
    "batch_size=8..16,batch_size=1..2": ErrorCode.DUPLICATE,
    "batch_size": INVALID,
    "batch_size=64..8": INVALID,
    "batch_size=8": INVALID,
    "batch_size=8|8": INVALID,
    "batch_size=8..lots": INVALID,
    "batch_size=8..16:log:2": INVALID,
    "batch_size=8..16:40": INVALID,
    "learning_rate=0..1:log": INVALID,
    "learning_rate=0..inf": INVALID,
    "formulation=a..b": INVALID,
    "batch_size=0..16": INVALID,
    "formulation=prefix|words": INVALID,
}
CONFLICT, UNSUPPORTED = ErrorCode.CONFLICT, ErrorCode.UNSUPPORTED
ON_NODES = {"executor": "slurm", "nodes": "2"}


@pytest.mark.parametrize(
    ("sweep", "texts", "code", "named"),
    [
        *(({"search": text}, {}, code, text.partition("=")[0]) for text, code in MALFORMED.items()),
        ({"objectives": ""}, {}, MISSING, "objectives"),
        ({"objectives": "thrughput"}, {}, UNKNOWN, "throughput"),
        ({"objectives": "acuracy"}, {}, UNKNOWN, "acuracy"),  # the experiment has none
        ({"objectives": "throughput:up"}, {}, INVALID, "throughput:max"),
        ({"objectives": "power/watts_mean"}, {}, INVALID, "watts_mean"),  # without a direction
        ({"objectives": "loss,val/loss"}, {}, ErrorCode.DUPLICATE, "val/loss"),
        ({"constraints": "memory"}, {}, INVALID, "memory"),
        ({"constraints": "memory<4 apples"}, {}, INVALID, "4 apples"),
        ({"constraints": "loss<small"}, {}, INVALID, "small"),
        ({"constraints": "speed<3"}, {}, UNKNOWN, "speed"),
        ({"pruner": "median"}, {}, CONFLICT, "pruner=median"),
        ({"pruner": "median", "objectives": "loss,throughput"}, {}, CONFLICT, "val/loss"),
        ({"sampler": "grid", "search": "dropout=0..0.5"}, {}, ErrorCode.TOO_LARGE, "dropout"),
        ({"experiment": "captoning"}, {}, UNKNOWN, "captioning"),
        ({"experiment": "grid"}, {"models": "lenet,resnet18"}, UNSUPPORTED, "experiment=grid"),
        ({}, {"aa": "true"}, UNSUPPORTED, "aa"),
        ({}, {"inject_delay": "5%"}, UNSUPPORTED, "inject_delay"),
        ({}, {"vary": "threads=1,2"}, UNSUPPORTED, "vary"),
        ({}, {"pairing": "interleaved"}, UNSUPPORTED, "pairing"),
        ({}, {"training_seconds": "3"}, UNSUPPORTED, "training_seconds"),
        ({}, ON_NODES, MISSING, "storage=postgresql://"),
        ({"storage": "sqlite:////shared/trials.db"}, ON_NODES, MISSING, "storage=postgresql://"),
    ],
)
def test_impossible_request_is_refused(
    sweep: dict[str, Any], texts: dict[str, str], code: ErrorCode, named: str
) -> None:
    with pytest.raises(UsageError) as error:
        requests.parse(Sweep(**{"search": "batch_size=8..16", **sweep}), texts)
    assert error.value.code is code
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_trials_train_in_full_and_say_so() -> None:
    assert demo().training_seconds > 0
    request: Any = requests.parse(Sweep(search="dropout=0.1|0.2"), {})
    assert request.base.training_seconds == 0


def test_objectives_and_constraints_have_directions_and_units() -> None:
    outcomes = captioning.STUDY.outcomes
    objectives = goals.objectives("throughput,peak_memory,val/loss:max", outcomes)
    assert [(objective.metric, objective.direction) for objective in objectives] == [
        ("train/examples_per_second", "max"),
        ("memory/peak_rss_bytes", "min"),
        ("val/loss", "max"),
    ]
    assert objectives[0].outcome.unit == "examples/s"
    assert (objectives[0].worst, objectives[1].worst) == (-math.inf, math.inf)
    memory, latency, accuracy = goals.constraints("memory<4GB,latency<20ms,val/bleu4>=10", outcomes)
    assert (memory.bound, latency.bound) == (4e9, 0.02)
    assert memory.violation(6e9) == pytest.approx(0.5)
    assert memory.violation(3e9) < 0 < accuracy.violation(9)
    assert accuracy.violation(10) == 0


def test_missing_metric_is_refused_with_the_available_ones() -> None:
    metrics = {"val/loss": 1.0, "train/loss": 1.0, "live/loss": 1.0}
    with pytest.raises(UsageError) as error:
        goals.require(metrics, ["val/loss", "energy/joules"])
    assert error.value.code is UNKNOWN
    assert "energy/joules" in str(error.value)
    assert "train/loss, val/loss" in str(error.value)


CAPTIONS = {"training_captions": 1_360}  # of scenes
SHORT = {"epochs": "2", "steps_per_epoch": "30"}  # too few steps for the largest batches


def demo(**texts: str) -> captioning.Settings:
    return parse_settings(captioning.Settings, captioning.STUDY.presets, texts)


def length_of(
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
        steps.check(settings, 680, "training captions", "scenes")  # raises
        seen = settings.steps_per_epoch * size
        assert 640 - size < seen <= 640, "the examples of 20 steps of 32, whole batches of them"
        measured = settings.epochs * settings.steps_per_epoch - settings.warmup_steps
        assert measured >= captioning.STUDY.scaling.measured_steps
        fewer = (settings.epochs - 1) * settings.steps_per_epoch - settings.warmup_steps
        assert settings.epochs == 8 or fewer < captioning.STUDY.scaling.measured_steps, (
            "no epoch more than that takes"
        )


def test_default_batch_size_trains_unchanged() -> None:
    assert length_of(demo()).settings(32) == {}
    assert length_of(demo()).steps(32) == 8 * 20
    short = demo(epochs="1", steps_per_epoch="3", warmup_steps="2")
    assert length_of(short).settings(32) == {}
    assert length_of(short).settings(96) == {"steps_per_epoch": 1, "epochs": 3}, (
        "a single step is measured by default: no more"
    )


def test_searched_settings_are_never_changed() -> None:
    assert length_of(demo(), frozenset({"epochs"})).settings(256) == {"steps_per_epoch": 2}
    assert length_of(demo(), frozenset({"steps_per_epoch"})).settings(256) == {}
    request = make_request("batch_size=8..256:log,epochs=4..8")
    values = {"batch_size": 256, "epochs": 5}
    settings: Any = space.settled(request.base, request.goal.dimensions, values)
    assert settings.epochs == 5


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


def test_steps_of_other_batch_sizes_are_no_objective() -> None:
    with pytest.raises(UsageError) as error:
        requests.check_rates(make_request("batch_size=8|32", {}, objectives="step"))
    assert error.value.code is CONFLICT
    requests.check_rates(make_request("dropout=0.1|0.2", {}, objectives="step"))

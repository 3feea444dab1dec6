"""Search spaces and goals as text, and the errors of malformed ones."""

from __future__ import annotations

import dataclasses
import math

import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from experiments.studies import captioning, grid
from experiments.sweep import goals, space, worker
from experiments.sweep.settings import Sweep
from tracking.errors import UsageError


def parsed(text: str) -> tuple[space.Dimension, ...]:
    return space.parse(text, captioning.Settings)


def test_ranges_and_choices_become_settings_of_the_right_type() -> None:
    size, rate, dropout, framework, ways = parsed(
        "batch_size=8..256:log, learning_rate=1e-4..1e-1:log, dropout=0..0.5:0.1, framework=pytorch|tensorflow+xla, beams=1|3"
    )
    assert size.distribution == IntDistribution(8, 256, log=True)
    assert rate.distribution == FloatDistribution(1e-4, 1e-1, log=True)
    assert dropout.distribution == FloatDistribution(0, 0.5, step=0.1)
    assert framework.settled("tensorflow+xla") == {"frameworks": ("tensorflow+xla",)}
    assert size.settled(64) == {"batch_size": 64}
    assert ways.choices == (1, 3)


def test_lists_are_searched_by_their_singular_name() -> None:
    (model, size) = space.parse("model=resnet18|vgg16,batch_size=1..8", grid.Settings)
    assert model.settled("vgg16") == {"models": ("vgg16",)}
    settings = space.settled(grid.Settings(), (model, size), {"model": "vgg16", "batch_size": 4})
    assert (settings.models, settings.batch_sizes) == (("vgg16",), (4,))  # type: ignore[attr-defined]
    assert space.widest(grid.Settings(), (model, size)).models == ("resnet18", "vgg16")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("batch_size=8..64:log", (8, 16, 32, 64)),
        ("batch_size=8..100:log", (8, 16, 32, 64, 100)),
        ("batch_size=2..8:3", (2, 5, 8)),
        ("dropout=0..0.3:0.1", (0.0, 0.1, 0.2, 0.3)),
        ("beams=3..5", (3, 4, 5)),
        ("formulation=prefix|sequence", ("prefix", "sequence")),
    ],
)
def test_a_grid_holds_both_ends_of_a_range(text: str, values: tuple[space.Value, ...]) -> None:
    assert (
        parsed(text)[0].grid() == pytest.approx(values)
        if isinstance(values[0], float)
        else parsed(text)[0].grid() == values
    )


WRONG = {
    "": "search is empty",
    "batch_size": "'batch_size' is not a setting and its values",
    "batchsize=8..16": "no setting 'batchsize'; did you mean batch_size?",
    "batch_size=64..8": "a range has finite ends, the lower first",
    "batch_size=8": "it is a single value",
    "batch_size=8|8": "it names a value twice",
    "batch_size=8..16,batch_size=1..2": "batch_size is named twice",
    "batch_size=8..lots": "batch_size=lots is not a whole number",
    "batch_size=8..16:log:2": "search: batch_size=8..16:log:2: ",  # Optuna's reason follows
    "batch_size=8..16:40": "give one step, which fits into the range",
    "learning_rate=0..1:log": "search: learning_rate=0..1:log: ",
    "learning_rate=0..inf": "a range has finite ends",
    "formulation=a..b": "formulation is not a number",
    "blocks=1..6": "blocks is no setting of a trial, which is one cell",
    "batch_size=0..16": "batch_size=0 is too small; at least 1",
    "formulation=prefix|words": "formulation=words is not known; choose prefix, sequence",
}


@pytest.mark.parametrize("text", WRONG)
def test_malformed_searches_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as error:
        worker.understood(Sweep(search=text), {"data": "synthetic"})
    assert WRONG[text] in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objectives": ""}, "objectives is empty"),
        ({"objectives": "speed"}, "objectives: no run has a metric 'speed'"),
        ({"objectives": "thrughput"}, "did you mean throughput?"),
        ({"objectives": "acuracy"}, "have throughput, "),  # the experiment has none
        (
            {"objectives": "throughput:up"},
            "throughput:up is neither throughput:max nor throughput:min",
        ),
        ({"objectives": "power/watts_mean"}, "write power/watts_mean:max or power/watts_mean:min"),
        ({"objectives": "loss,val/loss"}, "val/loss is named twice"),
        ({"constraints": "memory"}, "'memory' is no bound"),
        ({"constraints": "memory<4 apples"}, "4 apples is not a size (4GB)"),
        ({"constraints": "loss<small"}, "small is not a number"),
        ({"constraints": "speed<3"}, "constraints: no run has a metric 'speed'"),
        ({"pruner": "median"}, "train/examples_per_second comes once, at the end; prune by loss"),
        (
            {"pruner": "median", "objectives": "loss,throughput"},
            "it needs a single objective, and there are 2",
        ),
        ({"sampler": "grid", "search": "dropout=0..0.5"}, "give it steps"),
        (
            {"find": "max_batch", "search": "dropout=0..0.5"},
            "find=max_batch looks along the batch size",
        ),
        (
            {"find": "best_batch", "search": "dropout=0..0.5"},
            "find=best_batch looks along the batch size",
        ),
        ({"experiment": "captoning"}, "no experiment 'captoning'; did you mean captioning?"),
        (
            {"experiment": "grid"},
            "a trial is one cell, and experiment=grid makes 2 of these settings",
        ),
    ],
)
def test_impossible_requests_are_refused(options: dict[str, str], message: str) -> None:
    sweep = dataclasses.replace(Sweep(search="batch_size=8..16"), **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as error:
        worker.understood(sweep, {})
    assert message in str(error.value)


def test_objectives_and_constraints_have_directions_and_units() -> None:
    outcomes = captioning.STUDY.outcomes
    parsed_objectives = goals.objectives("throughput,peak_memory,val/loss:max", outcomes)
    assert [(objective.metric, objective.direction) for objective in parsed_objectives] == [
        ("train/examples_per_second", "max"),
        ("memory/peak_rss_bytes", "min"),
        ("val/loss", "max"),
    ]
    assert parsed_objectives[0].outcome.unit == "examples/s"
    assert (parsed_objectives[0].worst, parsed_objectives[1].worst) == (-math.inf, math.inf)
    memory, latency, accuracy = goals.constraints("memory<4GB,latency<20ms,val/bleu4>=10", outcomes)
    assert (memory.bound, latency.bound) == (4e9, 0.02)
    assert memory.violation(6e9) == pytest.approx(0.5)
    assert memory.violation(3e9) < 0 < accuracy.violation(9)
    assert accuracy.violation(10) == 0


def test_missing_metric_is_refused_with_the_available_ones() -> None:
    with pytest.raises(UsageError, match=r"no energy/joules; have train/loss, val/loss"):
        goals.require(
            {"val/loss": 1.0, "train/loss": 1.0, "live/loss": 1.0}, ["val/loss", "energy/joules"]
        )

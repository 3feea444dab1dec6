"""Ablations of training speed: LSTM implementations, convolutions, graph optimizers."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import ablations
from experiments.comparison.runs.query import table
from experiments.config import devices
from experiments.config.settings import parse
from experiments.contract import Treatment
from experiments.run.plan import of_study
from experiments.studies import conv_algorithm, graph, lstm, training_speed
from models.caption_decoder import spec as decoder
from models.contract import ModelError
from models.frameworks.devices import onednn
from models.parity import Side
from tests.conftest import Place
from tests.experiments.comparison.campaigns import runs
from tests.experiments.small_campaigns import cells, report, run
from tracking.errors import ErrorCode, UsageError

FEW = {"size": "tiny", "steps": "3", "warmup_steps": "1"}


def settings_of(study: Any, **options: str) -> Any:
    return parse(study.Settings, study.STUDY.presets, options)


def test_frameworks_have_their_implementations_and_the_loop_of_cells() -> None:
    settings = settings_of(lstm, models="gnmt,tacotron2", implementations="block-v2,scan+compiled")
    treatments = lstm.treatments(settings)
    assert [(cell.framework, cell.settings["implementation"]) for cell in treatments[:2]] == [
        ("pytorch", "cells"),
        ("pytorch+compile", "scan+compiled"),
    ]
    assert [(cell.framework, cell.settings["implementation"]) for cell in treatments[2:5]] == [
        ("tensorflow", "cells"),
        ("tensorflow", "block-v2"),
        ("tensorflow+xla", "scan+compiled"),
    ]
    assert {cell.group for cell in treatments} == {
        f"{library} · {model}" for library in ("pytorch", "tensorflow") for model in settings.models
    }
    sides = [lstm.side(cell) for cell in treatments[:5]]
    assert sides[1] == Side("pytorch+compile", (("lstm", "scan"),))
    assert sides[3] == Side("tensorflow", (("lstm", "block-v2"),), "float32")


def test_random_captions_are_padded() -> None:
    sizes = replace(decoder.SIZES["tiny"], lstm="scan")
    assert (sizes.lstm, sizes.vocabulary) == ("scan", 61)
    lengths = decoder.lengths("paper", 500, np.random.default_rng(0))
    assert 2 <= lengths.min() < lengths.max() <= 34
    batch = decoder.batch(sizes, np.array([4, 2]), np.random.default_rng(0))
    _, tokens, positions = batch.inputs
    is_word = [[True] * 4, [True, True, False, False]]
    np.testing.assert_array_equal(tokens > 0, is_word)
    np.testing.assert_array_equal(batch.weights.reshape(tokens.shape), is_word)
    np.testing.assert_array_equal(positions, np.arange(8))
    assert batch.targets.min() > 0


@pytest.mark.parametrize(
    ("framework", "outcomes"),
    [
        ("pytorch", {"layer": "ok"}),
        pytest.param(
            "tensorflow", {"block": "ok", "block-v2": "not_equal"}, marks=pytest.mark.slow
        ),
    ],
)
def test_implementations_are_measured_unless_the_gate_refuses_them(
    place: Place, framework: str, outcomes: dict[str, str]
) -> None:
    sizes = {"models": "caption_decoder", "batch_size": "4"}
    run(
        place,
        "lstm",
        frameworks=framework,
        implementations=",".join(outcomes),
        **sizes,
        **FEW,
    )
    stored = {cell.data.params["implementation"]: cell.data for cell in cells(place)}
    assert {name: data.tags["outcome"] for name, data in stored.items()} == {
        "cells": "ok",
        **outcomes,
    }
    for name, outcome in outcomes.items():
        is_measured = any(key.startswith("train/") for key in stored[name].metrics)
        assert is_measured == (outcome == "ok")
        assert f"| caption\\_decoder | {framework} | {name} | {framework} |" in report(place)


def test_ratio_stands_next_to_the_published_one() -> None:
    """Eight blocks of steps that take a quarter of the time: the ratio is 4, within 1 %."""
    settings = settings_of(
        lstm, models="deepspeech2", frameworks="pytorch", implementations="layer"
    )
    params = {"library": "pytorch", "model": "deepspeech2"}
    pairs = table(
        list(runs(("cells", "layer"), factors={"layer": 0.25}, spread=0.01, params=params))
    )
    comparison = compare(
        pairs,
        factor="framework",
        baseline="cells",
        strata=("params.library", "params.model"),
        outcomes=[ablations.THROUGHPUT],
    )
    section = ablations.lstm(
        comparison,
        lstm.treatments(settings),
        lstm.TABLE,
        training_speed.SOURCE,
        size="tiny",
    )
    baseline, layer = section.rows
    assert baseline[:5] == ("deepspeech2", "pytorch", "cells", "pytorch", "1")
    ratio = float(str(layer[4]).rstrip("×"))
    assert ratio == pytest.approx(4, rel=0.03)
    low, high = map(float, str(layer[5]).split("–"))
    assert low < ratio < high
    assert layer[6:] == ("8", "4.14×")


# ---- convolutions


@pytest.mark.parametrize(
    ("device", "algorithms"),
    [("cpu", ["plain", "onednn"]), ("cuda", ["fixed", "heuristic", "profiled"])],
)
def test_algorithms_are_those_of_the_device(
    device: str, algorithms: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices.provenance, "gpus", lambda: ["a GPU"] * (device == "cuda"))
    settings = settings_of(
        conv_algorithm, models="resnet18,deepspeech2", batch_sizes="8,16", frameworks="pytorch"
    )
    plan = of_study(conv_algorithm.STUDY, settings)
    assert plan.baseline == algorithms[0]
    points: dict[str, list[str]] = {}
    for cell in plan.treatments:
        points.setdefault(cell.group, []).append(cell.settings["conv_algorithm"])
    names = [f"resnet18 · batch {rows} · fixed" for rows in (8, 16)]
    names += [f"deepspeech2 · batch {rows} · fixed" for rows in (8, 16)]
    names += [f"deepspeech2 · batch {rows} · varying" for rows in (8, 16)]
    assert points == {f"pytorch · {name}": algorithms for name in names}


def test_algorithms_are_measured(place: Place) -> None:
    sizes = {"models": "lenet", "batch_sizes": "4", "shapes": "fixed"}
    run(place, "conv_algorithm", frameworks="toy", device="cpu", **sizes, **FEW)
    measured = {cell.data.params["conv_algorithm"]: cell.data.metrics for cell in cells(place)}
    assert measured.keys() == {"plain", "onednn"}
    assert all(metrics["train/examples_per_second"] > 0 for metrics in measured.values())


def test_published_epochs_stand_next_to_ours() -> None:
    """On a GPU, as if: a later epoch takes 0.8 of the time of fixed, the first one 0.9."""
    point = {"model": "deepspeech2", "batch_size": "20", "lengths": "varying"}
    pairs = []
    for run_ in runs(
        ("fixed", "profiled"), 6, spread=0.01, params={**point, "framework": "pytorch"}
    ):
        step = run_.metrics["train/step_seconds"]
        later = 0.8 if run_.tags["framework"] == "profiled" else 1.0
        epochs = {
            "train/epoch_seconds": 100 * step * later,
            "train/first_epoch_seconds": 100 * step * (later + 1) / 2,
        }
        pairs.append(replace(run_, metrics={**run_.metrics, **epochs}))
    comparison = compare(
        table(pairs),
        factor="tags.framework",
        baseline="fixed",
        strata=tuple(f"params.{name}" for name in ("framework", *point)),
        outcomes=[ablations.THROUGHPUT, "train/first_epoch_seconds", "train/epoch_seconds"],
    )
    planned = [
        Treatment(name, "pytorch", "measure", {**point, "batch_size": 20, "conv_algorithm": name})
        for name in ("fixed", "profiled")
    ]
    speeds, times = ablations.convolutions(
        comparison, planned, {}, conv_algorithm.EPOCHS, "", size="tiny"
    )
    assert speeds.rows[0][5] == "1"
    profiled = times.rows[1]
    assert float(str(profiled[5]).rstrip("×")) == pytest.approx(0.9, rel=0.03)
    assert profiled[7] == f"{2816 / 3082:.3f}×"
    assert float(str(profiled[8]).rstrip("×")) == pytest.approx(0.8, rel=0.03)
    assert profiled[10] == f"{1940 / 3082:.3f}×"


def test_algorithm_of_a_cpu_is_refused_on_a_gpu() -> None:
    assert [onednn(name, "cpu") for name in ("onednn", "plain", "profiled")] == [True, False, None]
    assert onednn("fixed", "cuda") is None
    with pytest.raises(ModelError, match="plain") as error:
        onednn("plain", "cuda")
    assert error.value.code is ErrorCode.UNSUPPORTED


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        ({"frameworks": "pytorch,keras-jax"}, ErrorCode.UNSUPPORTED, "keras-jax"),
        ({"algorithms": "profiled"}, ErrorCode.UNSUPPORTED, "plain, onednn"),
        ({"models": "vgg16", "shapes": "varying"}, ErrorCode.CONFLICT, "shapes=fixed"),
    ],
)
def test_cells_that_cannot_be_are_refused(
    options: dict[str, str], code: ErrorCode, named: str
) -> None:
    with pytest.raises(UsageError, match=named) as error:
        conv_algorithm.treatments(settings_of(conv_algorithm, device="cpu", **options))
    assert error.value.code is code


# ---- graph optimizers


def test_optimizers_are_off_once_and_programs_stand_next_to_them() -> None:
    options = {"models": "bert", "frameworks": "tensorflow,pytorch"}
    options |= {"without": "pruning,all", "only": "pruning"}
    treatments = graph.treatments(settings_of(graph, **options))
    off = {cell.settings["program"]: cell.settings["graph_off"] for cell in treatments}
    others = off.pop("only pruning")
    assert off == {
        "tensorflow": (),
        "pytorch": (),
        "without pruning": ("pruning",),
        "without all": ("all",),
    }
    assert not {"pruning", "all"} & set(others)
    assert {"constant_folding", "remapping", "loop_optimization"} < set(others)
    assert [cell.framework for cell in treatments].count("tensorflow") == 4


def test_compiling_has_paid_when_both_have_taken_as_long() -> None:
    """Compare with the two sums, step by step."""
    rng = np.random.default_rng(0)
    for first, first_compiled, later, later_compiled in rng.uniform(0.1, 1, (50, 4)) * [
        1,
        50,
        1,
        0.9,
    ]:
        steps = np.arange(1, 100_000)
        eager, compiled = first + (steps - 1) * later, first_compiled + (steps - 1) * later_compiled
        paid = np.flatnonzero(compiled <= eager)
        estimate = ablations.paid_after(first, first_compiled, later, later_compiled)
        if first_compiled > first and later_compiled < later:
            assert math.ceil(estimate) == steps[paid[0]] if len(paid) else estimate > steps[-1]
        else:
            assert estimate == (1 if first_compiled <= first else math.inf)


def test_interval_of_the_median_covers_it_in_19_of_20() -> None:
    """Simulate 2,000 skewed samples, some infinite, with three standard errors to spare."""
    rng = np.random.default_rng(0)
    for count in (6, 9, 12):
        samples = rng.lognormal(0, 1.5, (2_000, count))
        samples[samples > 20] = math.inf
        covers = [
            median.low <= 1 <= median.high for median in map(ablations.median, samples.tolist())
        ]
        assert np.mean(covers) > 0.95 - 3 * (0.95 * 0.05 / 2_000) ** 0.5
    assert ablations.median([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert ablations.median([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == ablations.Estimate(3.5, 1.0, 6.0)


def test_report_has_the_steps_after_which_compiling_has_paid() -> None:
    """A step takes 30 ms eagerly and 15 compiled, the first one 2.99 s more: 199.3 steps."""
    pairs = []
    for run_ in runs(("eager", "compiled"), 6, factors={"compiled": 0.5}, spread=1e-9):
        more = 2.99 if run_.tags["framework"] == "compiled" else 0.0
        step = run_.metrics[ablations.LATER]
        first = step + more * step / (0.015 if more else 0.03)
        pairs.append(replace(run_, metrics={**run_.metrics, ablations.FIRST: first}))

    def rows(pairs: list, programs: dict[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
        outcomes = [ablations.FIRST, ablations.LATER]
        comparison = compare(table(pairs), factor="framework", baseline="eager", outcomes=outcomes)
        (section,) = ablations.break_even(comparison, programs)
        return [row[-3:] for row in section.rows]

    both = {"eager": ("compiled",), "compiled": ("eager",), "other": ("eager",)}
    assert rows(pairs, both) == [("200", "200–200", "6"), ("1", "1–1", "6")]
    ((estimate, _, blocks),) = rows(pairs[:6], {"eager": ("compiled",)})
    assert (estimate, blocks) == ("—", "3")


def test_programs_are_measured_and_their_nodes_counted(place: Place) -> None:
    sizes = {"models": "lenet", "batch_size": "4"}
    run(place, "graph", frameworks="tensorflow", without="all", **sizes, **FEW)
    programs = {cell.data.params["program"]: cell.data.metrics for cell in cells(place)}
    assert programs.keys() == {"tensorflow", "without all"}
    for metrics in programs.values():
        parts = [
            value for name, value in metrics.items() if re.fullmatch(r"graph/\w+_nodes_after", name)
        ]
        assert sum(parts) == metrics["graph/nodes_after"]
    whole, without = programs["tensorflow"], programs["without all"]
    assert whole["graph/nodes_before"] == without["graph/nodes_before"], "the same program"
    assert whole["graph/nodes_after"] < without["graph/nodes_after"]

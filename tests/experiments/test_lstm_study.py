"""The study of LSTM implementations: its cells, a real campaign with one that the gate refuses, its table, its wrong calls."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import mlflow
import numpy as np
import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import ablations
from experiments.comparison.runs.query import table
from experiments.config.settings import parse
from experiments.studies import lstm, training_speed
from models.caption_decoder import spec as decoder
from models.parity import Side
from tests.conftest import Place
from tests.experiments.comparison.campaigns import runs

QUICK = {
    "size": "tiny",
    "models": "caption_decoder",
    "batch_size": "4",
    "steps": "3",
    "warmup_steps": "1",
    "threads": "1",
}


def test_every_network_has_the_implementations_of_each_framework_beside_the_loop_of_cells() -> None:
    settings = parse(
        lstm.Settings,
        lstm.STUDY.presets,
        {"models": "gnmt,tacotron2", "implementations": "block-v2,scan+compiled"},
    )
    found = lstm.treatments(settings)
    assert [
        (one.framework, one.settings["implementation"])
        for one in found
        if one.settings["model"] == "gnmt"
    ] == [
        *(("pytorch", "cells"), ("pytorch+compile", "scan+compiled")),
        *(("tensorflow", "cells"), ("tensorflow", "block-v2"), ("tensorflow+xla", "scan+compiled")),
    ]
    assert {one.group for one in found} == {
        f"{library} · {model}" for library in ("pytorch", "tensorflow") for model in settings.models
    }
    sides = [lstm.side(one) for one in found[:5]]
    assert sides[1] == Side("pytorch+compile", (("lstm", "scan"),))
    assert sides[3] == Side("tensorflow", (("lstm", "block-v2"),), "float32")


def test_random_captions_are_padded_and_learned_from_where_there_are_words() -> None:
    sizes = replace(decoder.SIZES["tiny"], lstm="scan")
    assert (sizes.lstm, sizes.vocabulary) == ("scan", 61)
    drawn = decoder.lengths("paper", 500, np.random.default_rng(0))
    assert 2 <= drawn.min() < drawn.max() <= 34
    batch = decoder.batch(sizes, np.array([4, 2]), np.random.default_rng(0))
    _, tokens, positions = batch.inputs
    there = [[True] * 4, [True, True, False, False]]
    np.testing.assert_array_equal(tokens > 0, there)
    np.testing.assert_array_equal(batch.weights.reshape(tokens.shape), there)
    np.testing.assert_array_equal(positions, np.arange(8))
    assert batch.targets.min() > 0


@pytest.mark.parametrize(
    ("framework", "implementations", "outcomes"),
    [
        ("pytorch", "layer", {"layer": "ok"}),
        pytest.param(
            "tensorflow",
            "block,block-v2",
            {"block": "ok", "block-v2": "not_equal"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_implementations_are_measured_unless_the_gate_refuses_them(
    place: Place, framework: str, implementations: str, outcomes: dict[str, str]
) -> None:
    settings = QUICK | {
        "frameworks": framework,
        "implementations": implementations,
        "blocks": "1",
        "others_limit_percent": "100",
        "figures": "false",
        "cache": str(place.cache),
        "journal": str(place.journal),
    }
    words = [f"--{name}={value}" for name, value in settings.items()]
    called = place.call(sys.executable, "-m", "experiments", "lstm", *words)
    assert called.returncode == 3, called.stdout + called.stderr  # one block: no verdict
    cells = mlflow.MlflowClient(place.uri).search_runs(["1"], "tags.kind = 'cell'")
    runs = {run.data.params["implementation"]: run.data for run in cells}
    stored = {name: data.tags["outcome"] for name, data in runs.items()}
    assert stored == {"cells": "ok", **outcomes}
    report = next(place.journal.glob("*/report/report.md")).read_text()
    assert f"| caption\\_decoder | {framework} | cells | {framework} | 1 |" in report
    for name, outcome in outcomes.items():
        verdict = "— | 1 block: no comparison"
        if outcome == "not_equal":
            verdict = "not equal | "
            assert re.search("gradient of .* differs by", runs[name].tags["outcome_reason"])
            assert not [key for key in runs[name].metrics if key.startswith("train/")]
        assert f"| caption\\_decoder | {framework} | {name} | {framework} | {verdict}" in report


def test_ratios_stand_beside_the_published_figures() -> None:
    """Eight blocks of steps that take a quarter of the time: the ratio is 4, within the noise of 1 %."""
    settings = parse(
        lstm.Settings,
        lstm.STUDY.presets,
        {"models": "deepspeech2", "frameworks": "pytorch", "implementations": "layer"},
    )
    params = {"library": "pytorch", "model": "deepspeech2"}
    found = table(
        list(runs(("cells", "layer"), factors={"layer": 0.25}, spread=0.01, params=params))
    )
    asked = {
        "factor": "framework",
        "baseline": "cells",
        "strata": ("params.library", "params.model"),
    }
    comparison = compare(found, **asked, outcomes=[ablations.THROUGHPUT])
    section = ablations.lstm(
        comparison,
        lstm.treatments(settings),
        lstm.TABLE,
        training_speed.SOURCE,
        size="tiny",
    )
    (cells, layer) = section.rows
    assert cells[:5] == ("deepspeech2", "pytorch", "cells", "pytorch", "1")
    assert float(str(layer[4]).rstrip("×")) == pytest.approx(4, rel=0.03)
    low, high = map(float, str(layer[5]).split("–"))
    assert low < float(str(layer[4]).rstrip("×")) < high
    assert layer[6:] == ("8", "4.14×")

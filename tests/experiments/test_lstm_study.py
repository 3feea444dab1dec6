"""Study of LSTM implementations: its cells, a campaign, its table."""

from __future__ import annotations

from dataclasses import replace

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
from tests.experiments.small_campaigns import cells, report, run


def settings_of(**options: str) -> lstm.Settings:
    return parse(lstm.Settings, lstm.STUDY.presets, options)


def test_frameworks_have_their_implementations_and_the_loop_of_cells() -> None:
    settings = settings_of(models="gnmt,tacotron2", implementations="block-v2,scan+compiled")
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
    sizes = {"size": "tiny", "models": "caption_decoder", "batch_size": "4"}
    steps = {"steps": "3", "warmup_steps": "1"}
    run(
        place,
        "lstm",
        frameworks=framework,
        implementations=",".join(outcomes),
        **sizes,
        **steps,
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
    settings = settings_of(models="deepspeech2", frameworks="pytorch", implementations="layer")
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

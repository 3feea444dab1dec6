"""Training speed: a real campaign of Deep Speech 2, its inputs, the published table, and calls that cannot be."""

from __future__ import annotations

import sys

import mlflow
import numpy as np
import pytest

import models
from experiments.campaign import launch
from experiments.config.console import Display
from experiments.config.settings import parse
from experiments.studies import training_speed
from experiments.workloads.training_speed import inputs, prepare
from tests.conftest import Place
from tracking.errors import EvenhandError

QUICK = {
    "size": "tiny",
    "models": "deepspeech2",
    "batch_size": "4",
    "steps": "9",
    "blocks": "1",
    "threads": "1",
    "figures": "false",
}


def test_both_frameworks_train_the_same_speech_and_stand_beside_the_published_table(place: Place) -> None:
    settings = QUICK | {"lengths": "varying", "frameworks": "pytorch,tensorflow", "others_limit_percent": "100"}
    settings |= {"cache": str(place.cache), "journal": str(place.journal)}
    called = place.call(sys.executable, "-m", "experiments", "training_speed", *(f"--{k}={v}" for k, v in settings.items()))
    assert called.returncode == 3, called.stdout + called.stderr  # one block: no verdict
    cells = mlflow.MlflowClient(place.uri).search_runs(["1"], "tags.kind = 'cell'")
    assert {run.data.tags["framework"] for run in cells} == {"pytorch", "tensorflow"}
    for run in cells:
        metrics = run.data.metrics
        assert run.data.tags["parity"] == "equal"
        assert run.data.params["ctc"] == "sparse"
        assert metrics["model/trainable_parameters"] == 27_457
        # of nine steps each, the first epoch's and the timed ones; the first step of all is in the former
        assert metrics["train/first_epoch_seconds"] > metrics["train/first_step_seconds"]
        assert metrics["train/epoch_seconds"] * metrics["train/examples_per_second"] >= 9 * 4
    report = next(place.journal.glob("*/report/report.md")).read_text()
    assert "| deepspeech2 | 0.696 steps/s | 0.735 steps/s | 0.947× | tensorflow over pytorch |" in report
    assert "| bert | 1.73 steps/s | 1.77 steps/s | 0.977× | not measured here |" in report
    assert "| vgg16 | 150.32 images/s | 131.54 images/s | 1.143× | not measured here |" in report


@pytest.mark.parametrize("model", ["deepspeech2", "bert"])
def test_lengths_that_vary_come_in_few_shapes_and_the_same_to_every_framework(model: str) -> None:
    module = models.spec(model)
    spec = inputs.sizes(module, "tiny", "scan")
    drawn = [
        inputs.batches(module, spec, "tiny", rows=6, varying=varying, rng=np.random.default_rng([0, 1]))
        for varying in (True, True, False)
    ]
    for one, again in zip(*drawn[:2], strict=True):
        for a, b in zip((*one.inputs, one.targets), (*again.inputs, again.targets), strict=True):
            np.testing.assert_array_equal(a, b)
    varying, fixed = drawn[0], drawn[2]
    assert len(varying) == 2 * inputs.BUCKETS
    assert len({batch.inputs[0].shape[1] for batch in varying}) == inputs.BUCKETS
    assert any(len(set(batch.inputs[1])) > 1 for batch in varying)
    assert {tuple(set(batch.inputs[1])) for batch in fixed} == {(fixed[0].inputs[0].shape[1],)}


def test_every_network_gets_the_batch_that_the_paper_gives_it() -> None:
    settings = training_speed.Settings(size="tiny")
    counts = prepare.prepare(settings, lambda *_: None).dataset.counts
    assert counts == {f"batch of {name}": rows for name, rows in zip(settings.models, (64, 64, 64, 32, 20, 32, 32), strict=True)}


def test_networks_of_images_take_the_papers_batches_and_pictures() -> None:
    settings = training_speed.Settings()
    assert [training_speed.rows(settings, name) for name in settings.models] == [64, 64, 64, 32, 20, 32, 32]
    for name, shape in (("resnet50", (1, 224, 224, 3)), ("lenet", (1, 28, 28, 1))):
        module = models.spec(name)
        (batch, _) = inputs.batches(
            module, inputs.sizes(module, "paper", "scan"), "paper", rows=1, varying=False, rng=np.random.default_rng(0)
        )
        assert batch.inputs[0].shape == shape, name


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"models": "deepspeech3"}, "no model 'deepspeech3'"),
        ({"models": "caption_decoder"}, "models=caption_decoder: there are no random inputs for it"),
        ({"frameworks": "pytorch,keras-torch"}, "ctc=sparse: keras-torch cannot use TensorFlow's losses; take ctc=scan"),
        ({"models": "mobilenet_v2", "batch_size": "1"}, "batch_size=1: mobilenet_v2 cannot train on fewer than 2 images"),
        ({"ctc": "warp"}, "ctc"),
        ({"steps": "1"}, "steps"),
    ],
)
def test_calls_that_cannot_be_are_refused_in_one_line(given: dict[str, str], told: str, place: Place) -> None:
    places = {"cache": str(place.cache), "journal": str(place.journal)}
    with pytest.raises((EvenhandError, models.ModelError), match=told):
        launch.prepare(
            "training_speed", parse(training_speed.Settings, training_speed.PRESETS, {**QUICK, **places, **given}), Display()
        )

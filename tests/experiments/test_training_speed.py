"""Training speed: campaigns, inputs, and the published table."""

import json
from dataclasses import replace
from importlib import import_module
from itertools import product

import numpy as np
import pytest

import models
from experiments.comparison import compare
from experiments.comparison.analyses import published
from experiments.comparison.runs.query import table
from experiments.config import devices, variation
from experiments.config.settings import parse
from experiments.run import preflight
from experiments.run.plan import Plan
from experiments.studies import training_speed
from experiments.workloads.training_speed import inputs, prepare
from models.caption_decoder import spec as decoder
from models.contract import Batch, ModelError
from models.frameworks.devices import onednn
from models.parity import Side
from tests.conftest import Place
from tests.experiments.comparison.campaigns import runs
from tests.experiments.datasets.folders import refused
from tests.experiments.small_campaigns import cells, run
from tracking import tables
from tracking.errors import ErrorCode

TINY = {"size": "tiny", "batch_size": "4"}


@pytest.mark.parametrize(
    ("model", "options", "levels"),
    [
        (
            "caption_decoder",
            {"frameworks": "pytorch", "vary": "lstm=cells,layer"},
            {("pytorch", "cells"), ("pytorch", "layer")},
        ),
        pytest.param(
            "bert",
            {"frameworks": "pytorch,tensorflow"},
            {("pytorch", "layer"), ("tensorflow", "layer")},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_frameworks_and_implementations_train_on_varying_lengths(
    place: Place, model: str, options: dict[str, str], levels: set[tuple[str, str]]
) -> None:
    settings = {"models": model, "lengths": "varying", "steps": "9"}
    run(place, "training_speed", **TINY, **settings, **options)
    measured = cells(place)
    assert {(cell.data.tags["framework"], cell.data.params["lstm"]) for cell in measured} == levels
    for cell in measured:
        metrics = cell.data.metrics
        assert cell.data.tags["parity"] == "equal"
        (dataset,) = (used.dataset for used in cell.inputs.dataset_inputs)
        assert cell.data.tags["dataset"] == dataset.name == "random-inputs"
        assert json.loads(dataset.profile) == {f"batch of {model}": 4}
        # nine steps in the first epoch, which has the first step, and nine timed ones
        assert metrics["train/first_epoch_seconds"] > metrics["train/first_step_seconds"]
        assert metrics["train/epoch_seconds"] * metrics["train/examples_per_second"] >= 9 * 4
        assert metrics["train/recompilations"] == 0, "one graph takes all lengths"
    for file in place.journal.glob("*/cells/*/*/values.parquet"):
        assert len(tables.read(file, ("phase",))["phase"]) == 2 * 9


def drawn_batches(model: str, size: str = "tiny", *, varying: bool, rows: int = 6) -> list[Batch]:
    module, rng = models.spec(model), np.random.default_rng([0, 1])
    spec = inputs.sizes(module, size, "scan", "layer")
    return inputs.batches(module, spec, size, rows=rows, varying=varying, rng=rng)


@pytest.mark.parametrize("model", ["bert", "gnmt", "deepspeech2"])
def test_varying_lengths_have_few_shapes_and_repeat(model: str) -> None:
    varying, again = (drawn_batches(model, varying=True) for _ in range(2))
    fixed = drawn_batches(model, varying=False)
    np.testing.assert_equal([vars(batch) for batch in varying], [vars(batch) for batch in again])
    assert len(varying) == 2 * inputs.BUCKETS
    assert len({batch.inputs[0].shape[1] for batch in varying}) == inputs.BUCKETS
    assert any(len(set(batch.inputs[1])) > 1 for batch in varying)
    assert {tuple(set(batch.inputs[1])) for batch in fixed} == {(fixed[0].inputs[0].shape[1],)}


def test_ratio_below_one_lies_in_its_interval() -> None:
    """A step takes 1.25 times as long: the throughput is 0.8, within noise of 1 %."""
    pairs = table(list(runs(factors={"tensorflow": 1.25}, spread=0.01, params={"network": "bert"})))
    comparison = compare(
        pairs, baseline="pytorch", strata=("params.network",), outcomes=[published.THROUGHPUT]
    )
    findings = tuple(
        replace(finding, row=replace(finding.row, stratum="model=bert"))
        for finding in comparison.findings
    )
    rows = published.speeds(
        replace(comparison, findings=findings), training_speed.TABLE, "", size="tiny", data="random"
    ).rows
    bert, vgg = (next(row for row in rows if row[0] == name) for name in ("bert", "vgg16"))
    assert bert[:4] == ("bert", "1.73 steps/s", "1.77 steps/s", "0.977×")
    assert vgg[:4] == ("vgg16", "150.32 images/s", "131.54 images/s", "1.143×")
    *_, estimate, interval = bert
    low, high = map(float, str(interval).split("–"))
    assert low < float(str(estimate).rstrip("×")) < high < 1


def test_networks_of_images_take_the_batches_and_pictures_of_the_paper() -> None:
    settings = training_speed.Settings()
    assert [settings.rows(name) for name in settings.models] == [64, 64, 64, 32, 20, 32, 32]
    for name, shape in (("resnet50", (1, 224, 224, 3)), ("lenet", (1, 28, 28, 1))):
        (batch, _) = drawn_batches(name, "paper", varying=False, rows=1)
        assert batch.inputs[0].shape == shape, name


def test_model_without_random_inputs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(import_module("models.gnmt.spec"), "SIZES")
    with refused(ErrorCode.UNSUPPORTED, "models=gnmt"):
        prepare.prepare(training_speed.Settings(models=("gnmt",)), lambda *_: None)


# ---- ablations: LSTM implementations, graph optimizers, convolutions


def settings_of(**options: str) -> training_speed.Settings:
    return parse(training_speed.Settings, training_speed.STUDY.presets, options)


@pytest.mark.parametrize(
    ("preset", "levels", "frameworks"),
    [
        ("lstm", "cells scan block layer", "pytorch tensorflow"),
        (
            "graph",
            "none pruning constant_folding arithmetic_optimization dependency_optimization all",
            "tensorflow",
        ),
        ("conv_algorithm", "fixed heuristic profiled", "pytorch tensorflow"),
    ],
)
def test_preset_varies_what_the_study_varied(
    preset: str, levels: str, frameworks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices.provenance, "gpus", lambda: ["a GPU"])
    settings = settings_of(preset=preset)
    plan = Plan.of_study(training_speed.STUDY, variation.based(settings, {}))
    cells = {
        (cell.framework, cell.settings["model"], cell.settings[plan.factor])
        for cell in plan.treatments
    }
    assert plan.baseline == levels.split()[0]
    assert cells == set(product(frameworks.split(), settings.models, levels.split()))
    assert ("framework" in plan.strata) == (len(frameworks.split()) > 1)
    assert "model" in plan.strata


def test_gate_compares_every_implementation() -> None:
    settings = settings_of(preset="lstm", models="deepspeech2")
    compared = Plan.of_study(training_speed.STUDY, settings).treatments
    sides = preflight._sides(training_speed.STUDY, settings, compared, "deepspeech2")
    cells, block = (("lstm", "cells"),), (("lstm", "block"),)
    assert len(sides) == 2 * 4
    assert sides[0] == Side("pytorch", cells)
    assert {Side("tensorflow", block, "float32"), Side("pytorch", block)} < set(sides)
    assert Side("tensorflow") in sides
    for options, is_proven in (
        ({"preset": "lstm", "frameworks": "pytorch"}, True),
        ({"frameworks": "pytorch"}, False),
        ({"preset": "graph"}, False),
    ):
        proven = preflight.models_to_prove("training_speed", settings_of(**options))
        assert bool(proven) == is_proven


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


def test_algorithm_of_a_cpu_is_refused_on_a_gpu() -> None:
    assert [onednn(name, "cpu") for name in ("onednn", "plain", "profiled")] == [True, False, None]
    assert onednn("fixed", "cuda") is None
    with pytest.raises(ModelError, match="plain") as error:
        onednn("plain", "cuda")
    assert error.value.code is ErrorCode.UNSUPPORTED

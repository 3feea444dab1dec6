"""Training speed: campaigns, inputs, and the published table."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

import models
from experiments.comparison import compare
from experiments.comparison.analyses import published
from experiments.comparison.runs.query import table
from experiments.studies import training_speed
from experiments.workloads.training_speed import inputs, prepare
from models.contract import Batch
from tests.conftest import Place
from tests.experiments.comparison.campaigns import runs
from tests.experiments.small_campaigns import cells, run
from tracking import tables
from tracking.errors import ErrorCode, UsageError

TINY = {"size": "tiny", "batch_size": "4"}


@pytest.mark.parametrize(
    "frameworks", ["pytorch", pytest.param("pytorch,tensorflow", marks=pytest.mark.slow)]
)
def test_frameworks_train_on_varying_lengths(place: Place, frameworks: str) -> None:
    settings = {"models": "bert", "lengths": "varying", "steps": "9"}
    run(place, "training_speed", frameworks=frameworks, **TINY, **settings)
    assert {cell.data.tags["framework"] for cell in cells(place)} == set(frameworks.split(","))
    for cell in cells(place):
        metrics = cell.data.metrics
        assert cell.data.tags.get("parity", "equal") == "equal"
        (dataset,) = (used.dataset for used in cell.inputs.dataset_inputs)
        assert cell.data.tags["dataset"] == dataset.name == "random-inputs"
        assert json.loads(dataset.profile) == {"batch of bert": 4}
        # nine steps in the first epoch, which has the first step, and nine timed ones
        assert metrics["train/first_epoch_seconds"] > metrics["train/first_step_seconds"]
        assert metrics["train/epoch_seconds"] * metrics["train/examples_per_second"] >= 9 * 4
        assert metrics["train/recompilations"] == 0, "one graph takes all lengths"
    for file in place.journal.glob("*/cells/*/*/values.parquet"):
        assert len(tables.read(file, ("phase",))["phase"]) == 2 * 9


def check_equal(batches: list[Batch], others: list[Batch]) -> None:
    for batch, other in zip(batches, others, strict=True):
        arrays = zip((*batch.inputs, batch.targets), (*other.inputs, other.targets), strict=True)
        for array, again in arrays:
            np.testing.assert_array_equal(array, again)


def drawn_batches(model: str, size: str = "tiny", *, varying: bool, rows: int = 6) -> list[Batch]:
    module, rng = models.spec(model), np.random.default_rng([0, 1])
    spec = inputs.sizes(module, size, "scan")
    return inputs.batches(module, spec, size, rows=rows, varying=varying, rng=rng)


@pytest.mark.parametrize("model", ["bert", "gnmt", "deepspeech2", "tacotron2"])
def test_varying_lengths_have_few_shapes_and_repeat(model: str) -> None:
    varying, again = (drawn_batches(model, varying=True) for _ in range(2))
    fixed = drawn_batches(model, varying=False)
    check_equal(varying, again)
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
    assert [settings.rows(name)[0] for name in settings.models] == [64, 64, 64, 32, 20, 32, 32]
    for name, shape in (("resnet50", (1, 224, 224, 3)), ("lenet", (1, 28, 28, 1))):
        (batch, _) = drawn_batches(name, "paper", varying=False, rows=1)
        assert batch.inputs[0].shape == shape, name


def test_model_without_random_inputs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(import_module("models.gnmt.spec"), "SIZES")
    with pytest.raises(UsageError, match="models=gnmt") as error:
        prepare.prepare(training_speed.Settings(models=("gnmt",)), lambda *_: None)
    assert error.value.code is ErrorCode.UNSUPPORTED

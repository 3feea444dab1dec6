"""Training speed: campaigns, inputs, sequences from files, and the published table."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import models
from experiments.comparison import compare
from experiments.comparison.analyses import published
from experiments.comparison.runs.pairing import find_mismatch
from experiments.comparison.runs.query import table
from experiments.config.settings import parse
from experiments.contract import Prepared
from experiments.datasets.sequences.data import Sequences
from experiments.studies import training_speed
from experiments.workloads.training_speed import inputs, prepare
from models.contract import Batch
from tests.conftest import Place
from tests.experiments.comparison.campaigns import runs
from tests.experiments.datasets.recordings import ljspeech
from tests.experiments.small_campaigns import cells, run
from tracking import tables
from tracking.errors import ErrorCode, UsageError

TINY = {"size": "tiny", "batch_size": "4"}
SEQUENCES = ("bert", "gnmt", "deepspeech2", "tacotron2")


@pytest.mark.parametrize(
    "frameworks", ["pytorch", pytest.param("pytorch,tensorflow", marks=pytest.mark.slow)]
)
def test_frameworks_train_on_lines_of_text(place: Place, frameworks: str) -> None:
    path = place.folder / "corpus.txt"
    path.write_text("\n".join(" ".join("abcd"[: 1 + n % 4]) for n in range(16)))
    settings = {"models": "bert", "data": str(path), "lengths": "varying", "steps": "9"}
    run(place, "training_speed", frameworks=frameworks, **TINY, **settings)
    assert {cell.data.tags["framework"] for cell in cells(place)} == set(frameworks.split(","))
    for cell in cells(place):
        metrics = cell.data.metrics
        assert cell.data.tags.get("parity", "equal") == "equal"
        assert cell.data.tags["dataset"].startswith("corpus.txt-")
        # nine steps in the first epoch, which has the first step, and nine timed ones
        assert metrics["train/first_epoch_seconds"] > metrics["train/first_step_seconds"]
        assert metrics["train/epoch_seconds"] * metrics["train/examples_per_second"] >= 9 * 4
        assert metrics["train/recompilations"] == 0, "one graph takes all lengths"
    for file in place.journal.glob("*/cells/*/*/values.parquet"):
        assert len(tables.read(file, ("phase",))["phase"]) == 2 * 9


@pytest.mark.slow
@pytest.mark.parametrize(("other", "ctc"), [("keras-torch", "scan"), ("tensorflow", "sparse")])
def test_both_frameworks_train_on_the_same_recordings(place: Place, other: str, ctc: str) -> None:
    folder = ljspeech(place.folder / "speech")
    settings = {"models": "deepspeech2", "steps": "2", "warmup_steps": "1", "data": str(folder)}
    run(place, "training_speed", frameworks=f"pytorch,{other}", ctc=ctc, **TINY, **settings)
    assert {cell.data.tags["framework"] for cell in cells(place)} == {"pytorch", other}
    for cell in cells(place):
        (dataset,) = (used.dataset for used in cell.inputs.dataset_inputs)
        assert cell.data.tags["dataset"] == dataset.name
        assert dataset.name.startswith("speech-")
        assert json.loads(dataset.profile)["examples of deepspeech2"] == 8
        assert json.loads(dataset.source) == {"uri": str(folder)}
        assert cell.data.metrics["model/trainable_parameters"] == 27_457


def check_equal(batches: list[Batch], others: list[Batch]) -> None:
    for batch, other in zip(batches, others, strict=True):
        arrays = zip((*batch.inputs, batch.targets), (*other.inputs, other.targets), strict=True)
        for array, again in arrays:
            np.testing.assert_array_equal(array, again)


def drawn_batches(
    model: str, size: str = "tiny", *, varying: bool, rows: int = 6, folder: str = ""
) -> list[Batch]:
    module, rng = models.spec(model), np.random.default_rng([0, 1])
    spec = inputs.sizes(module, size, "scan")
    return inputs.batches(module, spec, size, rows=rows, varying=varying, rng=rng, folder=folder)


@pytest.mark.parametrize("model", ["deepspeech2", "bert"])
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


def read(cache: Path, models_: str, data: Path, **options: str) -> Prepared:
    settings = {**TINY, "models": models_, "data": str(data), "cache": str(cache), **options}
    return prepare.prepare(
        parse(training_speed.Settings, training_speed.STUDY.presets, settings), lambda *_: None
    )


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_from_files_have_few_shapes_and_repeat(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    ljspeech(folder)
    lines = [" ".join(f"w{number % 7}" for number in range(length)) for length in range(2, 18)]
    (folder / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "pairs.tsv").write_text("\n".join(f"{line}\t{line} too" for line in lines))
    prepared = read(tmp_path, ",".join(SEQUENCES), folder, lengths="varying")
    of_files = {"rows": 3, "folder": prepared.inputs["data"][name]}
    varying, again = (drawn_batches(name, varying=True, **of_files) for _ in range(2))
    check_equal(varying, again)
    shapes = {tuple(array.shape for array in batch.inputs) for batch in varying}
    assert len(varying) == 2 * len(shapes) == 2 * inputs.BUCKETS
    of_files["folder"] = read(tmp_path, name, folder).inputs["data"][name]
    fixed = drawn_batches(name, varying=False, **of_files)
    assert len(fixed) == 2
    assert len({tuple(array.shape for array in batch.inputs) for batch in fixed}) == 1
    random = drawn_batches(name, varying=False, rows=3)
    types = {
        tuple((array.dtype, array.ndim) for array in (*batch.inputs, batch.targets, batch.weights))
        for batch in (*varying, *fixed, *random)
    }
    assert len(types) == 1


def test_fixed_lengths_cut_to_the_median_and_pad(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text(
        "a b\tx\na b c d\tp q r s t u v w\na b c\tz\na b c d e f g\tk\n"
    )
    prepared = read(tmp_path, "gnmt", tmp_path / "pairs.tsv")
    folder = prepared.inputs["data"]["gnmt"]
    lengths = Sequences.open(Path(folder)).lengths
    assert lengths.tolist() == [[3, 2], [5, 9], [4, 2], [8, 2]]  # each with its end
    assert prepared.dataset.counts["median of gnmt"] == 4
    # four tokens of a sentence, and as large a part of its translation, at least one
    assert inputs.cut(lengths, 50, varying=False).tolist() == [[3, 2], [4, 7], [4, 2], [4, 1]]
    assert inputs.cut(lengths, 6, varying=False).tolist() == [[3, 2], [4, 6], [4, 2], [4, 1]]
    assert inputs.cut(lengths, 50, varying=True).tolist() == lengths.tolist()
    for batch in drawn_batches("gnmt", varying=False, rows=3, folder=folder):
        source, counts, shifted = batch.inputs
        assert (source.shape, shifted.shape) == ((3, 4), (3, 7))
        assert set(counts) <= {3, 4}
        assert ((source != 0).sum(1) == counts).all()
        targets, weights = batch.targets.reshape(3, 7), batch.weights.reshape(3, 7)
        np.testing.assert_array_equal(targets != 0, weights == 1)
        np.testing.assert_array_equal(shifted[:, 1:], targets[:, :-1])
        assert set(shifted[:, 0]) == {1}


def test_other_content_is_another_data_set(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    datasets = []
    for content in ("a\nb\nc\nd\n", "a\nb\nc\ne e\n", "a\nb\nc\nd\n"):
        file.write_text(content)
        datasets.append(read(tmp_path, "bert", file).dataset)
    first, other, again = datasets
    assert first == again
    assert first.name.startswith("corpus.txt-")
    assert first.digest != other.digest
    pairs = pd.DataFrame({"level": ["a", "b"], "dataset": [first.name, other.name], "pair": "1"})
    assert "dataset" in find_mismatch(pairs, "framework").text
    assert not find_mismatch(pairs.assign(dataset=first.name), "framework")
    counts = {"examples of bert": 4, "examples of bert in the files": 4}
    counts |= {"shortest of bert": 3, "median of bert": 3, "longest of bert": 4, "batch of bert": 4}
    assert other.counts == counts

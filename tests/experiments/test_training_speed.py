"""Training speed: a real campaign of Deep Speech 2, its inputs, the published table, and calls that cannot be."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest

import models
from experiments.comparison import compare
from experiments.comparison.analyses import published as report
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
from tracking import tables
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


ROWS = {
    "bert": "| bert | 1.73 steps/s | 1.77 steps/s | 0.977× |",
    "deepspeech2": "| deepspeech2 | 0.696 steps/s | 0.735 steps/s | 0.947× |",
    "vgg16": "| vgg16 | 150.32 images/s | 131.54 images/s | 1.143× |",
}


def campaign(place: Place, **changes: str) -> list[mlflow.entities.Run]:
    """Run a campaign of one block; return its cells."""
    settings = {**QUICK, "others_limit_percent": "100", **changes}
    settings |= {"cache": str(place.cache), "journal": str(place.journal)}
    words = [f"--{name}={value}" for name, value in settings.items()]
    called = place.call(sys.executable, "-m", "experiments", "training_speed", *words)
    assert called.returncode == 3, called.stdout + called.stderr  # one block: no verdict
    return list(mlflow.MlflowClient(place.uri).search_runs(["1"], "tags.kind = 'cell'"))


def test_both_frameworks_train_on_lines_of_text(place: Place) -> None:
    path = place.folder / "corpus.txt"
    path.write_text("\n".join(" ".join("abcd"[: 1 + n % 4]) for n in range(16)))
    cells = campaign(
        place, models="bert", data=str(path), lengths="varying", frameworks="pytorch,tensorflow"
    )
    assert {run.data.tags["framework"] for run in cells} == {"pytorch", "tensorflow"}
    for run in cells:
        metrics = run.data.metrics
        assert run.data.tags["parity"] == "equal"
        assert run.data.tags["dataset"].startswith("corpus.txt-")
        # nine steps in the first epoch, which has the first step, and nine timed ones
        assert metrics["train/first_epoch_seconds"] > metrics["train/first_step_seconds"]
        assert metrics["train/epoch_seconds"] * metrics["train/examples_per_second"] >= 9 * 4
        assert metrics["train/recompilations"] == 0, "one graph takes all lengths"
    report = next(place.journal.glob("*/report/report.md")).read_text()
    for model, row in ROWS.items():
        measured = "tensorflow over pytorch" if model == "bert" else "not measured here"
        assert f"{row} {measured} |" in report
    assert "trained on the sequences of corpus.txt, of varying lengths" in report
    for file in place.journal.glob("*/cells/*/*/values.parquet"):
        assert len(tables.read(file, ("phase",))["phase"]) == 2 * 9


@pytest.mark.parametrize("model", ["deepspeech2", "bert"])
def test_lengths_that_vary_come_in_few_shapes_and_the_same_to_every_framework(model: str) -> None:
    module = models.spec(model)
    spec = inputs.sizes(module, "tiny", "scan")
    drawn = [
        inputs.batches(
            module, spec, "tiny", rows=6, varying=varying, rng=np.random.default_rng([0, 1])
        )
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


def test_a_ratio_below_one_lies_in_its_own_interval() -> None:
    """A step takes 1.25 times as long: the throughput is 0.8, within noise of 1 %."""
    found = table(list(runs(factors={"tensorflow": 1.25}, spread=0.01, params={"network": "bert"})))
    comparison = compare(
        found, baseline="pytorch", strata=("params.network",), outcomes=[report.THROUGHPUT]
    )
    renamed = [
        replace(one, row=replace(one.row, stratum="model=bert")) for one in comparison.findings
    ]
    lines = report.speeds(
        replace(comparison, findings=tuple(renamed)),
        training_speed.TABLE,
        "",
        size="tiny",
        data="random inputs",
    ).rows
    ((*_, estimate, interval),) = [line for line in lines if line[0] == "bert"]
    low, high = map(float, str(interval).split("–"))
    assert low < float(str(estimate).rstrip("×")) < high < 1


def test_networks_of_images_take_the_papers_batches_and_pictures() -> None:
    settings = training_speed.Settings()
    assert [settings.rows(name)[0] for name in settings.models] == [64, 64, 64, 32, 20, 32, 32]
    for name, shape in (("resnet50", (1, 224, 224, 3)), ("lenet", (1, 28, 28, 1))):
        module = models.spec(name)
        (batch, _) = inputs.batches(
            module,
            inputs.sizes(module, "paper", "scan"),
            "paper",
            rows=1,
            varying=False,
            rng=np.random.default_rng(0),
        )
        assert batch.inputs[0].shape == shape, name


def test_a_model_of_somebody_without_random_inputs_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(import_module("models.gnmt.spec"), "sized")
    with pytest.raises(EvenhandError, match="models=gnmt: there are no random inputs for it"):
        prepare.prepare(training_speed.Settings(models=("gnmt",)), lambda *_: None)


# ---- sequences from files


def read(tmp_path: Path, models_: str, folder: Path, **given: str) -> Prepared:
    settings = {**QUICK, "models": models_, "data": str(folder), "cache": str(tmp_path), **given}
    return prepare.prepare(
        parse(training_speed.Settings, training_speed.STUDY.presets, settings), lambda *_: None
    )


def made(name: str, prepared: Prepared, *, varying: bool, rows: int = 3) -> list[Batch]:
    module = models.spec(name)
    spec, rng = inputs.sizes(module, "tiny", "scan"), np.random.default_rng([0, 1])
    folder = prepared.inputs["data"][name]
    return inputs.batches(module, spec, "tiny", rows=rows, varying=varying, rng=rng, folder=folder)


def everything(folder: Path) -> Path:
    """A folder with what each network of sequences reads."""
    lines = [" ".join(f"w{number % 7}" for number in range(length)) for length in range(2, 18)]
    ljspeech(folder)
    (folder / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "pairs.tsv").write_text(
        "\n".join(f"{one}\t{one} too" for one in lines), encoding="utf-8"
    )
    return folder


SEQUENCES = ("bert", "gnmt", "deepspeech2", "tacotron2")


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_from_files_come_in_few_shapes_and_the_same_to_every_framework(
    name: str, tmp_path: Path
) -> None:
    folder = everything(tmp_path / "data")
    prepared = read(tmp_path, ",".join(SEQUENCES), folder, lengths="varying")
    varying, again = (made(name, prepared, varying=True) for _ in range(2))
    for one, other in zip(varying, again, strict=True):
        for a, b in zip((*one.inputs, one.targets), (*other.inputs, other.targets), strict=True):
            np.testing.assert_array_equal(a, b)
    shapes = {tuple(array.shape for array in batch.inputs) for batch in varying}
    assert len(varying) == 2 * len(shapes) == 2 * inputs.BUCKETS
    fixed = made(name, read(tmp_path, name, folder), varying=False)
    assert len(fixed) == 2
    assert len({tuple(array.shape for array in batch.inputs) for batch in fixed}) == 1
    random = models.spec(name).batch(
        inputs.sizes(models.spec(name), "tiny", "scan"),
        np.array([9, 7, 5]),
        np.random.default_rng(0),
    )
    for batch in (*varying, *fixed):
        kinds = [
            (array.dtype, array.ndim) for array in (*batch.inputs, batch.targets, batch.weights)
        ]
        assert kinds == [
            (array.dtype, array.ndim) for array in (*random.inputs, random.targets, random.weights)
        ]


def test_fixed_lengths_cut_to_the_median_and_pad(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text(
        "a b\tx\na b c d\tp q r s t u v w\na b c\tz\na b c d e f g\tk\n"
    )
    prepared = read(tmp_path, "gnmt", tmp_path / "pairs.tsv")
    lengths = Sequences.open(Path(prepared.inputs["data"]["gnmt"])).lengths
    assert lengths.tolist() == [[3, 2], [5, 9], [4, 2], [8, 2]]  # each with its end
    assert prepared.dataset.counts["median of gnmt"] == 4
    # four tokens of a sentence, and as large a part of its translation, but never none
    assert inputs.cut(lengths, 50, varying=False).tolist() == [[3, 2], [4, 7], [4, 2], [4, 1]]
    assert inputs.cut(lengths, 6, varying=False).tolist() == [[3, 2], [4, 6], [4, 2], [4, 1]]
    assert inputs.cut(lengths, 50, varying=True).tolist() == lengths.tolist()
    for batch in made("gnmt", prepared, varying=False):
        source, there, behind = batch.inputs
        assert source.shape == (3, 4)
        assert set(there) <= {3, 4}
        assert behind.shape == (3, 7)
        assert all((row != 0).sum() == count for row, count in zip(source, there, strict=True))
        targets, weights = batch.targets.reshape(3, 7), batch.weights.reshape(3, 7)
        np.testing.assert_array_equal(targets != 0, weights == 1)
        np.testing.assert_array_equal(behind[:, 1:], targets[:, :-1])
        assert set(behind[:, 0]) == {1}


def test_other_content_is_another_data_set_wherever_it_lies(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    names = []
    for content in ("a\nb\nc\nd\n", "a\nb\nc\ne e\n", "a\nb\nc\nd\n"):
        file.write_text(content)
        names.append(read(tmp_path, "bert", file).dataset)
    first, other, again = names
    assert first == again
    assert first.name.startswith("corpus.txt-")
    assert first.digest != other.digest
    runs = pd.DataFrame({"level": ["a", "b"], "dataset": [first.name, other.name]}).assign(pair="1")
    assert (
        f"settings differ apart from framework: dataset ({min(first.name, other.name)}, "
        in find_mismatch(runs, "framework").text
    )
    assert not find_mismatch(runs.assign(dataset=first.name), "framework")
    told = {"examples of bert": 4, "examples of bert in the files": 4}
    told |= {"shortest of bert": 3, "median of bert": 3, "longest of bert": 4, "batch of bert": 4}
    assert other.counts == told


@pytest.mark.slow
@pytest.mark.parametrize(("other", "ctc"), [("keras-torch", "scan"), ("tensorflow", "sparse")])
def test_both_frameworks_train_on_the_same_recordings(place: Place, other: str, ctc: str) -> None:
    folder = ljspeech(place.folder / "speech")
    cells = campaign(
        place,
        steps="2",
        warmup_steps="1",
        data=str(folder),
        frameworks=f"pytorch,{other}",
        ctc=ctc,
    )
    assert {run.data.tags["framework"] for run in cells} == {"pytorch", other}
    for run in cells:
        (dataset,) = (used.dataset for used in run.inputs.dataset_inputs)
        assert run.data.tags["dataset"] == dataset.name
        assert dataset.name.startswith("speech-")
        assert json.loads(dataset.profile)["examples of deepspeech2"] == 8
        assert dataset.source == str(folder)
        assert run.data.metrics["model/trainable_parameters"] == 27_457
    report = next(place.journal.glob("*/report/report.md")).read_text()
    assert "trained on the sequences of speech, each cut or padded to their median length" in report

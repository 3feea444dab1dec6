"""Grid on synthetic tensors: small campaigns, memory that ends, and the estimated warm-up."""

import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from mlflow.entities import Run

import models
from experiments.cell import timing
from experiments.comparison.analyses.memory_limits import edges
from experiments.comparison.runs.query import table
from experiments.comparison.verdicts.findings import Edge
from experiments.config import memory
from experiments.datasets.labelled.data import Labelled
from experiments.run.journal_runs import cell_results
from experiments.studies import grid
from models import own
from models.weights import write_safetensors
from tests.conftest import Place, set_toy_costs
from tests.experiments.small_campaigns import cells, command, report, run
from tests.models.test_runtimes import branching_model
from tracking import tables
from tracking.errors import UsageError
from tracking.records import RunOutcome
from tracking.store import Store
from tracking.technical import unpack_tags

PARAMETERS = "model/trainable_parameters"
POINT = {
    "models": "mobilenet_v2",
    "image_sizes": "64",
    "seconds": "0.2",
    "classes": "10",
}


def raw(cell: Run, phase: str) -> list[float]:
    """Return the seconds of each step or request."""
    values = tables.read(Path(cell.info.artifact_uri, "values.parquet"), ("phase", "seconds"))
    rows = zip(values["phase"], values["seconds"], strict=True)
    return [seconds for name, seconds in rows if name == phase]


@pytest.mark.parametrize(
    "frameworks",
    ["toy,toy+twin", pytest.param("pytorch,tensorflow,keras-torch", marks=pytest.mark.slow)],
)
def test_points_are_timed_in_both_phases(
    place: Place, frameworks: str, request: pytest.FixtureRequest
) -> None:
    if frameworks.startswith("toy"):
        request.getfixturevalue("local_cells")
    point = {"models": "lenet", "image_sizes": "28", "batch_sizes": "3"}
    run(place, "grid", frameworks=frameworks, **{**POINT, **point})
    assert len(cells(place)) == len(frameworks.split(","))
    for cell in cells(place):
        metrics = cell.data.metrics
        assert cell.data.tags["model"] == "lenet"
        assert cell.data.tags["parity"] == "equal"
        assert metrics["model/trainable_parameters"] == 61_706
        assert metrics["check/train_steps"] >= 13
        steps, requests = raw(cell, "train"), raw(cell, "inference_batch_3")
        steady = steps[int(metrics["check/train_warmup"]) :]
        assert 0 < len(steady) < len(steps)
        assert metrics["train/step_seconds"] == pytest.approx(np.median(steady))
        assert metrics["train/examples_per_second"] == pytest.approx(3 / np.mean(steady))
        assert metrics["inference/first_call_seconds"] == pytest.approx(requests[0])
        assert metrics["memory/peak_rss_bytes"] > 1e7
        assert "train/total_seconds" not in metrics
    assert "model=lenet, image\\_size=28, batch\\_size=3" in report(place)


@pytest.mark.usefixtures("local_cells")
def test_accuracy_is_that_of_given_weights(place: Place, tmp_path: Path) -> None:
    """The toy answers the class of the largest bias, whatever the picture."""
    module = models.spec("lenet")
    arrays = module.initial_weights(module.Spec(), np.random.default_rng(0))
    (bias,) = (name for name, array in arrays.items() if array.shape == (10,))
    arrays[bias][3] = 1
    write_safetensors(arrays, tmp_path / "trained.safetensors")
    point = {**POINT, "models": "lenet", "image_sizes": "28", "batch_sizes": "64"}
    point |= {"weights": str(tmp_path / "trained.safetensors"), "data": "digits"}
    point["cache"] = str(tmp_path / "cache")
    frameworks = "toy,toy+twin"
    run(place, "grid", frameworks=frameworks, phases="inference", **point)
    (folder,) = (tmp_path / "cache/labelled").glob("digits-*/")
    digits = Labelled.open(folder)
    share = float((digits.labels[digits.validation] == 3).mean())
    assert 0.05 < share < 0.15
    for cell in cells(place):
        assert cell.data.metrics["val/accuracy"] == pytest.approx(share)
    for changes in ({}, {"phases": "inference", "classes": "11"}):
        options = {"frameworks": frameworks, **point, **changes}
        refused = place.call(*command(place, "grid", **options))
        assert refused.returncode == 2, refused.stdout
        assert "data" in refused.stderr


def test_runtimes_infer_beside_frameworks_where_their_files_are_exported(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(own.FOLDERS, str(branching_model(tmp_path)))
    points = {"models": "lenet,branching", "image_sizes": "28", "batch_sizes": "2", "blocks": "1"}
    output = run(place, "grid", frameworks="pytorch,onnxruntime", **{**POINT, **points})
    runs = {
        (cell.data.tags["framework"], cell.data.tags["model"].partition("@")[0]): cell
        for cell in cells(place)
    }
    outcomes = {key: cell.data.tags["outcome"] for key, cell in runs.items()}
    assert outcomes == {
        ("pytorch", "lenet"): "ok",
        ("pytorch", "branching"): "ok",
        ("onnxruntime", "lenet"): "ok",
        ("onnxruntime", "branching"): "not_available",
    }
    assert "data-dependent" in runs["onnxruntime", "branching"].data.tags["outcome_reason"]
    assert "branching is not exported from pytorch" in output
    exported, network = runs["onnxruntime", "lenet"].data, runs["pytorch", "lenet"].data
    assert exported.tags["parity"] == "equal"
    assert exported.metrics["inference/file_bytes"] > 4 * exported.metrics[PARAMETERS]
    assert exported.metrics["inference/load_seconds"] > 0
    assert exported.metrics["check/export_error"] < 1e-5
    assert "inference/file_bytes" not in network.metrics
    assert "inference/latency_seconds_p50" in exported.metrics.keys() & network.metrics.keys()
    assert exported.metrics["memory/peak_rss_bytes"] < network.metrics["memory/peak_rss_bytes"]
    assert "train/step_seconds" in network.metrics.keys() - exported.metrics.keys()
    reason = unpack_tags(exported.tags)["not_available.train/examples_per_second"]
    assert reason == "a runtime does not train"


def test_one_exported_file_takes_all_lengths_of_a_network(place: Place) -> None:
    options = {"models": "bert", "size": "tiny", "lengths": "7,20,21", "batch_sizes": "2"}
    options |= {"seconds": "0.2", "phases": "inference"}
    run(place, "transformers", frameworks="pytorch,onnxruntime", blocks="1", **options)
    outcomes = {
        (cell.data.tags["framework"], cell.data.params["length"]): cell.data.tags["outcome"]
        for cell in cells(place)
    }
    assert outcomes == {
        (name, length): "not_available" if length == "21" else "ok"
        for name in ("pytorch", "onnxruntime")
        for length in ("7", "20", "21")
    }
    exported = [cell for cell in cells(place) if "inference/file_bytes" in cell.data.metrics]
    assert {cell.data.metrics["check/export_error"] < 1e-5 for cell in exported} == {True}
    assert len({cell.data.metrics["inference/file_bytes"] for cell in exported}) == 1


@pytest.mark.parametrize(
    ("study", "options"),
    [("grid", ("--phases=train",)), ("lenet", ()), ("training_speed", ("--preset=smoke",))],
)
def test_runtimes_are_refused_where_all_would_train(
    place: Place, study: str, options: tuple[str, ...]
) -> None:
    words = (f"--cache={place.cache}", f"--journal={place.journal}", *options)
    done = place.call(
        *(sys.executable, "-m", "experiments", study, "--frameworks=pytorch,onnxruntime", *words)
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "onnxruntime" in line


@pytest.mark.usefixtures("local_cells")
def test_point_that_cannot_train_is_not_available_and_the_rest_runs(place: Place) -> None:
    points = {"models": "mobilenet_v2", "image_sizes": "32", "batch_sizes": "1,2"}
    output = run(place, "grid", frameworks="toy,toy+twin", **{**POINT, **points})
    outcomes = {
        (cell.data.params["batch_size"], cell.data.tags["framework"]): cell.data.tags["outcome"]
        for cell in cells(place)
    }
    assert outcomes == {
        (rows, framework): "ok" if rows == "2" else "not_available"
        for rows in ("1", "2")
        for framework in ("toy", "toy+twin")
    }
    assert "not_available (mobilenet_v2 cannot train on fewer than 2 images" in output
    words = (f"--cache={place.cache}", f"--journal={place.journal}", "--resume=last")
    place.call(sys.executable, "-m", "experiments", "grid", *words)
    assert len(cells(place)) == 4, "what is not available is not tried again"


def test_out_of_memory_is_a_result_and_nothing_larger_is_tried(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 4,000 images of 64 × 64 need 200 MB, and 4 GB of the toy's device
    set_toy_costs(monkeypatch, row_bytes=1_000_000)
    limits = {"memory_limit": "1500MB", "phases": "inference", "blocks": "2"}
    sizes = {**POINT, "batch_sizes": "2,4000,8000"}
    output = run(place, "grid", frameworks="toy", **sizes, **limits)
    outcomes = {
        (cell.data.params["batch_size"], cell.data.tags["block"]): unpack_tags(cell.data.tags)
        for cell in cells(place)
    }
    assert {point: tags["outcome"] for point, tags in outcomes.items()} == {
        (size, block): "ok" if size == "2" else "out_of_memory"
        for size in ("2", "4000", "8000")
        for block in ("1", "2")
    }
    full = [tags for tags in outcomes.values() if tags["outcome"] == "out_of_memory"]
    tried = [tags["outcome_reason"] for tags in full if "implied" not in tags]
    assert 1 <= len(tried) <= 2  # 8,000 may come first
    assert all("inference, batch" in reason or "build" in reason for reason in tried)
    assert "implied" in outcomes["8000", "2"]
    assert "out_of_memory (implied: batch_size " in output
    words = (f"--cache={place.cache}", f"--journal={place.journal}", "--resume=last")
    again = place.call(sys.executable, "-m", "experiments", "grid", *words)
    assert again.returncode == 3, again.stdout + again.stderr
    assert len(cells(place)) == 6, "cells that did not fit are not tried again"
    results = set(cell_results(next(place.journal.iterdir())).values())
    assert {result.outcome for result in results} == {RunOutcome.OK, RunOutcome.OUT_OF_MEMORY}
    assert {result.phase for result in results} <= {"", "inference"}
    assert edges_of(place) == (
        Edge("toy", "model=mobilenet_v2, image_size=64", 2, 4000, "inference"),
    )


def edges_of(place: Place) -> tuple[Edge, ...]:
    runs = table(Store(place.uri).runs("grid", "tags.kind = 'cell'"))
    return edges(runs, factor="framework", strata=("model", "image_size", "batch_size"))


@pytest.mark.slow
def test_inference_is_measured_where_training_does_not_fit(place: Place) -> None:
    # answers need the largest layer's activations, training those of all layers
    limits = {"batch_sizes": "60", "memory_limit": "1350MB"}
    output = run(place, "grid", frameworks="pytorch", **POINT, **limits)
    assert "[ 2/2] " in output
    phases = {cell.data.params["phases"]: cell.data for cell in cells(place)}
    assert set(phases) == {"inference,train", "inference"}
    both, inference = phases["inference,train"], phases["inference"]
    assert (both.tags["outcome"], both.tags["phase"]) == ("out_of_memory", "train")
    assert inference.tags["outcome"] == "ok"
    assert inference.metrics["inference/latency_seconds_p50"] > 0
    assert edges_of(place) == (
        Edge("pytorch", "model=mobilenet_v2, image_size=64", None, 60, "train"),
    )


@pytest.mark.slow
def test_tensorflow_ends_in_the_same_outcome(place: Place) -> None:
    limits = {"batch_sizes": "2,8000", "memory_limit": "2500MB", "phases": "inference"}
    run(place, "grid", frameworks="tensorflow", **POINT, **limits)
    outcomes = {cell.data.params["batch_size"]: cell.data.tags["outcome"] for cell in cells(place)}
    assert outcomes == {"2": "ok", "8000": "out_of_memory"}


@pytest.mark.parametrize(
    ("text", "size"),
    [("none", 0), ("2GiB", 2**31), ("500MB", 5 * 10**8), ("1.5 GiB", 1_610_612_736), ("7", 7)]
    + [(text, None) for text in ("", "0", "-1GiB", "2 TB", "GiB")],
)
def test_size_is_read_or_refused(text: str, size: int | None) -> None:
    with pytest.raises(UsageError) if size is None else nullcontext():
        assert memory.size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "MemoryError: ",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "ResourceExhaustedError: OOM when allocating tensor with shape[8,64]",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 11.4 GiB for an array",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "XlaRuntimeError: INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: failed to allocate",
    ],
)
def test_out_of_memory_is_recognised(text: str) -> None:
    assert memory.ran_out(f"before\n{text}\nafter")


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: FIND was unable to find an engine to execute this computation",
        "NotFoundError: No algorithm worked! Error messages:",
    ],
)
def test_ambiguous_error_is_one_of_memory_if_the_device_is_full(text: str) -> None:
    assert memory.device_ran_out(text, lambda: 0.01)
    assert not memory.device_ran_out(text, lambda: 0.6)
    assert not memory.device_ran_out(text, lambda: None)  # without a driver the cause is open


def test_other_errors_are_not_out_of_memory() -> None:
    assert not memory.ran_out("ValueError: shapes (3, 4) and (5,) not aligned\nKeyError: 'memory'")
    assert not memory.device_ran_out("ValueError: shapes", lambda: pytest.fail("asks the driver"))


def test_warm_up_is_estimated() -> None:
    rng = np.random.default_rng(0)
    flat = 0.01 * np.exp(0.02 * rng.standard_normal(60))
    slow_start = flat * np.where(np.arange(60) < 7, 1.5, 1.0)
    assert 7 <= timing.estimate_warmup(list(slow_start)) <= 9
    assert timing.estimate_warmup(list(flat)) < 20
    spiked = flat.copy()
    spiked[20] = 1.0  # a late outlier is not the end of a warm-up
    assert timing.estimate_warmup(list(spiked)) < 20
    assert [timing.estimate_warmup([0.1] * count) for count in (0, 1, 2, 3)] == [0, 1, 1, 1]


def test_grid_has_every_combination_once() -> None:
    settings = grid.Settings(models=("resnet18", "vgg16"), batch_sizes=(1, 2), image_sizes=(32, 64))
    treatments = grid.treatments(settings)
    assert len({cell.name for cell in treatments}) == len(treatments) == 2 * 2 * 2 * 2
    groups = [cell.group for cell in treatments]
    assert {groups.count(name) for name in groups} == {2}

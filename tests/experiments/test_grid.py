"""The grid on synthetic tensors: small real campaigns, memory that ends, and calls that cannot be."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import pytest

from experiments.cell import timing
from experiments.comparison.analyses.memory_limits import edges
from experiments.comparison.runs.query import table
from experiments.comparison.verdicts.findings import Edge
from experiments.config import memory
from experiments.run.journal_runs import cell_results
from experiments.studies import grid
from tests.conftest import Place, toy_costs
from tracking import tables
from tracking.errors import UsageError
from tracking.records import RunOutcome
from tracking.store import Store
from tracking.technical import unpack_tags

QUICK = {
    "threads": "1",
    "figures": "false",
    "models": "mobilenet_v2",
    "batch_sizes": "1,3",
    "image_sizes": "64",
    "seconds": "0.2",
    "least_steps": "12",
    "classes": "10",
    "sensor_seconds": "0.1",
    "others_limit_percent": "100",
    "blocks": "1",
}


def run(place: Place, **given: str) -> subprocess.CompletedProcess[str]:
    settings = {"cache": str(place.cache), "journal": str(place.journal), **QUICK, **given}
    return place.call(
        sys.executable,
        "-m",
        "experiments",
        "grid",
        *(f"--{name}={value}" for name, value in settings.items()),
    )


def cells(place: Place) -> list[mlflow.entities.Run]:
    return list(
        mlflow.MlflowClient(place.uri).search_runs(
            ["1"], "tags.kind = 'cell'", order_by=["attributes.start_time"]
        )
    )


def raw(cell: mlflow.entities.Run, phase: str) -> list[float]:
    """Seconds of each step or request."""
    found = tables.read(Path(cell.info.artifact_uri, "values.parquet"), ("phase", "seconds"))
    return [
        seconds for of, seconds in zip(found["phase"], found["seconds"], strict=True) if of == phase
    ]


@pytest.mark.parametrize(
    "other", ["keras-torch", pytest.param("tensorflow", marks=pytest.mark.slow)]
)
def test_every_point_is_timed_in_both_phases_and_frameworks(place: Place, other: str) -> None:
    done = run(
        place, frameworks=f"pytorch,{other}", models="lenet", image_sizes="28", batch_sizes="3"
    )
    assert done.returncode == 3, done.stdout + done.stderr  # one block: no verdict
    found = cells(place)
    assert len(found) == 2
    for cell in found:
        rows, metrics = int(cell.data.params["batch_size"]), cell.data.metrics
        assert cell.data.tags["model"] == "lenet"
        assert cell.data.tags["parity"] == "equal"
        assert metrics["model/trainable_parameters"] == 61_706
        assert metrics["check/train_steps"] >= 13
        assert metrics["check/train_warmup"] >= 1
        seconds = {phase: raw(cell, phase) for phase in ("train", f"inference_batch_{rows}")}
        steady = seconds["train"][int(metrics["check/train_warmup"]) :]
        assert metrics["train/step_seconds"] == pytest.approx(np.median(steady))
        assert metrics["train/examples_per_second"] == pytest.approx(rows / np.mean(steady))
        assert metrics["inference/first_call_seconds"] == pytest.approx(
            seconds[f"inference_batch_{rows}"][0]
        )
        assert metrics["memory/peak_rss_bytes"] > 1e8
        assert "train/total_seconds" not in metrics
    report = next(place.journal.glob("*/report/report.md")).read_text()
    assert "model=lenet, image\\_size=28, batch\\_size=3" in report
    assert "Where memory ends" not in report


def test_what_does_not_fit_is_a_result_and_nothing_larger_is_tried(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # two images of 64 × 64 need a few MiB beyond the program itself; 4,000 need 200 MB, and 4 GB of the toy's device
    for name, text in toy_costs(row_bytes=1_000_000).items():
        monkeypatch.setenv(name, text)
    sizes = {
        "batch_sizes": "2,4000,8000",
        "memory_limit": "1500MB",
        "phases": "inference",
        "blocks": "2",
    }
    done = run(place, frameworks="toy", **sizes)
    assert done.returncode == 3, done.stdout + done.stderr
    outcomes = {
        (cell.data.params["batch_size"], cell.data.tags["block"]): unpack_tags(cell.data.tags)
        for cell in cells(place)
    }
    assert {key: tags["outcome"] for key, tags in outcomes.items()} == {
        (size, block): "ok" if size == "2" else "out_of_memory"
        for size in ("2", "4000", "8000")
        for block in ("1", "2")
    }
    tried = [
        tags
        for (_, _), tags in outcomes.items()
        if tags["outcome"] == "out_of_memory" and "implied" not in tags
    ]
    assert 1 <= len(tried) <= 2  # 8,000 may come first
    assert all(
        "inference, batch" in tags["outcome_reason"] or "build" in tags["outcome_reason"]
        for tags in tried
    )
    assert outcomes["8000", "2"]["outcome_reason"].startswith("implied: batch_size ")
    assert "out_of_memory (implied: batch_size " in done.stdout
    again = place.call(
        *(
            sys.executable,
            "-m",
            "experiments",
            "grid",
            f"--cache={place.cache}",
            f"--journal={place.journal}",
            "--resume=last",
        )
    )
    assert again.returncode == 3, again.stdout + again.stderr
    assert len(cells(place)) == 6  # what did not fit is known, and is not tried again
    ends = set(cell_results(next(place.journal.iterdir())).values())
    assert {end.outcome for end in ends} == {RunOutcome.OK, RunOutcome.OUT_OF_MEMORY}
    assert {end.phase for end in ends} <= {"", "inference"}
    runs = table(Store(place.uri).runs("grid", "tags.kind = 'cell'"))
    found = edges(runs, factor="framework", strata=("model", "image_size", "batch_size"))
    assert found == (Edge("toy", "model=mobilenet_v2, image_size=64", 2, 4000, "inference"),)


@pytest.mark.slow
def test_inference_is_measured_where_training_does_not_fit(place: Place) -> None:
    # answers need the largest layer's activations, training those of all layers
    done = run(place, frameworks="pytorch", batch_sizes="60", memory_limit="1350MB")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "[ 2/2] " in done.stdout
    found = {cell.data.params["phases"]: cell.data for cell in cells(place)}
    assert set(found) == {"inference,train", "inference"}
    whole, alone = found["inference,train"], found["inference"]
    assert (whole.tags["outcome"], whole.tags["phase"]) == ("out_of_memory", "train")
    assert alone.tags["outcome"] == "ok"
    assert alone.metrics["inference/latency_seconds_p50"] > 0
    runs = table(Store(place.uri).runs("grid", "tags.kind = 'cell'"))
    assert edges(runs, factor="framework", strata=("model", "image_size", "batch_size")) == (
        Edge("pytorch", "model=mobilenet_v2, image_size=64", None, 60, "train"),
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [("none", 0), ("2GiB", 2**31), ("500MB", 5 * 10**8), ("1.5 GiB", 1_610_612_736), ("7", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert memory.size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1GiB", "2 TB", "GiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        memory.size(text)


@pytest.mark.parametrize(
    "text",
    [
        "MemoryError: ",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "ResourceExhaustedError: {{function_node __wrapped__Conv2D}} OOM when allocating tensor with shape[8,64]",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 11.4 GiB for an array",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "XlaRuntimeError: INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: failed to allocate",
    ],
)
def test_every_way_of_running_out_is_recognised(text: str) -> None:
    assert memory.ran_out(f"before\n{text}\nafter")


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: FIND was unable to find an engine to execute this computation",
        "NotFoundError: No algorithm worked! Error messages:",
    ],
)
def test_an_error_of_several_causes_is_one_of_memory_where_the_device_is_full(text: str) -> None:
    assert memory.device_ran_out(text, lambda: 0.01)
    assert not memory.device_ran_out(text, lambda: 0.6)
    assert not memory.device_ran_out(
        text, lambda: None
    )  # no driver that answers: its cause is not known


def test_the_driver_is_asked_for_no_other_error() -> None:
    assert not memory.device_ran_out("ValueError: shapes", lambda: pytest.fail("asked"))


def test_other_errors_are_not_taken_for_it() -> None:
    assert not memory.ran_out("ValueError: shapes (3, 4) and (5,) not aligned\nKeyError: 'memory'")


def test_warm_up_is_found() -> None:
    rng = np.random.default_rng(0)
    flat = 0.01 * np.exp(0.02 * rng.standard_normal(60))
    slow_start = flat * np.where(np.arange(60) < 7, 1.5, 1.0)
    assert 7 <= timing.estimate_warmup(list(slow_start)) <= 9
    assert timing.estimate_warmup(list(flat)) < 20
    spiked = flat.copy()
    spiked[20] = 1.0  # a late outlier is not the end of a warm-up
    assert timing.estimate_warmup(list(spiked)) < 20
    assert [timing.estimate_warmup([0.1] * count) for count in (0, 1, 2, 3)] == [0, 1, 1, 1]


def test_every_combination_once_and_compared_ones_together() -> None:
    settings = grid.Settings(models=("resnet18", "vgg16"), batch_sizes=(1, 2), image_sizes=(32, 64))
    found = grid.treatments(settings)
    assert len({one.name for one in found}) == len(found) == math.prod((2, 2, 2, 2))
    assert all(
        len([one for one in found if one.group == name]) == 2
        for name in {one.group for one in found}
    )


@pytest.mark.slow
def test_tensorflow_ends_in_the_same_outcome(place: Place) -> None:
    sizes = {"batch_sizes": "2,8000", "memory_limit": "2500MB", "phases": "inference"}
    done = run(place, frameworks="tensorflow", **sizes)
    assert done.returncode == 3, done.stdout + done.stderr
    outcomes = {cell.data.params["batch_size"]: cell.data.tags["outcome"] for cell in cells(place)}
    assert outcomes == {"2": "ok", "8000": "out_of_memory"}

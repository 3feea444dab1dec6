"""Stage 1: DenseNet-201 features of every picture, timed as a run of its own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cell import peak_memory
from experiments.cell.measure import memory_peaks, write_environment, write_values
from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.timing import PhaseValues
from experiments.contract import CellSpec, Output
from experiments.datasets import images
from experiments.datasets.captions import CaptionData
from experiments.datasets.files import alone
from experiments.workloads.captioning import features
from models import weights
from models.contract import Array, Framework
from models.densenet201.spec import Spec
from tracking import clock

# Pictures of a call.
BATCH_SIZE = 32


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    """Continues where an earlier extraction stopped; every batch is on disk before the next begins."""
    data = CaptionData.open(Path(spec.inputs["index"]))
    folder = Path(spec.inputs["features"])
    network = encoder(framework, spec.inputs["weights"], spec.settings["seed"])
    with alone(
        folder / ".lock"
    ):  # another campaign may be at the same pictures; what it has done is then found done
        peaks = DevicePeaks(framework)
        values, broken = _extract(spec, framework, network, data, folder, peaks, output)
    _report(
        spec, framework, values, {data.images[i]: why for i, why in broken.items()}, peaks, output
    )


def _extract(
    spec: CellSpec,
    framework: Framework,
    network: Any,
    data: CaptionData,
    folder: Path,
    peaks: DevicePeaks,
    output: Output,
) -> tuple[PhaseValues, dict[int, str]]:
    array = features.open_for_writing(folder, len(data.images))
    broken, start = features.broken(folder), features.rows_done(folder)
    seconds: list[float] = []
    examples: list[int] = []
    output.begin()
    began = clock.now()
    size = BATCH_SIZE
    for first, pixels, unreadable in images.batches(
        Path(data.source), data.images, size=spec.inputs["image_size"], batch=size, start=start
    ):
        begin = time.perf_counter()
        pooled = _infer_whole(framework, network, pixels, size)
        seconds.append(time.perf_counter() - begin)
        peaks.end_warmup()
        examples.append(len(pixels))
        array[first : first + len(pixels)] = pooled
        array.flush()
        broken |= dict(unreadable)
        features.mark_done(folder, first + len(pixels), broken)
        output.progress("features", first + len(pixels), len(data.images))
    features.mark_done(folder, len(data.images), broken, complete=True)
    output.window("features", began, clock.now(), sum(examples))
    return PhaseValues("features", tuple(seconds), tuple(examples), 1), broken


def encoder(framework: Framework, source: str, seed: int) -> Any:
    """DenseNet-201 without its classifier, with the agreed weights."""
    shape = Spec(classes=None)
    network = framework.build(features.MODEL, shape)
    framework.load_weights(network, weights.load(source, features.MODEL, shape, seed))
    return network


def _infer_whole(framework: Framework, network: Any, pixels: Array, batch: int) -> Array:
    # The last batch is filled up so that compiled graphs see one shape only.
    filled = np.concatenate(
        [pixels, np.zeros((batch - len(pixels), *pixels.shape[1:]), pixels.dtype)]
    )
    return framework.infer(network, (filled,))[: len(pixels)]


def _report(
    spec: CellSpec,
    framework: Framework,
    values: PhaseValues,
    broken: dict[str, str],
    peaks: DevicePeaks,
    output: Output,
) -> None:
    steady = values.seconds[values.warmup :]
    metrics = {
        "features/images": float(sum(values.examples)),
        "features/total_seconds": sum(values.seconds),
        **memory_peaks(spec, peaks, peak_memory.rss_bytes(), output),
    }
    if values.seconds:
        metrics["features/first_batch_seconds"] = values.seconds[0]
    if steady:
        metrics["features/images_per_second"] = sum(values.examples[values.warmup :]) / sum(steady)
    output.metrics(metrics)
    spec.path.mkdir(parents=True, exist_ok=True)
    write_values(spec.path / "values.parquet", [values])
    write_environment(spec.path / "environment.json", framework, spec.threads)
    (spec.path / "broken_images.json").write_text(json.dumps(broken, indent=1))
    for name in ("values.parquet", "environment.json", "broken_images.json"):
        output.artifact(name)

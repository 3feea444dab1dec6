"""Extraction of DenseNet-201 features of every picture, timed as a separate run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from experiments.cell import peak_memory
from experiments.cell.measure import memory_peaks, write_environment, write_values
from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.timing import PhaseValues
from experiments.contract import CellSpec, Output
from experiments.datasets import filled, images
from experiments.datasets.captions import CaptionData
from experiments.datasets.files import hold_lock
from experiments.studies.captioning import Settings
from experiments.workloads.captioning import features
from models.contract import Framework

BATCH_SIZE = 32


def run(spec: CellSpec[Settings], framework: Framework, output: Output) -> None:
    """Extract the features, from where an earlier extraction stopped."""
    data = CaptionData.open(Path(spec.inputs["index"]))
    folder = Path(spec.inputs["features"])
    network = features.encoder(framework, spec.inputs["weights"], spec.settings.seed)
    with hold_lock(folder / ".lock"):  # another campaign may extract the same pictures
        peaks = DevicePeaks(framework)
        values = _extract(spec, framework, network, data, folder, peaks, output)
    metrics = {
        "features/images": float(sum(values.examples)),
        "features/total_seconds": sum(values.seconds),
        **memory_peaks(spec, peaks, peak_memory.rss_bytes(), output),
    }
    if values.seconds:
        metrics["features/first_batch_seconds"] = values.seconds[0]
    seconds, examples = values.steady
    if seconds:
        metrics["features/images_per_second"] = sum(examples) / sum(seconds)
    output.metrics(metrics)
    spec.path.mkdir(parents=True, exist_ok=True)
    write_values(spec.path / "values.parquet", [values])
    write_environment(spec.path / "environment.json", framework, spec.threads)
    _, reasons = features.read_progress(folder)
    broken = {data.images[image]: reason for image, reason in reasons.items()}
    (spec.path / "broken_images.json").write_text(json.dumps(broken, indent=1))
    for name in ("values.parquet", "environment.json", "broken_images.json"):
        output.artifact(name)


def _extract(
    spec: CellSpec[Settings],
    framework: Framework,
    network: Any,
    data: CaptionData,
    folder: Path,
    peaks: DevicePeaks,
    output: Output,
) -> PhaseValues:
    """Extract batch by batch; each is on disk before the next begins."""
    array = features.open_for_writing(folder, len(data.images))
    start, broken = features.read_progress(folder)
    seconds: list[float] = []
    examples: list[int] = []
    with output.phase("features") as phase:
        batches = images.batches(
            Path(data.source),
            data.images,
            size=spec.inputs["image_size"],
            batch=BATCH_SIZE,
            start=start,
        )
        for first, pixels, unreadable in batches:
            begin = time.perf_counter()
            # the last batch is filled up: compiled graphs see only one shape
            pooled = framework.infer(network, (filled(pixels, BATCH_SIZE),))[: len(pixels)]
            seconds.append(time.perf_counter() - begin)
            peaks.end_warmup()
            examples.append(len(pixels))
            array[first : first + len(pixels)] = pooled
            array.flush()
            broken |= dict(unreadable)
            features.write_progress(folder, first + len(pixels), broken)
            output.progress("features", first + len(pixels), len(data.images))
        features.write_progress(folder, len(data.images), broken)
        (folder / "complete").touch()
        phase.examples = sum(examples)
    return PhaseValues("features", tuple(seconds), tuple(examples), 1)

"""By the framework's own plain loop: its network, its optimizer, and one clock around each step and request, no more.

The process is set up as for this harness (threads, precision, convolutions); of the adapter nothing runs while time is taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import models
from experiments.cell import peak_memory, timing
from experiments.cell.measure import memory_peaks, write_run_files
from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.timing import PhaseValues
from experiments.contract import CellSpec, Output
from experiments.workloads.grid.measure import PLACES, Budget, budget_of, drawn_batch, first_losses, values_of
from models import frameworks
from models.contract import Framework
from tracking import clock


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    loop = open_loop("plain", "Plain", spec, framework, output)
    phases = {"inference": _inference, "train": _training}
    peaks = DevicePeaks(framework)
    found = [phases[phase](loop, framework, spec, peaks, output) for phase in spec.settings["phases"]]
    output.metrics(memory_peaks(spec, peaks, peak_memory.rss_bytes(), output))
    summary = {name: value for _, one in found for name, value in one.items()}
    write_run_files(spec, framework, [values for values, _ in found], summary, output)


def open_loop(name: str, kind: str, spec: CellSpec, framework: Framework, output: Output) -> Any:
    """Return a framework's loop of its own on the grid's network, weights and batch."""
    spec.path.mkdir(parents=True, exist_ok=True)
    settings = spec.settings
    module, rng = models.spec(settings["model"]), np.random.default_rng(settings["seed"])
    sizes = module.Spec(classes=settings["classes"])
    weights = module.initial_weights(sizes, rng)
    batch = drawn_batch(sizes, settings["image_size"], settings["batch_size"], rng)
    network = models.load(settings["model"], framework.architecture).build(sizes)
    make = getattr(frameworks.loop(framework.name, name), kind)
    loop = make(network, weights, batch.inputs[0], batch.targets, framework.device)
    output.metrics({"check/peak_memory_of_training": peak_memory.settle()})
    return loop


def _inference(
    loop: Any, framework: Framework, spec: CellSpec, peaks: DevicePeaks, output: Output
) -> tuple[PhaseValues, dict[str, float]]:
    rows = spec.settings["batch_size"]
    told = f"inference, batch {rows}"
    seconds, _, budget = _timed(loop.requests(), framework, spec, peaks, output, "inference", told)
    values = values_of(f"inference_batch_{rows}", seconds, rows, budget)
    summary = timing.summarise_requests(values)
    output.metrics(summary)
    return values, summary


def _training(
    loop: Any, framework: Framework, spec: CellSpec, peaks: DevicePeaks, output: Output
) -> tuple[PhaseValues, dict[str, float]]:
    rows = spec.settings["batch_size"]
    steps = loop.steps(spec.settings["learning_rate"])
    told = f"training, batch {rows}"
    seconds, losses, budget = _timed(steps, framework, spec, peaks, output, "train", told)
    values = values_of("train", seconds, rows, budget)
    summary = timing.summarise_training(values, sum(seconds)) | first_losses(losses, spec.settings)
    del summary["train/total_seconds"]  # a budget, not a result
    output.metrics(summary, step=len(seconds))
    return values, summary


def _timed(
    work: Callable[[], Any],
    framework: Framework,
    spec: CellSpec,
    peaks: DevicePeaks,
    output: Output,
    phase: str,
    told: str,
) -> tuple[list[float], list[Any], Budget]:
    """The seconds of each call, what it returned, and how long they went on."""
    seconds: list[float] = []
    returned = []
    output.progress(told, 0, None)
    output.begin(PLACES[phase])
    budget = budget_of(spec, framework, output)
    peaks.begin_warmup()
    while budget.step():
        began = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - began)
        budget.stepped(peaks)
        returned.append(found if phase == "train" else None)
        output.turn()
    budget.record(spec, phase)
    prefix = "" if phase == "train" else "inference/"
    examples = spec.settings["batch_size"] * (len(seconds) - budget.warm_up_steps)
    output.window(phase, budget.began, clock.now(), examples, prefix, budget.pauses)
    return seconds, returned, budget

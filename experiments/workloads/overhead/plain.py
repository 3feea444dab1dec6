"""By the framework's own plain loop: its network, its optimizer, and one clock around each step and request, no more.

The process is set up as for this harness (threads, precision, convolutions); of the adapter nothing runs while time is taken.
"""

from __future__ import annotations

import time
from typing import Any

import models
from experiments.cell import peak_memory, timing
from experiments.cell.peak_memory import DevicePeaks
from experiments.contract import CellSpec, Output
from experiments.workloads.grid.measure import (
    PLACES,
    Measured,
    budget_of,
    close_phase,
    drawn_batch,
    finish,
    open_point,
    summarise,
)
from models import frameworks
from models.contract import Framework


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    loop = open_loop("plain", "Plain", spec, framework, output)
    peaks = DevicePeaks(framework)
    measured = [
        _measure(loop, phase, framework, spec, peaks, output) for phase in spec.settings["phases"]
    ]
    finish(spec, framework, measured, peaks, output)


def open_loop(name: str, kind: str, spec: CellSpec, framework: Framework, output: Output) -> Any:
    """Return a framework's loop of its own on the grid's network, weights and batch."""
    module, sizes, rng = open_point(spec)
    settings = spec.settings
    weights = module.initial_weights(sizes, rng)
    batch = drawn_batch(sizes, settings["image_size"], settings["batch_size"], rng)
    network = models.load(settings["model"], framework.architecture).build(sizes)
    make = getattr(frameworks.loop(framework.name, name), kind)
    loop = make(network, weights, batch.inputs[0], batch.targets, framework.device)
    output.metrics({"check/peak_memory_of_training": peak_memory.settle()})
    return loop


def _measure(
    loop: Any, phase: str, framework: Framework, spec: CellSpec, peaks: DevicePeaks, output: Output
) -> Measured:
    """Time each call of a phase, and nothing besides."""
    is_training = phase == "train"
    work = loop.steps(spec.settings["learning_rate"]) if is_training else loop.requests()
    seconds, losses = list[float](), list[float]()
    output.progress(
        f"{'training' if is_training else phase}, batch {spec.settings['batch_size']}", 0, None
    )
    output.begin(PLACES[phase])
    budget = budget_of(spec, framework, output)
    peaks.begin_warmup()
    while budget.step():
        began = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - began)
        budget.stepped(peaks)
        if is_training:
            losses.append(result)
        output.turn()
    values = close_phase(spec, phase, seconds, budget, output)
    summary = summarise(spec, values, losses) if is_training else timing.summarise_requests(values)
    output.metrics(summary, step=len(seconds) if is_training else 0)
    return [values], summary

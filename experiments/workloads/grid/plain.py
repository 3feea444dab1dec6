"""Measurement of a framework's own plain loop: its network, its optimizer, and one clock.

The process is set up as for this harness (threads, precision, convolutions); nothing of the
adapter runs while time is taken.
"""

from __future__ import annotations

from typing import Any

import models
from experiments.cell import peak_memory, timing
from experiments.cell.peak_memory import DevicePeaks
from experiments.contract import CellSpec, Output
from experiments.workloads.grid.measure import (
    Measured,
    drawn_batch,
    finish,
    measure_calls,
    open_point,
    summarise,
)
from models import frameworks
from models.contract import Framework


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    module, sizes, rng = open_point(spec)
    settings = spec.settings
    weights = module.initial_weights(sizes, rng)
    batch = drawn_batch(sizes, settings["image_size"], settings["batch_size"], rng)
    network = models.load(settings["model"], framework.architecture).build(sizes)
    loop = frameworks.load(framework.name, "plain_loop").Plain(
        network, weights, batch.inputs[0], batch.targets, framework.device
    )
    output.metrics({"check/peak_memory_of_training": peak_memory.settle()})
    peaks = DevicePeaks(framework)
    measured = [
        _measure(loop, phase, framework, spec, peaks, output) for phase in settings["phases"]
    ]
    finish(spec, framework, measured, peaks, output)


def _measure(
    loop: Any, phase: str, framework: Framework, spec: CellSpec, peaks: DevicePeaks, output: Output
) -> Measured:
    is_training, losses = phase == "train", list[float]()
    call = loop.steps(spec.settings["learning_rate"]) if is_training else loop.requests()
    on_result = losses.append if is_training else lambda _: None
    values = measure_calls(spec, framework, phase, call, peaks, output, on_result=on_result)
    summary = summarise(spec, values, losses) if is_training else timing.summarise_requests(values)
    output.metrics(summary, step=len(values.seconds) if is_training else 0)
    return [values], summary

"""Measurement of a framework's own plain loop: its network, its optimizer, and one clock.

The process is set up as for this harness (threads, precision, convolutions); nothing of the
adapter runs while time is taken.
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
    Budget,
    Measured,
    close_phase,
    drawn_batch,
    finish,
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
    is_training = phase == "train"
    work = loop.steps(spec.settings["learning_rate"]) if is_training else loop.requests()
    seconds, losses = list[float](), list[float]()
    title = "training" if is_training else phase
    output.progress(f"{title}, batch {spec.settings['batch_size']}", 0, None)
    output.begin(PLACES[phase])
    budget = Budget.of(spec, framework, output)
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

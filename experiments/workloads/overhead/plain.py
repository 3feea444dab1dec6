"""Measurement of a framework's own plain loop: its network, its optimizer, and one clock.

The process is set up as for this harness (threads, precision, convolutions); nothing of the
adapter runs while time is taken.
"""

from __future__ import annotations

from typing import Any

import models
from experiments.cell import peak_memory, timing
from experiments.cell.loop import count_step, time_calls
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
    loop = frameworks.plain_loop(framework.name).Plain(
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
    call = loop.steps(spec.settings["learning_rate"]) if is_training else loop.requests()
    losses = list[Any]()

    def keep_loss(result: Any) -> None:
        count_step(budget.warm_up, peaks)
        if is_training:
            losses.append(result)

    title = "training" if is_training else phase
    output.progress(f"{title}, batch {spec.settings['batch_size']}", 0, None)
    output.begin(PLACES[phase])
    budget = Budget.of(spec, framework, output)
    peaks.begin_warmup()
    seconds, _ = time_calls((call for _ in budget), output, keep_loss)
    values = close_phase(spec, phase, seconds, budget, output)
    summary = summarise(spec, values, losses) if is_training else timing.summarise_requests(values)
    output.metrics(summary, step=len(seconds) if is_training else 0)
    return [values], summary

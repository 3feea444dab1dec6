"""Measurement of one network: warm-up, then timed steps, on batches that were made before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice, takewhile

import numpy as np

import models
from experiments.cell import peak_memory, timing
from experiments.cell.loop import TrainingLoop
from experiments.cell.measure import (
    as_timed,
    check_losses,
    check_parameters,
    memory_peaks,
    optimizer_config,
    record_implementation,
    write_run_files,
    write_work,
)
from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.profile import profile
from experiments.cell.timing import PhaseValues, Stopwatch
from experiments.cell.warm_up import WarmUp, of_gpu
from experiments.contract import CellSpec, Output
from experiments.studies.training_speed import Settings
from experiments.workloads.training_speed import inputs
from models.contract import Batch, Framework
from models.flops import Network
from tracking import clock


def run(spec: CellSpec[Settings], framework: Framework, output: Output) -> None:
    """Measure a training."""
    spec.path.mkdir(parents=True, exist_ok=True)
    settings, model = spec.settings, spec.settings.model
    if settings.graph_off != "none":
        framework.disable_graph_optimizer(settings.graph_off)
    rows, varying = settings.batch_size, settings.lengths == "varying"
    module, rng = models.spec(model), np.random.default_rng([settings.seed, spec.block])
    sizes = inputs.sizes(module, settings.size, settings.ctc, settings.lstm)
    output.progress("build", 0, None)
    network = framework.build(model, sizes)
    output.metrics(check_parameters(model, module.parameters(sizes), framework, network))
    framework.load_weights(network, module.initial_weights(sizes, rng))
    batches = inputs.batches(module, sizes, settings.size, rows=rows, varying=varying, rng=rng)
    write_work(spec, framework, Network.computed(model, sizes, batches), rows, rows)
    output.metrics({"check/peak_memory_of_training": peak_memory.settle()})
    optimizer = framework.optimizer(network, optimizer_config(settings))
    peaks = DevicePeaks(framework)
    warm_up = of_gpu(framework, output, _steps_before(settings))
    loop = TrainingLoop(framework, network, optimizer, output, peaks, warm_up)
    watch, epoch_seconds = _train(spec, loop, batches, warm_up, output)

    steps = len(watch.losses)
    warmup = steps - settings.steps
    single_steps = watch.seconds[: _steps_before(settings)] + watch.seconds[warmup:]
    total_seconds = sum(single_steps) + sum(window.seconds for window in watch.windows)
    examples = (rows,) * len(watch.seconds)
    values = PhaseValues(
        "train", tuple(watch.seconds), examples, warmup, end_times=tuple(watch.end_times)
    )
    windows = timing.of_windows(() if watch.held_up else watch.windows, rows)
    summary = timing.summarise_training(values, total_seconds)
    summary = as_timed(spec, summary, windows, output, held_up=watch.held_up)
    summary |= memory_peaks(spec, peaks, peak_memory.rss_bytes(), output)
    if varying:
        summary["train/first_epoch_seconds"] = epoch_seconds[0]
        summary["train/epoch_seconds"] = epoch_seconds[-1]
    output.metrics(summary, step=_steps_before(settings) + settings.steps)
    record_implementation(spec, framework, network, optimizer, output)
    write_run_files(spec, framework, [values, windows], summary, output)
    if settings.profile:
        profile(spec, framework, network, optimizer, lambda: cycle(batches), output)


def _train(
    spec: CellSpec[Settings],
    loop: TrainingLoop,
    batches: Sequence[Batch],
    warm_up: WarmUp | None,
    output: Output,
) -> tuple[Stopwatch, list[float]]:
    """Train; return the clock, and the seconds of each part."""
    settings, before = spec.settings, _steps_before(spec.settings)
    total = before + settings.steps
    watch = loop.stopwatch(
        timing.pace(settings, 0 if warm_up else before),
        lambda step, *_: output.progress("training", step, None if warm_up else total),
        least=before,
    )
    seconds, end_times = list[float](), list[float]()
    with output.phase("train") as phase:
        for part in _parts(batches, settings, warm_up):
            seconds.append(loop.run(part, watch))
            end_times.append(clock.now())
        phase.examples = settings.batch_size * total
        # how long a GPU needed is no result
        phase.pauses = [(end_times[0], end_times[1])] if len(end_times) > 2 else []
    check_losses(watch.losses)
    loop.compiling.record(spec, settings.model, output)
    if warm_up:
        warm_up.record(spec, "train", output)
    return watch, seconds


def _steps_before(settings: Settings) -> int:
    """Return the steps before the timed ones: an epoch of as many where lengths vary."""
    is_varying = settings.lengths == "varying"
    return int(settings.steps if is_varying else settings.warmup_steps)


def _parts(
    batches: Sequence[Batch], settings: Settings, warm_up: WarmUp | None
) -> Iterator[Iterator[Batch]]:
    """Yield the steps before the timed ones, more for the warm-up of a GPU, and the timed ones."""
    yield islice(cycle(batches), _steps_before(settings))
    if warm_up and not warm_up.is_over:
        yield takewhile(lambda _: not warm_up.is_over, cycle(batches))
    yield islice(cycle(batches), int(settings.steps))

"""One network in one framework: warm-up, then timed steps, on batches that were made before."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice, takewhile
from typing import Any

import numpy as np

import models
from experiments.cell import peak_memory, timing
from experiments.cell.compiling import Compiling
from experiments.cell.measure import (
    as_timed,
    check_losses,
    check_parameters,
    make_optimizer,
    memory_peaks,
    record_implementation,
    write_run_files,
)
from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.profile import profile
from experiments.cell.timing import PhaseValues, Stopwatch
from experiments.cell.warm_up import WarmUp, of_gpu
from experiments.contract import CellSpec, Output
from experiments.workloads.training_speed import inputs
from models.contract import Batch, Framework
from tracking import clock


def run(spec: CellSpec, framework: Framework, output: Output) -> tuple[Any, Any, list[Batch]]:
    """The network, its optimizer and the batches, for what is to be asked of them when all is measured."""
    spec.path.mkdir(parents=True, exist_ok=True)
    settings = spec.settings
    model, rows, varying = settings["model"], settings["batch_size"], settings["lengths"] == "varying"
    module, rng = models.spec(model), np.random.default_rng([settings["seed"], spec.block])
    sizes = inputs.sizes(module, settings["size"], settings["ctc"], settings.get("lstm", "layer"))
    output.progress("build", 0, None)
    network = framework.build(model, sizes)
    output.metrics(check_parameters(model, module.parameters(sizes), framework, network))
    framework.load_weights(network, module.initial_weights(sizes, rng))
    folder = spec.inputs.get("data", {}).get(model, "")
    batches = inputs.batches(module, sizes, settings["size"], rows=rows, varying=varying, rng=rng, folder=folder)
    output.metrics({"check/peak_memory_of_training": peak_memory.settle()})
    optimizer, peaks = make_optimizer(spec, framework, network), DevicePeaks(framework)

    warmup = settings["steps"] if varying else settings["warmup_steps"]
    total = warmup + settings["steps"]
    compiling = Compiling(framework)
    warm_up = of_gpu(framework, output, warmup)

    def on_step(step: int, *_: float) -> None:
        compiling.stepped()
        if warm_up and not warm_up.is_over:
            warm_up.step()
            if warm_up.is_over:
                watch.go_on_with(timing.pace(settings, 0))
        if len(watch.losses) >= warmup and (warm_up is None or warm_up.is_over):
            peaks.end_warmup()
        output.progress("training", step, None if warm_up else total)

    pace = timing.EVERY_STEP if warm_up else timing.pace(settings, warmup)
    watch = Stopwatch(on_step, pace=pace, turn=output.turn)
    output.begin()
    began = clock.now()
    with compiling.epoch():
        epochs, ended = [], list[float]()
        for part in _parts(batches, settings, warm_up):
            epochs.append(_epoch(framework, network, optimizer, part, watch))
            ended.append(clock.now())
    least, warmup = warmup, len(watch.losses) - settings["steps"]
    pauses = [(ended[0], ended[1])] if len(ended) > 2 else []  # how long a GPU needed is no result
    singly = watch.seconds[:least] + watch.seconds[warmup:]
    seconds = sum(singly) + sum(one.seconds for one in watch.windows)
    check_losses(watch.losses)
    compiling.tell(spec, model, output)
    if warm_up:
        warm_up.record(spec, "train", output)
    output.window("train", began, clock.now(), rows * total, pauses=pauses)
    values = PhaseValues("train", tuple(watch.seconds), (rows,) * len(watch.seconds), warmup, ended=tuple(watch.ended))
    windows = timing.of_windows(() if watch.held_up else watch.windows, rows)
    on_device = timing.of_device(watch.on_device_seconds, rows)
    summary = timing.summarise_training(values, seconds)
    waits = framework.waits_in_step(network)
    summary = as_timed(spec, summary, windows, on_device, output, held_up=watch.held_up, waits=waits)
    summary |= memory_peaks(spec, peaks, peak_memory.rss_bytes(), output)
    if varying:
        summary |= {"train/first_epoch_seconds": epochs[0], "train/epoch_seconds": epochs[-1]}
    output.metrics(summary, step=total)
    record_implementation(spec, framework, network, optimizer, output)
    write_run_files(spec, framework, [values, windows, on_device], summary, output)
    if settings["profile"]:
        profile(spec, framework, network, optimizer, lambda: cycle(batches), output)
    return network, optimizer, batches


def _parts(batches: Sequence[Batch], settings: dict[str, int | str], warm_up: WarmUp | None) -> Iterator[Iterator[Batch]]:
    """What comes before the timed steps, an epoch of as many where lengths vary; then these.

    On a GPU the warm-up may need more in between.
    """
    before = settings["steps"] if settings["lengths"] == "varying" else settings["warmup_steps"]
    yield islice(cycle(batches), int(before))
    if warm_up and not warm_up.is_over:
        yield takewhile(lambda _: not warm_up.is_over, cycle(batches))
    yield islice(cycle(batches), int(settings["steps"]))


def _epoch(framework: Framework, network: object, optimizer: object, batches: Iterator[Batch], watch: Stopwatch) -> float:
    """Seconds, its batches placed; without what was told meanwhile."""
    began, telling = time.perf_counter(), watch.telling_seconds
    framework.train_epoch(network, optimizer, batches, watch)
    return time.perf_counter() - began - (watch.telling_seconds - telling)

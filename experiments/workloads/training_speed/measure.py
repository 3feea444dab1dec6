"""One network in one framework: warm-up, then timed steps, on batches that were made before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice, takewhile
from typing import Any

import numpy as np

import models
from experiments.cell import peak_memory, timing
from experiments.cell.loop import TrainingLoop, count_step
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
from experiments.cell.timing import PhaseValues
from experiments.cell.warm_up import WarmUp, of_gpu
from experiments.contract import CellSpec, Output
from experiments.workloads.training_speed import inputs
from models.contract import Batch, Framework
from tracking import clock


def run(spec: CellSpec, framework: Framework, output: Output) -> tuple[Any, Any, list[Batch]]:
    """The network, its optimizer and the batches, for what is to be asked of them when all is measured."""
    spec.path.mkdir(parents=True, exist_ok=True)
    settings = spec.settings
    model, rows, varying = (
        settings["model"],
        settings["batch_size"],
        settings["lengths"] == "varying",
    )
    module, rng = models.spec(model), np.random.default_rng([settings["seed"], spec.block])
    sizes = inputs.sizes(module, settings["size"], settings["ctc"], settings.get("lstm", "layer"))
    output.progress("build", 0, None)
    network = framework.build(model, sizes)
    output.metrics(check_parameters(model, module.parameters(sizes), framework, network))
    framework.load_weights(network, module.initial_weights(sizes, rng))
    folder = spec.inputs.get("data", {}).get(model, "")
    batches = inputs.batches(
        module, sizes, settings["size"], rows=rows, varying=varying, rng=rng, folder=folder
    )
    output.metrics({"check/peak_memory_of_training": peak_memory.settle()})
    optimizer, peaks = make_optimizer(spec, framework, network), DevicePeaks(framework)

    before = settings["steps"] if varying else settings["warmup_steps"]
    total = before + settings["steps"]
    loop, warm_up = (
        TrainingLoop(framework, network, optimizer, output),
        of_gpu(framework, output, before),
    )
    watch = loop.clock(
        timing.pace(settings, 0 if warm_up else before),
        lambda step: count_step(warm_up, peaks, is_warm=step >= before),
        lambda step, *_: output.progress("training", step, None if warm_up else total),
        is_warming=warm_up is not None,
    )
    output.begin()
    began = clock.now()
    epochs, ended = [], list[float]()
    for part in _parts(batches, settings, warm_up):
        epochs.append(loop.run(part, watch))
        ended.append(clock.now())
    warmup = len(watch.losses) - settings["steps"]
    pauses = [(ended[0], ended[1])] if len(ended) > 2 else []  # how long a GPU needed is no result
    singly = watch.seconds[:before] + watch.seconds[warmup:]
    seconds = sum(singly) + sum(one.seconds for one in watch.windows)
    check_losses(watch.losses)
    loop.compiling.tell(spec, model, output)
    if warm_up:
        warm_up.record(spec, "train", output)
    output.window("train", began, clock.now(), rows * total, pauses=pauses)
    values = PhaseValues(
        "train",
        tuple(watch.seconds),
        (rows,) * len(watch.seconds),
        warmup,
        ended=tuple(watch.ended),
    )
    windows = timing.of_windows(() if watch.held_up else watch.windows, rows)
    on_device = timing.of_device(watch.on_device_seconds, rows)
    summary = timing.summarise_training(values, seconds)
    waits = framework.waits_in_step(network)
    summary = as_timed(
        spec, summary, windows, on_device, output, held_up=watch.held_up, waits=waits
    )
    summary |= memory_peaks(spec, peaks, peak_memory.rss_bytes(), output)
    if varying:
        summary |= {"train/first_epoch_seconds": epochs[0], "train/epoch_seconds": epochs[-1]}
    output.metrics(summary, step=total)
    record_implementation(spec, framework, network, optimizer, output)
    write_run_files(spec, framework, [values, windows, on_device], summary, output)
    if settings["profile"]:
        profile(spec, framework, network, optimizer, lambda: cycle(batches), output)
    return network, optimizer, batches


def _parts(
    batches: Sequence[Batch], settings: dict[str, int | str], warm_up: WarmUp | None
) -> Iterator[Iterator[Batch]]:
    """What comes before the timed steps, an epoch of as many where lengths vary; then these.

    On a GPU the warm-up may need more in between.
    """
    before = settings["steps"] if settings["lengths"] == "varying" else settings["warmup_steps"]
    yield islice(cycle(batches), int(before))
    if warm_up and not warm_up.is_over:
        yield takewhile(lambda _: not warm_up.is_over, cycle(batches))
    yield islice(cycle(batches), int(settings["steps"]))

"""Trial of a training before any cell: how long a step and a request take."""

from __future__ import annotations

import time
from itertools import islice

import numpy as np

from experiments.cell.loop import TrainingLoop
from experiments.cell.measure import optimizer_config
from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.timing import EVERY_STEP
from experiments.config.settings import ModelSettings
from experiments.contract import REQUEST_SECONDS, STEP_SECONDS, CellSpec, Output, Task
from models.contract import Framework
from models.devices import CPU
from tracking.records import Tags

COUNT = 12  # the median is that of a warm one


def time_trial(
    task: Task, spec: CellSpec[ModelSettings], framework: Framework, output: Output
) -> None:
    """Record the seconds of a step and, on a GPU, of the quickest kind of request."""
    network = framework.build(task.model, task.spec)
    framework.load_weights(network, task.initial_weights())
    optimizer = framework.optimizer(network, optimizer_config(spec.settings))
    loop = TrainingLoop(framework, network, optimizer, output, DevicePeaks(framework))
    watch = loop.stopwatch(EVERY_STEP, lambda *_: None)
    loop.run(islice(task.training(0, framework), COUNT), watch)
    findings = {STEP_SECONDS: repr(float(np.median(watch.seconds)))}
    if framework.device != CPU:
        sizes = spec.settings.inference_batch_sizes
        seconds = min(_request_seconds(task, framework, network, size) for size in sizes)
        findings[REQUEST_SECONDS] = repr(seconds)
    output.record(Tags(spec.run, findings))


def _request_seconds(task: Task, framework: Framework, network: object, size: int) -> float:
    """Return the median time of a request, with that of making and placing its inputs."""
    ends = [time.perf_counter()]
    for index in range(COUNT):
        inputs = framework.place_inputs(task.request(size, index))
        task.answer(framework, network, inputs)
        ends.append(time.perf_counter())
    return float(np.median(np.diff(ends)))

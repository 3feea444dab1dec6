"""Check that the weights fit the network, and how long a step takes, before any cell."""

from __future__ import annotations

from itertools import islice

import numpy as np

from experiments.cell.loop import TrainingLoop
from experiments.cell.measure import optimizer_config
from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.timing import EVERY_STEP
from experiments.contract import CellSpec, Output
from experiments.studies.captioning import Settings
from experiments.workloads.captioning.features import encoder
from experiments.workloads.captioning.train import Captioning
from experiments.workloads.steps import STEP_SECONDS
from models.contract import Framework
from tracking.records import Tags

STEPS = 12  # the median is that of a warm step


def run(spec: CellSpec[Settings], framework: Framework, output: Output) -> None:
    source = spec.inputs.get("weights", "")
    if source not in ("", "random"):
        encoder(framework, source, spec.settings.seed)
    if spec.settings.training_seconds:
        seconds = _step_seconds(Captioning(spec, drawn=True), framework, spec, output)
        output.record(Tags(spec.run, {STEP_SECONDS: repr(seconds)}))


def _step_seconds(
    task: Captioning, framework: Framework, spec: CellSpec[Settings], output: Output
) -> float:
    network = framework.build(task.model, task.spec)
    framework.load_weights(network, task.initial_weights())
    optimizer = framework.optimizer(network, optimizer_config(spec.settings))
    loop = TrainingLoop(framework, network, optimizer, output, DevicePeaks(framework))
    watch = loop.stopwatch(EVERY_STEP, lambda *_: None)
    loop.run(islice(task.training(0, framework), STEPS), watch)
    return float(np.median(watch.seconds))

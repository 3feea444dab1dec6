"""The decoder trained by a loop that is not ours, on the same weights and batches: what the overhead study compares with."""

from __future__ import annotations

import time
from itertools import chain

import numpy as np

from experiments.cell import peak_memory, timing
from experiments.cell.contract import CellSpec, Output
from experiments.cell.measure import optimizer_config, write_values
from experiments.cell.timing import PhaseValues
from experiments.workloads.captioning.train import Captioning
from models import frameworks
from models.contract import Framework


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    spec.path.mkdir(parents=True, exist_ok=True)
    settings, task = spec.settings, Captioning(spec)
    loop = frameworks.loop(framework.name, settings["harness"].partition("+")[0])
    network = framework.build(task.model, task.spec)
    framework.load_weights(network, task.initial_weights())
    optimizer = framework.optimizer(network, optimizer_config(settings))
    batches = chain.from_iterable(task.training(epoch, framework) for epoch in range(settings["epochs"]))
    output.progress(settings["harness"], 0, None)
    output.begin()
    peak_memory.settle()
    clock, began = time.time(), time.perf_counter()
    seconds, losses = loop.train(network, optimizer, batches, framework.device)
    total_seconds = time.perf_counter() - began
    output.window("train", clock, time.time(), len(seconds) * task.examples_a_step)
    values = PhaseValues("train", tuple(seconds), (task.examples_a_step,) * len(seconds), settings["warmup_steps"])
    last_epoch = losses[-task.steps_per_epoch :]
    output.metrics(
        {
            **timing.summarise_training(values, total_seconds),
            "train/loss": float(np.mean(last_epoch)),
            "memory/peak_rss_bytes": peak_memory.rss_bytes(),
        },
        step=len(seconds),
    )
    write_values(spec.path / "values.parquet", [values])
    output.artifact("values.parquet")

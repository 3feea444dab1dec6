"""One group of workers: this process is the first and speaks for all; the others are its children."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import models
from experiments.cell import peak_memory, timing
from experiments.cell.measure import check_parameters, record_implementation, write_run_files
from experiments.cell.timing import PhaseValues
from experiments.contract import CellSpec, Output
from experiments.workloads.distributed import group, training
from experiments.workloads.distributed.group import Worker
from experiments.workloads.distributed.prepare import PROOFS
from experiments.workloads.distributed.training import Place
from models.contract import Framework
from tracking import clock, tables
from tracking.errors import EvenhandError
from tracking.records import Tags

LOOK_SECONDS = 1.0
SIGHT_SECONDS = 3.0  # a worker that has failed by itself is about to end


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    spec.path.mkdir(parents=True, exist_ok=True)
    count = spec.settings["worker_count"]
    patience_seconds = spec.settings["patience_seconds"]
    with (
        group.reserved(spec, count) as meeting,
        group.started(spec, meeting, range(1, count)) as workers,
    ):
        if spec.nodes:
            places = (group.node_of(rank, count, len(spec.nodes)) for rank in range(count))
            names = ",".join(spec.nodes[place].name for place in places)
            output.record(Tags(spec.run, {"workers.nodes": names}))
        try:
            group.meet(workers, group.START_SECONDS + patience_seconds)
            measure(spec, framework, Place(0, meeting.addresses), workers, output)
            group.wait_until_ended(workers, patience_seconds)
        except EvenhandError:
            raise
        except Exception as error:
            if why := group.trouble(workers, SIGHT_SECONDS):
                seen = f"{type(error).__name__}: {str(error)[:300]}"
                raise EvenhandError(f"{why}; the first worker saw {seen}") from error
            raise


def _watching(
    workers: list[Worker], output: Output, phase: str, steps: int
) -> Callable[[int], None]:
    """Tells each step, and looks at the others every second: where nothing is exchanged, nothing else tells of their end."""
    looked = time.monotonic()

    def on_step(step: int) -> None:
        nonlocal looked
        output.progress(phase, step, steps)
        if time.monotonic() - looked > LOOK_SECONDS:
            looked = time.monotonic()
            if why := group.trouble(workers, 0):
                raise EvenhandError(why)

    return on_step


def measure(
    spec: CellSpec, framework: Framework, place: Place, workers: list[Worker], output: Output
) -> None:
    """Train as the first worker, which times the steps and looks after the others: workers."""
    settings, model = spec.settings, spec.settings["model"]
    output.progress("build", 0, None)
    joined, batch = (
        training.joined(framework, place, settings),
        training.part(framework, place, settings),
    )
    output.ranks(_here(spec, joined.gathered([os.getpid()])[:, 0].astype(int).tolist()))
    expected = models.spec(model).parameters(models.spec(model).Spec(classes=settings["classes"]))
    output.metrics(check_parameters(model, expected, framework, joined.network))
    peak_memory.settle()
    rows, warmup = len(batch.targets) * place.workers, settings["warmup_steps"]
    steps = warmup + settings["steps"]
    output.begin()
    began = clock.now()
    seconds, losses = training.timed(
        joined, batch, steps, _watching(workers, output, "training", steps)
    )
    output.window("train", began, clock.now(), rows * steps)
    weights = training.fingerprint(framework.weights(joined.network))
    watching = _watching(workers, output, "alone", steps)
    record_implementation(spec, framework, joined.network, joined.optimizer, output)
    alone = training.timed_alone(joined, batch, steps, float(np.median(seconds)), watching)
    table = joined.gathered([weights, peak_memory.rss_bytes(), np.mean(losses), *seconds, *alone])
    joined.close()
    if not np.isfinite(table[:, 2]).all():
        raise EvenhandError("a loss is not finite; a smaller learning_rate may help")
    if len(set(table[:, 0])) > 1:
        raise EvenhandError("the workers have different weights after the same steps")
    values = PhaseValues("train", tuple(seconds), (rows,) * steps, warmup)
    apart = PhaseValues("train_alone", tuple(alone), (rows,) * steps, warmup)
    summary = timing.summarise_training(values, sum(seconds)) | _proven(spec)
    del summary["train/total_seconds"]  # so many steps, whatever they took
    summary |= {
        "train/alone_step_seconds": float(np.median(apart.steady[0])),
        "train/loss": float(table[:, 2].mean()),
        "memory/peak_rss_bytes": float(table[:, 1].sum()),
        "check/workers": place.workers,
    }
    output.record(Tags(spec.run, {"weights.digest": f"{int(weights):012x}"}))
    output.metrics(summary, step=steps)
    _write_ranks(spec, table[:, 3:], steps, output)
    write_run_files(spec, framework, [values, apart], summary, output)


def _here(spec: CellSpec, processes: list[int]) -> dict[int, int]:
    """Rank -> process id of those on this machine: on another node a number names another process."""
    nodes = max(1, len(spec.nodes))
    return {
        rank: pid
        for rank, pid in enumerate(processes)
        if group.node_of(rank, len(processes), nodes) == 0
    }


def _proven(spec: CellSpec) -> dict[str, float]:
    """By how much the weights of such workers differed from one's before anything was measured, and by how much they may."""
    own = (spec.framework, spec.settings["model"], spec.settings["group"])
    for one in spec.inputs.get(PROOFS, ()):
        if (one["framework"], one["model"], one["level"]) == own:
            return {"check/weights_error": one["error"], "check/weights_error_limit": one["limit"]}
    return {}


def _write_ranks(spec: CellSpec, seconds: Any, steps: int, output: Output) -> None:
    """Every worker's steps: rank, phase, step, seconds. seconds: (workers, 2 · steps), those without exchange last."""
    columns: dict[str, list[Any]] = {"rank": [], "phase": [], "step": [], "seconds": []}
    for rank, own in enumerate(seconds):
        columns["rank"] += [rank] * len(own)
        columns["phase"] += ["train"] * steps + ["train_alone"] * steps
        columns["step"] += [*range(steps), *range(steps)]
        columns["seconds"] += own.tolist()
    tables.write(spec.path / "ranks.parquet", columns)
    output.artifact("ranks.parquet")

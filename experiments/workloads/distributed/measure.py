"""Measurement of a group of workers by the first, whose children are the others."""

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
    count, patience_seconds = spec.settings["worker_count"], spec.settings["patience_seconds"]
    with (
        group.reserved(spec, count) as rendezvous,
        group.started(spec, rendezvous, range(1, count)) as workers,
    ):
        if spec.nodes:
            positions = [group.node_of(rank, count, len(spec.nodes)) for rank in range(count)]
            names = ",".join(spec.nodes[position].name for position in positions)
            output.record(Tags(spec.run, {"workers.nodes": names}))
        try:
            group.meet(workers, group.START_SECONDS + patience_seconds)
            measure(spec, framework, Place(0, rendezvous.addresses), workers, output)
            group.wait_until_ended(workers, patience_seconds)
        except EvenhandError:
            raise
        except Exception as error:
            if why := group.trouble(workers, SIGHT_SECONDS):
                seen = f"{type(error).__name__}: {str(error)[:300]}"
                raise EvenhandError(f"{why}; the first worker saw {seen}") from error
            raise


def _watch(workers: list[Worker], output: Output, phase: str, steps: int) -> Callable[[int], None]:
    """Return a function that reports each step, and looks at the other workers every second.

    Where nothing is exchanged, nothing else reports their end.
    """
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
    """Train as the first worker, which times the steps and watches the others."""
    settings, model = spec.settings, spec.settings["model"]
    output.progress("build", 0, None)
    worker = training.joined(framework, place, settings)
    batch = training.part(framework, place, settings)
    processes = worker.gathered([os.getpid()])[:, 0].astype(int).tolist()
    nodes = max(1, len(spec.nodes))
    # on another node a number names another process
    output.ranks(
        {
            rank: pid
            for rank, pid in enumerate(processes)
            if group.node_of(rank, place.workers, nodes) == 0
        }
    )
    module = models.spec(model)
    expected = module.parameters(module.Spec(classes=settings["classes"]))
    output.metrics(check_parameters(model, expected, framework, worker.network))
    peak_memory.settle()
    rows, warmup = len(batch.targets) * place.workers, settings["warmup_steps"]
    steps = warmup + settings["steps"]
    output.begin()
    began = clock.now()
    on_step = _watch(workers, output, "training", steps)
    seconds, losses = training.timed(worker, batch, steps, on_step)
    output.window("train", began, clock.now(), rows * steps)
    weights = training.fingerprint(framework.weights(worker.network))
    on_step = _watch(workers, output, "alone", steps)
    record_implementation(spec, framework, worker.network, worker.optimizer, output)
    alone = training.timed_alone(worker, batch, steps, float(np.median(seconds)), on_step)
    table = training.gather_results(worker, weights, losses, seconds, alone)
    worker.close()
    if not np.isfinite(table[:, 2]).all():
        raise EvenhandError("a loss is not finite; a smaller learning_rate may help")
    if len(set(table[:, 0])) > 1:
        raise EvenhandError("the workers have different weights after the same steps")
    output.record(Tags(spec.run, {"weights.digest": f"{int(weights):012x}"}))
    together = PhaseValues("train", tuple(seconds), (rows,) * steps, warmup)
    single = PhaseValues("train_alone", tuple(alone), (rows,) * steps, warmup)
    summary = timing.summarise_training(together, sum(seconds)) | _proof_metrics(spec)
    del summary["train/total_seconds"]  # the number of steps is fixed
    summary |= {
        "train/alone_step_seconds": float(np.median(single.steady[0])),
        "train/loss": float(table[:, 2].mean()),
        "memory/peak_rss_bytes": float(table[:, 1].sum()),
        "check/workers": place.workers,
    }
    output.metrics(summary, step=steps)
    _write_ranks(spec, table[:, 3:], steps, output)
    write_run_files(spec, framework, [together, single], summary, output)


def _proof_metrics(spec: CellSpec) -> dict[str, float]:
    """Return error and limit of the proof of such workers, which was made before any cell."""
    key = (spec.framework, spec.settings["model"], spec.settings["group"])
    for proof in spec.inputs.get(PROOFS, ()):
        if (proof["framework"], proof["model"], proof["level"]) == key:
            error, limit = proof["error"], proof["limit"]
            return {"check/weights_error": error, "check/weights_error_limit": limit}
    return {}


def _write_ranks(spec: CellSpec, seconds: Any, steps: int, output: Output) -> None:
    """Write every worker's steps, (workers, 2 · steps), those without exchange last."""
    workers = len(seconds)
    columns: dict[str, list[Any]] = {
        "rank": np.repeat(range(workers), 2 * steps).tolist(),
        "phase": (["train"] * steps + ["train_alone"] * steps) * workers,
        "step": list(range(steps)) * 2 * workers,
        "seconds": np.ravel(seconds).tolist(),
    }
    tables.write(spec.path / "ranks.parquet", columns)
    output.artifact("ranks.parquet")

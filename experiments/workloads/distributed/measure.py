"""Measurement of a group of workers by the first, whose children are the others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np

import models
from experiments.cell import peak_memory, timing
from experiments.cell.measure import check_parameters, record_implementation, write_run_files
from experiments.cell.timing import PhaseValues
from experiments.contract import CellSpec, Output
from experiments.studies.distributed import Settings
from experiments.workloads.distributed import group, training
from experiments.workloads.distributed.group import Worker
from experiments.workloads.distributed.prepare import PROOFS
from models.contract import Framework
from tracking.errors import ErrorCode, EvenhandError
from tracking.records import Tags

END_SECONDS = 3.0  # a worker that has failed by itself is about to end


def run(spec: CellSpec[Settings], framework: Framework, output: Output) -> None:
    """Start the other workers, and train as the first."""
    spec.path.mkdir(parents=True, exist_ok=True)
    count, patience_seconds = spec.settings.worker_count, spec.settings.patience_seconds
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
            measure(spec, framework, rendezvous[0], workers, output)
            group.wait_until_ended(workers, patience_seconds)
        except EvenhandError:
            raise
        except Exception:
            time.sleep(END_SECONDS)
            for worker in workers:
                worker.look()
            raise


def _watch(workers: list[Worker], output: Output, phase: str, steps: int) -> Callable[[int], None]:
    """Return a function that reports each step, and looks at the other workers.

    Where nothing is exchanged, nothing else reports their end.
    """

    def on_step(step: int) -> None:
        output.progress(phase, step, steps)
        for worker in workers:
            worker.look()

    return on_step


def measure(
    spec: CellSpec[Settings],
    framework: Framework,
    addresses: list[str],
    workers: list[Worker],
    output: Output,
) -> None:
    """Train as the first worker, which times the steps and watches the others."""
    settings, model, count = spec.settings, spec.settings.model, len(addresses)
    output.progress("build", 0, None)
    worker = training.joined(framework, 0, addresses, settings)
    batch = training.part(framework, 0, count, settings)
    processes = worker.gathered([os.getpid()])[:, 0].astype(int).tolist()
    nodes = max(1, len(spec.nodes))
    # on another node a number names another process
    output.ranks(
        {rank: pid for rank, pid in enumerate(processes) if group.node_of(rank, count, nodes) == 0}
    )
    module = models.spec(model)
    expected = module.parameters(module.Spec(classes=settings.classes))
    output.metrics(check_parameters(model, expected, framework, worker.network))
    peak_memory.settle()
    rows, warmup = len(batch.targets) * count, settings.warmup_steps
    steps = warmup + settings.steps
    with output.phase("train") as phase:
        phase.examples = rows * steps
        on_step = _watch(workers, output, "training", steps)
        seconds, losses = training.time_steps(worker, batch, steps, on_step)
    digest = training.digest(framework.weights(worker.network))
    record_implementation(spec, framework, worker.network, worker.optimizer, output)
    on_step = _watch(workers, output, "training without exchange", steps)
    median = float(np.median(seconds))
    seconds_alone = training.time_without_exchange(worker, batch, steps, median, on_step)
    results = worker.gathered([digest, peak_memory.rss_bytes(), np.mean(losses)])
    digests, rss_bytes, mean_losses = results.T
    worker.close()
    if not np.isfinite(mean_losses).all():
        raise EvenhandError(
            ErrorCode.DIVERGED, "a loss is not finite; a smaller learning_rate may help"
        )
    if len({*digests}) > 1:
        raise EvenhandError(
            ErrorCode.NOT_EQUAL, "the workers have different weights after the same steps"
        )
    output.record(Tags(spec.run, {"weights.digest": f"{int(digest):012x}"}))
    together = PhaseValues("train", tuple(seconds), (rows,) * steps, warmup)
    single = PhaseValues("train_alone", tuple(seconds_alone), (rows,) * steps, warmup)
    summary = timing.summarise_training(together, sum(seconds)) | _proof_metrics(spec)
    del summary["train/total_seconds"]  # the number of steps is fixed
    summary |= {
        "train/alone_step_seconds": float(np.median(single.steady[0])),
        "train/loss": float(mean_losses.mean()),
        "memory/peak_rss_bytes": float(rss_bytes.sum()),
        "check/workers": count,
    }
    output.metrics(summary, step=steps)
    write_run_files(spec, framework, [together, single], summary, output)


def _proof_metrics(spec: CellSpec[Settings]) -> dict[str, float]:
    """Return error and limit of the proof of such workers, which was made before any cell."""
    key = (spec.framework, spec.settings.model, spec.settings.group)
    for proof in spec.inputs.get(PROOFS, ()):
        if (proof["framework"], proof["model"], proof["level"]) == key:
            error, limit = proof["error"], proof["limit"]
            return {"check/weights_error": error, "check/weights_error_limit": limit}
    return {}

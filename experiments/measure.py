"""The way of one measurement: build, check, time every step, evaluate, time inference; the same for every task and framework."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments import timing
from experiments.checkpoint import Checkpoint, Past
from experiments.profile import profile
from experiments.timing import Stopwatch, Values
from experiments.workloads.contract import CellSpec, Output, Task
from models.contract import Framework, Rule
from tracking import provenance
from tracking.errors import EvenhandError

LIVE_SECONDS = 1.0


def measure(task: Task, spec: CellSpec, framework: Framework, output: Output) -> Any:
    """Trains and measures a task, emits every metric and file, and returns the trained network."""
    spec.path.mkdir(parents=True, exist_ok=True)
    settings = spec.settings
    network = framework.build(task.model, task.spec)
    parameters = check_parameters(task.model, task.parameters, framework, network)
    framework.load_weights(network, task.initial_weights())
    optimiser = framework.optimiser(network, rule(settings))
    output.metrics({**parameters, "check/initial_loss": mean_loss(framework, network, [next(iter(task.validation()))])})

    past = _train(task, spec, framework, network, optimiser, output)
    training = Values(
        "train", tuple(past.seconds), (task.examples_a_step,) * len(past.seconds), settings["warmup_steps"], tuple(past.starts)
    )
    summary = timing.summarise_training(training, past.total_seconds) | timing.summarise_epochs(past)
    summary |= task.derived(summary, past) | peak_memory(framework, past.peak_rss_bytes)
    output.metrics(summary, step=len(past.seconds))

    answers = _infer(task, spec, framework, network, output)
    output.progress("quality", 0, None)
    output.metrics(task.quality(framework, network), step=settings["epochs"])
    task.leave(framework, network, output)
    leave(spec, framework, [training, *answers], summary, output)
    if settings.get("profile"):
        profile(task, spec, framework, network, optimiser, output)
    return network


def rule(settings: Mapping[str, Any]) -> Rule:
    """How weights are updated, as the settings say."""
    return Rule(
        settings["optimizer"], settings["learning_rate"], settings.get("momentum", 0.0), settings.get("weight_decay", 0.0)
    )


def check_parameters(model: str, expected: tuple[int, int], framework: Framework, network: Any) -> dict[str, float]:
    """The counts as metrics. Raises EvenhandError where they are not those expected of the model."""
    counted = framework.parameter_counts(network)
    if counted != expected:
        raise EvenhandError(f"{model} has {counted} (trainable, other) parameters in {framework.name}, should have {expected}")
    return {"model/trainable_parameters": counted[0], "model/non_trainable_parameters": counted[1]}


def _train(task: Task, spec: CellSpec, framework: Framework, network: Any, optimiser: Any, output: Output) -> Past:
    epochs = spec.settings["epochs"]
    delay = spec.settings["inject_delay"]
    checkpoint = Checkpoint(Path(spec.checkpoint), spec.settings)
    past = checkpoint.load(framework, network, optimiser)
    for step, values in enumerate(past.by_epoch, start=1):
        output.metrics(values, step=step)
    began, already = time.time(), len(past.seconds)
    past.starts.append(already)
    for epoch in range(len(past.by_epoch), epochs):
        if (rate := task.learning_rate(epoch)) is not None:
            framework.set_learning_rate(optimiser, rate)
        losses, seconds = _epoch(task, epoch, epochs, framework, network, optimiser, past, delay, output)
        validating = time.perf_counter()
        values = task.validate(framework, network)
        past.validation_seconds += time.perf_counter() - validating
        past.by_epoch.append({"train/loss": float(np.mean(losses)), **values})
        past.epoch_seconds.append(seconds)
        past.total_seconds += seconds
        past.peak_rss_bytes = max(past.peak_rss_bytes, peak_rss_bytes())
        if np.isfinite(values["val/loss"]):
            checkpoint.save(framework, network, optimiser, past)
        output.metrics(past.by_epoch[-1], step=epoch + 1)  # told once it is kept: a resumed cell trains no told epoch again
        if not np.isfinite(values["val/loss"]):
            loss = values["val/loss"]
            raise EvenhandError(f"the validation loss of epoch {epoch + 1} is {loss}; a smaller learning_rate may help")
    output.window("train", began, time.time(), (len(past.seconds) - already) * task.examples_a_step)
    return past


def _epoch(
    task: Task,
    epoch: int,
    epochs: int,
    framework: Framework,
    network: Any,
    optimiser: Any,
    past: Past,
    delay: float,
    output: Output,
) -> tuple[list[float], float]:
    last_live = time.monotonic()
    done_before = len(past.seconds)

    def on_step(step: int, loss: float) -> None:
        nonlocal last_live
        output.progress(f"epoch {epoch + 1}/{epochs}", step, task.steps_per_epoch)
        if time.monotonic() - last_live >= LIVE_SECONDS:
            last_live = time.monotonic()
            rate = task.examples_a_step / watch.seconds[-1]
            output.metrics({"live/loss": loss, "live/examples_per_second": rate}, step=done_before + step)

    watch = Stopwatch(on_step, delay)
    feed = timing.Feed(task.training(epoch, framework))
    began = time.perf_counter()
    framework.train_epoch(network, optimiser, feed, watch)
    seconds = time.perf_counter() - began
    past.seconds.extend(watch.seconds)
    if not framework.fetches_itself:
        past.input_seconds += feed.seconds
    return watch.losses, seconds


def mean_loss(framework: Framework, network: Any, batches: Any) -> float:
    sums = np.sum([framework.evaluate(network, batch) for batch in batches], axis=0)
    return float(sums[0] / sums[1])


def _infer(task: Task, spec: CellSpec, framework: Framework, network: Any, output: Output) -> list[Values]:
    """Requests one after the other, each timed until its answer is in host memory; the first batch size gives the plain keys."""
    found: list[Values] = []
    count = spec.settings["inference_requests"]
    for size in spec.settings["inference_batch_sizes"]:
        began = time.time()
        seconds: list[float] = []
        for index in range(count + 1):
            request = task.request(size, index)
            framework.synchronise()
            start = time.perf_counter()
            task.answer(framework, network, request)
            timing.hold_up(start, spec.settings["inject_delay"])
            seconds.append(time.perf_counter() - start)
            output.progress(f"inference, batch {size}", index, count)
        values = Values(f"inference_batch_{size}", tuple(seconds), (size,) * len(seconds), 1)
        prefix = "inference" if not found else f"inference/batch_{size}"
        output.metrics(timing.summarise_requests(values, prefix))
        output.window("inference", began, time.time(), size * len(seconds), f"{prefix}/")
        found.append(values)
    return found


def peak_memory(framework: Framework, rss_bytes: float) -> dict[str, float]:
    """The peaks as metrics; that of the device where there is one."""
    device = framework.peak_device_bytes()
    return {"memory/peak_rss_bytes": rss_bytes} | ({} if device is None else {"memory/peak_device_bytes": device})


def peak_rss_bytes() -> float:
    """Peak resident set of this program. (getrusage would include what the parent held when it started us.)"""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1_024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024.0


def leave(spec: CellSpec, framework: Framework, phases: list[Values], summary: Mapping[str, float], output: Output) -> None:
    """What stays of a run beside its metrics: raw values, the environment, the settings with the summary."""
    write_values(spec.path / "values.parquet", phases)
    environment = {"framework": framework.versions(), "packages": provenance.packages(), "machine": provenance.machine()}
    (spec.path / "environment.json").write_text(json.dumps(environment, indent=1))
    record = {
        "run": spec.run,
        "framework": spec.framework,
        "block": spec.block,
        "settings": spec.settings,
        "metrics": dict(summary),
    }
    (spec.path / "record.json").write_text(json.dumps(record, indent=1))
    for name in ("values.parquet", "environment.json", "record.json"):
        output.artifact(name)


def write_values(path: Path, phases: list[Values]) -> None:
    """Raw values, a row a step: phase, step, seconds, examples, warmup."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, list[Any]] = {"phase": [], "step": [], "seconds": [], "examples": [], "warmup": []}
    for values in phases:
        count = len(values.seconds)
        columns["phase"] += [values.phase] * count
        columns["step"] += range(count)
        columns["seconds"] += values.seconds
        columns["examples"] += values.examples
        columns["warmup"] += values.is_warmup
    pq.write_table(pa.table(columns), path)

"""Measurement of a training: build, check, time every step, evaluate, time inference."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cell import peak_memory, timing
from experiments.cell.checkpoint import Checkpoint, TrainingState
from experiments.cell.loop import TrainingLoop, time_calls
from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.profile import profile
from experiments.cell.timing import PhaseValues
from experiments.cell.warm_up import WarmUp, of_gpu
from experiments.config.settings import (
    ModelSettings,
    ProfileSettings,
    SgdSettings,
    TrainingSettings,
    cell_values,
)
from experiments.contract import WORK, AnyCell, CellSpec, Output, Task
from models.contract import Framework, OptimizerConfig
from models.devices import CPU
from models.flops import Network
from models.frameworks import described, distributions, hidden
from tracking import clock, provenance, tables
from tracking.errors import ErrorCode, EvenhandError
from tracking.records import JIT_COMPILE, JIT_PLANNED, Tags

LIVE_SECONDS = 1.0


def measure(task: Task, spec: CellSpec[ModelSettings], framework: Framework, output: Output) -> Any:
    """Train and measure a task, record every metric and file, and return the trained network."""
    spec.path.mkdir(parents=True, exist_ok=True)
    settings = spec.settings
    network = framework.build(task.model, task.spec)
    parameters = check_parameters(task.model, task.parameters, framework, network)
    framework.load_weights(network, task.initial_weights())
    optimizer = framework.optimizer(network, optimizer_config(settings))
    first = next(iter(task.validation()))
    initial_loss = mean_loss(framework, network, [first])
    output.metrics({**parameters, "check/initial_loss": initial_loss})
    work = Network.computed(task.model, task.spec, [first], task.answer_length)
    rows = (task.examples_a_step, settings.inference_batch_sizes[0])
    write_work(spec, framework, work, *rows)
    output.metrics({"check/peak_memory_of_training": peak_memory.settle()})

    peaks = DevicePeaks(framework)
    state = _train(task, spec, framework, network, optimizer, peaks, output)
    phases, summary = _summarise(task, spec, state, output)
    summary |= memory_peaks(spec, peaks, state.peak_rss_bytes, output)
    output.metrics(summary, step=state.steps)
    record_implementation(spec, framework, network, optimizer, output)

    phases += _infer(task, spec, framework, network, output)
    output.end_turns()
    output.progress("quality", 0, None)
    output.metrics(task.quality(framework, network), step=settings.epochs)
    task.save_artifacts(framework, network, output)
    write_run_files(spec, framework, phases, summary, output)
    if isinstance(settings, ProfileSettings) and settings.profile:
        profile(spec, framework, network, optimizer, lambda: task.training(0, framework), output)
    return network


def _summarise(
    task: Task, spec: CellSpec[ModelSettings], state: TrainingState, output: Output
) -> tuple[list[PhaseValues], dict[str, float]]:
    rows = task.examples_a_step
    training = PhaseValues(
        "train",
        tuple(state.seconds),
        (rows,) * len(state.seconds),
        spec.settings.warmup_steps,
        tuple(state.starts),
        tuple(state.end_times),
        tuple(state.warmups),
    )
    windows = timing.of_windows(() if state.held_up else state.windows, rows)
    summary = timing.summarise_training(training, state.total_seconds)
    summary |= state.summary(task.steps_per_epoch * rows)
    summary = as_timed(spec, summary, windows, output, held_up=state.held_up)
    summary |= task.derived(summary, state)
    return [training, windows], summary


def record_implementation(
    spec: AnyCell, framework: Framework, network: Any, optimizer: Any, output: Output
) -> None:
    """Record as tags which code ran; call it after the steps."""
    tags = {"optimizer.implementation": framework.optimizer_implementation(optimizer)}
    by_xla = framework.jit_compile(network)
    if by_xla is not None:
        planned = spec.device in described(spec.framework).by_xla
        tags |= {JIT_COMPILE: str(by_xla), JIT_PLANNED: str(planned)}
    if framework.device != CPU and (use_cudnn := framework.versions().get("keras_use_cudnn")):
        tags["keras.use_cudnn"] = use_cudnn
    output.record(Tags(spec.run, tags))


def as_timed(
    spec: AnyCell,
    summary: dict[str, float],
    windows: PhaseValues,
    output: Output,
    *,
    held_up: bool,
) -> dict[str, float]:
    """Return the summary of a training, with windows where `timing` asks for them.

    A tag has the reason if there are none because something waited for the device (held_up).
    """
    if spec.settings.timing == "step":
        return summary
    if held_up:
        output.record(Tags(spec.run, {"not_available.train/examples_per_second": timing.DELAYED}))
    return timing.summarise_windows(summary, windows)


def optimizer_config(settings: TrainingSettings) -> OptimizerConfig:
    of_sgd = settings if isinstance(settings, SgdSettings) else SgdSettings()
    return OptimizerConfig(
        settings.optimizer, settings.learning_rate, of_sgd.momentum, of_sgd.weight_decay
    )


def check_parameters(
    model: str, expected: tuple[int, int], framework: Framework, network: Any
) -> dict[str, float]:
    """Return the counts of parameters as metrics.

    Raises:
        EvenhandError: If they are not those expected of the model.
    """
    counts = framework.parameter_counts(network)
    if counts != expected:
        raise EvenhandError(
            ErrorCode.NOT_EQUAL,
            f"{model} has {counts} (trainable, other) parameters in {framework.name}, "
            f"should have {expected}",
        )
    return {"model/trainable_parameters": counts[0], "model/non_trainable_parameters": counts[1]}


def _train(
    task: Task,
    spec: CellSpec[ModelSettings],
    framework: Framework,
    network: Any,
    optimizer: Any,
    peaks: DevicePeaks,
    output: Output,
) -> TrainingState:
    epochs, warmup = spec.settings.epochs, spec.settings.warmup_steps
    checkpoint = Checkpoint(Path(spec.checkpoint), cell_values(spec.settings))
    state = checkpoint.load(framework, network, optimizer)
    for step, values in enumerate(state.by_epoch, start=1):
        output.metrics(values, step=step)
    with output.phase("train") as phase:
        earlier_steps = state.steps
        pauses: list[tuple[float, float]] = []
        state.starts.append(len(state.seconds))
        state.warmups.append(warmup)
        half = (epochs * task.steps_per_epoch - state.steps) // 2
        warm_up = of_gpu(framework, output, warmup, max(warmup, half))
        loop = TrainingLoop(framework, network, optimizer, output, peaks, warm_up)
        for epoch in range(len(state.by_epoch), epochs):
            if (rate := task.learning_rate(epoch)) is not None:
                framework.set_learning_rate(optimizer, rate)
            peak_memory.restart()
            batches = timing.TimedIterator(task.training(epoch, framework))
            loss = _train_epoch(task, spec, loop, batches, epoch, state, output, warm_up)
            trained, validating = clock.now(), time.perf_counter()
            values = task.validate(framework, network)
            state.validation_seconds += time.perf_counter() - validating
            state.by_epoch.append({"train/loss": loss, **values})
            state.peak_rss_bytes = max(state.peak_rss_bytes, peak_memory.rss_bytes())
            is_finite = np.isfinite(values["val/loss"])
            if is_finite:
                checkpoint.save(framework, network, optimizer, state)
            # after it is saved: a resumed cell trains no recorded epoch again
            output.metrics(state.by_epoch[-1], step=epoch + 1)
            if not is_finite:
                raise EvenhandError(
                    ErrorCode.DIVERGED,
                    f"the validation loss of epoch {epoch + 1} is {values['val/loss']}; "
                    "a smaller learning_rate may help",
                )
            pauses.append((trained, clock.now()))
        phase.examples = (state.steps - earlier_steps) * task.examples_a_step
        phase.pauses = pauses
    loop.compiling.record(spec, task.model, output)
    if warm_up:
        warm_up.record(spec, "train", output)
    return state


def _train_epoch(
    task: Task,
    spec: CellSpec[ModelSettings],
    loop: TrainingLoop,
    batches: timing.TimedIterator,
    epoch: int,
    state: TrainingState,
    output: Output,
    warm_up: WarmUp | None,
) -> float:
    """Train one epoch, add its steps to the state, and return their mean loss."""
    last_live = time.monotonic()
    earlier_steps = state.steps
    warming = max(0, state.starts[-1] + spec.settings.warmup_steps - len(state.seconds))
    pace = timing.pace(spec.settings, 0 if warm_up else warming, windows_first=epoch % 2 == 0)

    def report(step: int, loss: float, seconds: float) -> None:
        nonlocal last_live
        output.progress(f"epoch {epoch + 1}/{spec.settings.epochs}", step, task.steps_per_epoch)
        if time.monotonic() - last_live >= LIVE_SECONDS:
            last_live = time.monotonic()
            rate = task.examples_a_step / seconds
            live = {"live/loss": loss, "live/examples_per_second": rate}
            rounded = {name: float(f"{value:.4g}") for name, value in live.items()}
            output.metrics(rounded, step=earlier_steps + step)

    watch = loop.stopwatch(pace, report, least=warming, delay=spec.settings.inject_delay)
    seconds = loop.run(batches, watch)
    if warm_up:
        state.warmups[-1] = warm_up.steps
    state.epoch_seconds.append(seconds)
    state.total_seconds += seconds
    state.seconds.extend(watch.seconds)
    state.end_times.extend(watch.end_times)
    state.windows.extend(watch.windows)
    state.held_up |= watch.held_up
    state.input_seconds += batches.seconds
    return float(np.mean(watch.losses))


def check_losses(losses: list[float]) -> None:
    """Raise EvenhandError for a training that has diverged."""
    if not np.isfinite(losses).all():
        step = int(np.argmin(np.isfinite(losses)))
        raise EvenhandError(
            ErrorCode.DIVERGED,
            f"the loss of step {step} is not finite; a smaller learning_rate may help",
        )


def mean_loss(framework: Framework, network: Any, batches: Any) -> float:
    """Return the mean loss of all examples, dropout off; padding does not count.

    Args:
        framework: Framework of the network.
        network: Network.
        batches: Batches of any sizes.
    """
    sums = np.sum([framework.evaluate(network, batch) for batch in batches], axis=0)
    return float(sums[0] / sums[1])


def _infer(
    task: Task, spec: CellSpec[ModelSettings], framework: Framework, network: Any, output: Output
) -> list[PhaseValues]:
    """Answer requests, each timed from inputs on the device until its answer is in host memory.

    The first batch size gives the plain keys.
    """
    phases: list[PhaseValues] = []
    warmup = spec.settings.warmup_requests
    count = warmup + spec.settings.inference_requests

    def requests(size: int) -> Iterator[Callable[[], Any]]:
        for index in range(count):
            output.progress(f"inference, batch {size}", index, count)
            request = framework.place_inputs(task.request(size, index))
            framework.synchronise()
            yield partial(task.answer, framework, network, request)
        output.progress(f"inference, batch {size}", count, count)

    for place, size in enumerate(spec.settings.inference_batch_sizes, start=2):
        prefix = f"inference/batch_{size}" if phases else "inference"
        with output.phase("inference", f"{prefix}/", place) as phase:
            phase.examples = size * count
            seconds, end_times = time_calls(
                requests(size), output, lambda *_: None, spec.settings.inject_delay
            )
            values = PhaseValues(
                f"inference_batch_{size}",
                tuple(seconds),
                (size,) * count,
                warmup,
                end_times=tuple(end_times),
            )
            output.metrics(timing.summarise_requests(values, prefix))
        phases.append(values)
    return phases


def write_work(
    spec: AnyCell, framework: Framework, network: Network, rows: int, requested: int
) -> None:
    """Write what the cell computes, and where.

    Args:
        spec: The cell.
        framework: That computes.
        network: With the shapes of its batches.
        rows: Examples of a step.
        requested: Examples of a request.
    """
    settings = spec.settings
    assert isinstance(settings, TrainingSettings)
    config = optimizer_config(settings)
    work = {
        "network": asdict(network),
        "place": [framework.device, settings.precision, spec.threads],
        "rows": rows,
        "requested": requested,
        # averages of gradients and of their squares
        "moments": {"sgd": int(config.momentum > 0)}.get(config.name, 2),
    }
    (spec.path / WORK).write_text(json.dumps(work))


def memory_peaks(
    spec: AnyCell, device: DevicePeaks, rss_bytes: float, output: Output
) -> dict[str, float]:
    """Return the peaks as metrics, and record a tag if one of the device is missing."""
    if missing := device.missing():
        output.record(Tags(spec.run, missing))
    return {"memory/peak_rss_bytes": rss_bytes, **device.metrics()}


def write_run_files(
    spec: AnyCell,
    framework: Framework,
    phases: list[PhaseValues],
    summary: Mapping[str, float],
    output: Output,
) -> None:
    """Write raw values, the environment, and the settings with the summary."""
    write_values(spec.path / "values.parquet", phases)
    write_environment(spec.path / "environment.json", framework, spec.threads)
    record = {
        "run": spec.run,
        "framework": spec.framework,
        "block": spec.block,
        "settings": cell_values(spec.settings),
        "metrics": dict(summary),
    }
    (spec.path / "record.json").write_text(json.dumps(record, indent=1))
    for name in ("values.parquet", "environment.json", "record.json"):
        output.artifact(name)


def write_environment(path: Path, framework: Framework, threads: int) -> None:
    environment = provenance.environment(framework.versions(), distributions(), threads)
    path.write_text(json.dumps(environment, indent=1))


def write_values(path: Path, phases: list[PhaseValues]) -> None:
    """Write raw values, a row for each step or window; `ended_ms` is null if it is unknown."""
    names = ("phase", "step", "seconds", "examples", "warmup", "ended_ms")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for values in phases:
        count = len(values.seconds)
        columns["phase"] += [values.phase] * count
        columns["step"] += range(count)
        columns["seconds"] += values.seconds
        columns["examples"] += values.examples
        columns["warmup"] += values.is_warmup
        is_complete = len(values.end_times) == count
        ended_ms = [1_000 * seconds for seconds in values.end_times]
        columns["ended_ms"] += ended_ms if is_complete else [None] * count
    with hidden("pandas"):  # pyarrow would import it, to ask whether the columns are pandas'
        tables.write(path, columns)

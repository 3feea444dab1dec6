"""The way of one measurement: build, check, time every step, evaluate, time inference; the same for every task and framework."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cell import peak_memory, timing
from experiments.cell.checkpoint import Checkpoint, TrainingState
from experiments.cell.loop import TrainingLoop, count_step
from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.profile import profile
from experiments.cell.timing import PhaseValues
from experiments.cell.warm_up import WarmUp, of_gpu
from experiments.contract import CellSpec, Output, Task
from models.contract import Framework, OptimizerConfig
from models.frameworks import described, distributions
from tracking import clock, provenance, tables
from tracking.errors import EvenhandError
from tracking.records import JIT_COMPILE, JIT_PLANNED, Tags

LIVE_SECONDS = 1.0


def measure(task: Task, spec: CellSpec, framework: Framework, output: Output) -> Any:
    """Trains and measures a task, emits every metric and file, and returns the trained network."""
    spec.path.mkdir(parents=True, exist_ok=True)
    settings = spec.settings
    network = framework.build(task.model, task.spec)
    parameters = check_parameters(task.model, task.parameters, framework, network)
    framework.load_weights(network, task.initial_weights())
    optimizer = make_optimizer(spec, framework, network)
    output.metrics(
        {
            **parameters,
            "check/initial_loss": mean_loss(framework, network, [next(iter(task.validation()))]),
        }
    )

    output.metrics({"check/peak_memory_of_training": peak_memory.settle()})
    peaks = DevicePeaks(framework)
    state = _train(task, spec, framework, network, optimizer, peaks, output)
    training = PhaseValues(
        "train",
        tuple(state.seconds),
        (task.examples_a_step,) * len(state.seconds),
        settings["warmup_steps"],
        tuple(state.starts),
        tuple(state.ended),
        tuple(state.warmups),
    )
    summary = timing.summarise_training(training, state.total_seconds) | timing.summarise_epochs(
        state, task.steps_per_epoch * task.examples_a_step
    )
    windows = timing.of_windows(() if state.held_up else state.windows, task.examples_a_step)
    on_device = timing.of_device(state.on_device_seconds, task.examples_a_step)
    waits = framework.waits_in_step(network)
    summary = as_timed(
        spec, summary, windows, on_device, output, held_up=state.held_up, waits=waits
    )
    summary |= task.derived(summary, state) | memory_peaks(
        spec, peaks, state.peak_rss_bytes, output
    )
    summary["check/page_faults_per_step"] = (
        float(np.median(state.page_faults)) / task.steps_per_epoch
    )
    output.metrics(summary, step=state.steps)
    record_implementation(spec, framework, network, optimizer, output)

    answers = _infer(task, spec, framework, network, output)
    output.progress("quality", 0, None)
    output.metrics(task.quality(framework, network), step=settings["epochs"])
    task.save_artifacts(framework, network, output)
    write_run_files(spec, framework, [training, windows, on_device, *answers], summary, output)
    if settings.get("profile"):
        profile(spec, framework, network, optimizer, lambda: task.training(0, framework), output)
    return network


def make_optimizer(spec: CellSpec, framework: Framework, network: Any) -> Any:
    """Return the optimizer of the settings."""
    return framework.optimizer(network, optimizer_config(spec.settings))


def record_implementation(
    spec: CellSpec, framework: Framework, network: Any, optimizer: Any, output: Output
) -> None:
    """Record which code ran, as tags of the run and so lines of the report; after its steps."""
    tags = {"optimizer.implementation": framework.optimizer_implementation(optimizer)}
    by_xla = framework.jit_compile(network)
    if by_xla is not None:
        planned = spec.device in described(spec.framework).by_xla
        tags |= {JIT_COMPILE: str(by_xla), JIT_PLANNED: str(planned)}
    if framework.device == "cuda" and (use_cudnn := framework.versions().get("keras_use_cudnn")):
        tags["keras.use_cudnn"] = use_cudnn
    output.record(Tags(spec.run, tags))


def as_timed(
    spec: CellSpec,
    summary: dict[str, float],
    windows: PhaseValues,
    on_device: PhaseValues,
    output: Output,
    *,
    held_up: bool,
    waits: str = "",
) -> dict[str, float]:
    """The summary of a training's steps, with windows where `timing` asks for them; or, as a tag, why there are none.

    waits: what makes steps wait for the device, so that windows do not run freely: a tag, too.
    """
    if spec.settings["timing"] == "step":
        return summary
    if waits:
        output.record(Tags(spec.run, {"waits_in_step": waits}))
    if held_up:
        output.record(Tags(spec.run, {"not_available.train/examples_per_second": timing.HELD_UP}))
    return timing.summarise_windows(summary, windows, on_device)


def optimizer_config(settings: Mapping[str, Any]) -> OptimizerConfig:
    """How weights are updated, as the settings say."""
    return OptimizerConfig(
        settings["optimizer"],
        settings["learning_rate"],
        settings.get("momentum", 0.0),
        settings.get("weight_decay", 0.0),
    )


def check_parameters(
    model: str, expected: tuple[int, int], framework: Framework, network: Any
) -> dict[str, float]:
    """The counts as metrics. Raises EvenhandError where they are not those expected of the model."""
    counted = framework.parameter_counts(network)
    if counted != expected:
        raise EvenhandError(
            f"{model} has {counted} (trainable, other) parameters in {framework.name}, should have {expected}"
        )
    return {"model/trainable_parameters": counted[0], "model/non_trainable_parameters": counted[1]}


def _train(
    task: Task,
    spec: CellSpec,
    framework: Framework,
    network: Any,
    optimizer: Any,
    peaks: DevicePeaks,
    output: Output,
) -> TrainingState:
    epochs = spec.settings["epochs"]
    warmup = spec.settings["warmup_steps"]
    checkpoint = Checkpoint(Path(spec.checkpoint), spec.settings)
    state = checkpoint.load(framework, network, optimizer)
    for step, values in enumerate(state.by_epoch, start=1):
        output.metrics(values, step=step)
    output.begin()
    began, already = clock.now(), state.steps
    loop = TrainingLoop(framework, network, optimizer, output)
    pauses: list[tuple[float, float]] = []
    state.starts.append(len(state.seconds))
    # processes of earlier versions have recorded none
    state.warmups += [warmup] * (len(state.starts) - len(state.warmups))
    half = (epochs * task.steps_per_epoch - state.steps) // 2
    warm_up = of_gpu(framework, output, warmup, max(warmup, half))
    for epoch in range(len(state.by_epoch), epochs):
        if (rate := task.learning_rate(epoch)) is not None:
            framework.set_learning_rate(optimizer, rate)
        peak_memory.restart()
        feed = timing.Feed(task.training(epoch, framework))
        losses, seconds = _epoch(task, spec, loop, feed, epoch, state, peaks, output, warm_up)
        if warm_up:
            state.warmups[-1] = warm_up.steps
        trained, validating = clock.now(), time.perf_counter()
        values = task.validate(framework, network)
        state.validation_seconds += time.perf_counter() - validating
        state.by_epoch.append({"train/loss": float(np.mean(losses)), **values})
        state.epoch_seconds.append(seconds)
        state.total_seconds += seconds
        state.peak_rss_bytes = max(state.peak_rss_bytes, peak_memory.rss_bytes())
        if np.isfinite(values["val/loss"]):
            checkpoint.save(framework, network, optimizer, state)
        output.metrics(
            state.by_epoch[-1], step=epoch + 1
        )  # told once it is kept: a resumed cell trains no told epoch again
        if not np.isfinite(values["val/loss"]):
            loss = values["val/loss"]
            raise EvenhandError(
                f"the validation loss of epoch {epoch + 1} is {loss}; a smaller learning_rate may help"
            )
        pauses.append((trained, clock.now()))
    output.window(
        "train", began, clock.now(), (state.steps - already) * task.examples_a_step, pauses=pauses
    )
    loop.compiling.tell(spec, task.model, output)
    if warm_up:
        warm_up.record(spec, "train", output)
    return state


def _epoch(
    task: Task,
    spec: CellSpec,
    loop: TrainingLoop,
    feed: timing.Feed,
    epoch: int,
    state: TrainingState,
    peaks: DevicePeaks,
    output: Output,
    warm_up: WarmUp | None = None,
) -> tuple[list[float], float]:
    """Train one epoch, add its steps to the state, and return their losses and its seconds."""
    last_live = time.monotonic()
    done_before = state.steps
    warming = max(0, state.starts[-1] + spec.settings["warmup_steps"] - len(state.seconds))
    pace = timing.pace(spec.settings, 0 if warm_up else warming, windows_first=epoch % 2 == 0)

    def report(step: int, loss: float, seconds: float) -> None:
        nonlocal last_live
        output.progress(f"epoch {epoch + 1}/{spec.settings['epochs']}", step, task.steps_per_epoch)
        if time.monotonic() - last_live >= LIVE_SECONDS:
            last_live = time.monotonic()
            rate = task.examples_a_step / seconds
            live = {"live/loss": loss, "live/examples_per_second": rate}  # for the eye alone
            output.metrics(
                {name: float(f"{value:.4g}") for name, value in live.items()},
                step=done_before + step,
            )

    watch = loop.clock(
        pace,
        lambda step: count_step(warm_up, peaks, is_warm=step >= warming),
        report,
        is_warming=warm_up is not None and not warm_up.is_over,
        delay=spec.settings["inject_delay"],
    )
    seconds = loop.run(feed, watch)
    state.page_faults.append(loop.page_faults)
    state.seconds.extend(watch.seconds)
    state.ended.extend(watch.ended)
    state.windows.extend(watch.windows)
    state.on_device_seconds.extend(watch.on_device_seconds)
    state.held_up |= watch.held_up
    state.input_seconds += feed.seconds
    return watch.losses, seconds


def check_losses(losses: list[float]) -> None:
    """Raise EvenhandError for a training that has diverged."""
    if not np.isfinite(losses).all():
        step = int(np.argmin(np.isfinite(losses)))
        raise EvenhandError(
            f"the loss of step {step} is not finite; a smaller learning_rate may help"
        )


def mean_loss(framework: Framework, network: Any, batches: Any) -> float:
    sums = np.sum([framework.evaluate(network, batch) for batch in batches], axis=0)
    return float(sums[0] / sums[1])


def _infer(
    task: Task, spec: CellSpec, framework: Framework, network: Any, output: Output
) -> list[PhaseValues]:
    """Requests one after the other, each timed from inputs on the device until its answer is in host memory.

    The first batch size gives the plain keys.
    """
    found: list[PhaseValues] = []
    warmup = spec.settings["warmup_requests"]
    count = warmup + spec.settings["inference_requests"]
    for place, size in enumerate(spec.settings["inference_batch_sizes"], start=2):
        output.begin(place)
        began = clock.now()
        seconds: list[float] = []
        ended: list[float] = []
        for index in range(count):
            request = framework.place_inputs(task.request(size, index))
            framework.synchronise()
            start = time.perf_counter()
            task.answer(framework, network, request)
            timing.hold_up(start, spec.settings["inject_delay"])
            seconds.append(time.perf_counter() - start)
            ended.append(clock.now())
            output.progress(f"inference, batch {size}", index + 1, count)
            output.turn()
        values = PhaseValues(
            f"inference_batch_{size}",
            tuple(seconds),
            (size,) * len(seconds),
            warmup,
            ended=tuple(ended),
        )
        prefix = "inference" if not found else f"inference/batch_{size}"
        output.metrics(timing.summarise_requests(values, prefix))
        output.window("inference", began, clock.now(), size * len(seconds), f"{prefix}/")
        found.append(values)
    return found


def memory_peaks(
    spec: CellSpec, device: DevicePeaks, rss_bytes: float, output: Output
) -> dict[str, float]:
    """Return the peaks as metrics; why one of the device is missing becomes a tag."""
    if missing := device.missing():
        output.record(Tags(spec.run, missing))
    return {"memory/peak_rss_bytes": rss_bytes, **device.metrics()}


def write_run_files(
    spec: CellSpec,
    framework: Framework,
    phases: list[PhaseValues],
    summary: Mapping[str, float],
    output: Output,
) -> None:
    """What stays of a run beside its metrics: raw values, the environment, the settings with the summary."""
    write_values(spec.path / "values.parquet", phases)
    write_environment(spec.path / "environment.json", framework, spec.threads)
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


def write_environment(path: Path, framework: Framework, threads: int) -> None:
    """On what, and with what, this process measured."""
    path.write_text(
        json.dumps(provenance.environment(framework.versions(), distributions(), threads), indent=1)
    )


def write_values(path: Path, phases: list[PhaseValues]) -> None:
    """Raw values, a row a step or window: phase, step, seconds, examples, warmup, ended_ms (null where it is not known)."""
    columns: dict[str, list[Any]] = {
        "phase": [],
        "step": [],
        "seconds": [],
        "examples": [],
        "warmup": [],
        "ended_ms": [],
    }
    for values in phases:
        count = len(values.seconds)
        columns["phase"] += [values.phase] * count
        columns["step"] += range(count)
        columns["seconds"] += values.seconds
        columns["examples"] += values.examples
        columns["warmup"] += values.is_warmup
        columns["ended_ms"] += (
            (1_000 * ended for ended in values.ended)
            if len(values.ended) == count
            else [None] * count
        )
    tables.write(path, columns)

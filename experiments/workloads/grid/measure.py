"""One point of the grid in one framework: the same random images again and again, to a time budget."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
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
from experiments.cell.timing import PhaseValues, Stopwatch
from experiments.cell.warm_up import WarmUp, of_gpu
from experiments.contract import CellSpec, Output
from models.contract import Batch, Framework
from models.definition import ModelDefinition
from tracking import clock
from tracking.errors import EvenhandError

# Some cells of a block have one of them alone.
PLACES = {"inference": 1, "train": 2}
# Steps or requests of a phase at most.
MOST_STEPS = 1_000
# Values of a phase, and their summary.
Measured = tuple[Sequence[PhaseValues], dict[str, float]]


@dataclass
class Budget:
    """Steps until `seconds` have passed since the first ended, at least and at most so many; the first is not counted.

    Time in which the cell waits for its turn does not pass. output: knows how long that was.
    warm_up: of a GPU, whose steps are not counted either. before: how many are not.
    pauses: when it was. began: when the budget was made.
    """

    output: Output
    seconds: float
    least: int
    most: int
    warm_up: WarmUp | None = None
    done: int = 0
    before: int | None = None
    until: float = 0.0
    pauses: tuple[tuple[float, float], ...] = ()
    began: float = field(default_factory=clock.now)

    def step(self) -> bool:
        """Whether one more is to be made. The first is on its own account: it builds, compiles, allocates."""
        if self.done and self.before is None and (self.warm_up is None or self.warm_up.is_over):
            self.before, self.until = self.done, self._now() + self.seconds
        counted = self.done - (self.before or 0)
        in_time = counted < self.most and self._now() < self.until
        wanted = self.before is None or counted < self.least or in_time
        self.done += wanted
        return wanted

    def stepped(self, peaks: DevicePeaks) -> bool:
        """Count a step to the warm-up. Returns whether that of a GPU ended with it."""
        ends = count_step(self.warm_up, peaks)
        if ends:
            self.pauses = ((self.began, clock.now()),)
        return ends

    @property
    def warm_up_steps(self) -> int:
        return self.warm_up.steps if self.warm_up else 0

    def record(self, spec: CellSpec, phase: str) -> None:
        if self.warm_up:
            self.warm_up.record(spec, phase, self.output)

    def _now(self) -> float:
        return time.perf_counter() - self.output.waited_seconds


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    module, sizes, rng = open_point(spec)
    settings = spec.settings
    output.progress("build", 0, None)
    network = framework.build(settings["model"], sizes)
    output.metrics(
        check_parameters(settings["model"], module.parameters(sizes), framework, network)
    )
    framework.load_weights(network, module.initial_weights(sizes, rng))
    batch = framework.place(drawn_batch(sizes, settings["image_size"], settings["batch_size"], rng))
    output.metrics({"check/peak_memory_of_training": peak_memory.settle()})
    phases = {"inference": _infer, "train": _train}
    peaks = DevicePeaks(framework)
    measured = [
        phases[phase](framework, network, batch, spec, peaks, output)
        for phase in settings["phases"]
    ]
    finish(spec, framework, measured, peaks, output)


def open_point(spec: CellSpec) -> tuple[ModelDefinition, Any, np.random.Generator]:
    """Make a cell's folder; return its network's module and sizes, and what draws weights, then a batch."""
    spec.path.mkdir(parents=True, exist_ok=True)
    module = models.spec(spec.settings["model"])
    return (
        module,
        module.Spec(classes=spec.settings["classes"]),
        np.random.default_rng(spec.settings["seed"]),
    )


def drawn_batch(sizes: Any, side: int, rows: int, rng: np.random.Generator) -> Batch:
    """Draw random images, the same for everybody who has used `rng` alike."""
    images = rng.standard_normal((rows, side, side, sizes.channels)).astype(np.float32)
    return Batch(
        (images,), rng.integers(0, sizes.classes, rows, dtype=np.int32), np.ones(rows, np.float32)
    )


def finish(
    spec: CellSpec,
    framework: Framework,
    phases: Sequence[Measured],
    peaks: DevicePeaks,
    output: Output,
) -> None:
    """Record the memory, and keep the values of all phases."""
    output.metrics(memory_peaks(spec, peaks, peak_memory.rss_bytes(), output))
    summary = {name: value for _, found in phases for name, value in found.items()}
    write_run_files(
        spec, framework, [values for several, _ in phases for values in several], summary, output
    )


def _infer(
    framework: Framework,
    network: Any,
    batch: Batch,
    spec: CellSpec,
    peaks: DevicePeaks,
    output: Output,
) -> Measured:
    """Requests one after the other, each timed until its logits are in host memory."""
    settings, rows = spec.settings, spec.settings["batch_size"]
    output.begin(PLACES["inference"])
    budget, seconds = budget_of(spec, framework, output), list[float]()
    output.progress(f"inference, batch {rows}", 0, None)
    while budget.step():
        framework.synchronise()
        start = time.perf_counter()
        logits = framework.infer(network, batch.inputs)
        seconds.append(time.perf_counter() - start)
        budget.stepped(peaks)
        output.progress(f"inference, batch {rows}", len(seconds), None)
        output.turn()
    if logits.shape != (
        rows,
        settings["classes"],
    ):  # the work that is timed is the work that was asked for
        raise EvenhandError(
            f"inference answered {logits.shape}, should be {(rows, settings['classes'])}"
        )
    values = close_phase(spec, "inference", seconds, budget, output)
    checks = {"check/inference_requests": len(seconds), "check/inference_warmup": values.warmup}
    summary = timing.summarise_requests(values) | checks
    output.metrics(summary)
    return [values], summary


def _train(
    framework: Framework,
    network: Any,
    batch: Batch,
    spec: CellSpec,
    peaks: DevicePeaks,
    output: Output,
) -> Measured:
    """Optimizer steps on one batch, which stays where the framework put it."""
    rows = spec.settings["batch_size"]
    peaks.begin_warmup()
    optimizer = make_optimizer(spec, framework, network)
    output.progress(f"training, batch {rows}", 0, None)
    loop = TrainingLoop(framework, network, optimizer, output)
    output.begin(PLACES["train"])
    budget = budget_of(spec, framework, output)
    watch = loop.clock(
        timing.pace(spec.settings, first=0 if budget.warm_up else 1),
        lambda _: budget.stepped(peaks),
        lambda step, *_: output.progress(f"training, batch {rows}", step, None),
        is_warming=budget.warm_up is not None,
    )
    loop.run(_again(batch, budget), watch)
    check_losses(watch.losses)
    loop.compiling.tell(spec, spec.settings["model"], output)
    steps = len(watch.losses)
    values = close_phase(spec, "train", watch.seconds, budget, output, steps)
    values = replace(values, ended=tuple(watch.ended))
    windows = _windows(watch, rows)
    left_out = sum(window.steps for window in watch.windows[: windows.warmup])
    # the device's clock has no time of a window's first step
    on_device = timing.of_device(watch.on_device_seconds, rows, left_out - windows.warmup)
    summary = summarise(spec, values, watch.losses)
    summary = as_timed(spec, summary, windows, on_device, output, held_up=watch.held_up)
    summary |= {"check/train_steps": steps, "check/train_warmup": values.warmup + left_out}
    output.metrics(summary, step=steps)
    record_implementation(spec, framework, network, optimizer, output)
    return [values, windows, on_device], summary


def _windows(watch: Stopwatch, rows: int) -> PhaseValues:
    """Windows with the warm-up that is found in them: the first step, which is timed alone, is its beginning."""
    if watch.held_up:
        return timing.of_windows((), rows)
    means = [watch.seconds[0], *(one.seconds / one.steps for one in watch.windows)]
    return timing.of_windows(watch.windows, rows, timing.found_warmup(means) - 1)


def budget_of(spec: CellSpec, framework: Framework, output: Output) -> Budget:
    """How long a phase of this cell goes on."""
    limits = (spec.settings["seconds"], spec.settings["least_steps"], MOST_STEPS)
    return Budget(output, *limits, warm_up=of_gpu(framework, output, least=1))


def _again(batch: Batch, budget: Budget) -> Iterator[Batch]:
    while budget.step():
        yield batch


def summarise(spec: CellSpec, values: PhaseValues, losses: Sequence[float]) -> dict[str, float]:
    """Summarise a training to a budget, with the mean loss of the steps that every cell makes.

    That loss is equal where the same training was timed. The total time is a budget, not a result.
    """
    summary = timing.summarise_training(values, sum(values.seconds))
    del summary["train/total_seconds"]
    return summary | {"train/loss": float(np.mean(losses[: spec.settings["least_steps"] + 1]))}


def close_phase(
    spec: CellSpec,
    phase: str,
    seconds: Sequence[float],
    budget: Budget,
    output: Output,
    steps: int | None = None,
) -> PhaseValues:
    """End what the sensors read, and return the phase's times with their warm-up.

    Args:
        spec: of the cell.
        phase: `train` or `inference`.
        seconds: of its steps or requests.
        budget: how long it went on; on a GPU, its warm-up comes first.
        output: of the cell.
        steps: how many there were, where some were not timed one by one.
    """
    rows = spec.settings["batch_size"]
    examples = rows * ((len(seconds) if steps is None else steps) - budget.warm_up_steps)
    prefix = "" if phase == "train" else "inference/"
    output.window(phase, budget.began, clock.now(), examples, prefix, budget.pauses)
    budget.record(spec, phase)
    return values_of(
        "train" if phase == "train" else f"inference_batch_{rows}", seconds, rows, budget
    )


def values_of(phase: str, seconds: Sequence[float], rows: int, budget: Budget) -> PhaseValues:
    """Return the times of a phase, its warm-up found; on a GPU after the one that was made."""
    made = budget.warm_up_steps
    warmup = made + timing.found_warmup(seconds[made:]) if made < len(seconds) else made
    return PhaseValues(phase, tuple(seconds), (rows,) * len(seconds), warmup)

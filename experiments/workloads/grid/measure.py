"""Measurement of one network on the same random images, to a time budget."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import models
from experiments.cell import peak_memory, timing
from experiments.cell.loop import TrainingLoop, count_step, time_calls
from experiments.cell.measure import (
    as_timed,
    check_losses,
    check_parameters,
    memory_peaks,
    optimizer_config,
    record_implementation,
    write_run_files,
    write_work,
)
from experiments.cell.peak_memory import DevicePeaks
from experiments.cell.timing import PhaseValues, Stopwatch
from experiments.cell.warm_up import WarmUp, of_gpu
from experiments.contract import EXPORTED, AnyCell, CellSpec, Output, TimedPhase
from experiments.datasets.labelled import batches
from experiments.datasets.labelled.data import Labelled
from experiments.studies import transformers
from experiments.studies.grid import PointSettings, Settings
from experiments.workloads.grid.prepare import longest, pictures_of
from models import named, weights
from models.contract import Array, Batch, Framework, Weights
from models.definition import ModelDefinition
from models.flops import Network
from models.frameworks import described
from models.layers import images
from tracking import clock
from tracking.errors import ErrorCode, EvenhandError
from tracking.records import TOKENS_DIGEST, Tags

# Order of the phases, of which some cells of a block have only one.
PLACES = {"inference": 1, "train": 2}
MAX_STEPS = 20_000  # of a phase
# Values of a phase, and their summary.
Measured = tuple[Sequence[PhaseValues], dict[str, float]]


@dataclass
class Budget:
    """Steps until `seconds` have passed since the first ended, at least `least`.

    The first step is not counted, nor are those of the warm-up of a GPU. Time in which the cell
    waits for its turn does not pass.

    Attributes:
        pauses: Time of the warm-up.
    """

    output: Output
    seconds: float
    least: int
    warm_up: WarmUp | None = None
    pauses: tuple[tuple[float, float], ...] = ()
    began: float = field(default_factory=clock.now)

    def __iter__(self) -> Iterator[None]:
        yield None
        if self.warm_up:
            while not self.warm_up.is_over:
                yield None
            self.pauses = ((self.began, clock.now()),)
        counted, until = 0, self._now() + self.seconds
        while counted < self.least or (counted < MAX_STEPS and self._now() < until):
            counted += 1
            yield None

    def _now(self) -> float:
        return self.output.working_seconds()


def run(spec: CellSpec[PointSettings], framework: Framework, output: Output) -> None:
    spec.path.mkdir(parents=True, exist_ok=True)
    settings = spec.settings
    module, rng = models.spec(settings.model), np.random.default_rng(settings.seed)
    sizes, batch = inputs(settings, module, rng)
    output.progress("build", 0, None)
    network = framework.build(settings.model, sizes)
    expected = module.parameters(sizes)
    output.metrics(check_parameters(settings.model, expected, framework, network))
    framework.load_weights(network, arrays(settings, settings.model, sizes))
    assert isinstance(settings, Settings | transformers.Settings)
    extent = (
        settings.image_size if isinstance(settings, Settings) else longest(settings, settings.model)
    )
    deployed = deploy(spec, framework, network, settings.model, extent)
    output.metrics(deployed)
    work = Network.computed(settings.model, sizes, [batch], _answer_length(settings))
    write_work(spec, framework, work, settings.batch_size, settings.batch_size)
    batch = framework.place(batch)
    output.metrics({"check/peak_memory_of_training": peak_memory.settle()})
    phases = {"inference": _infer, "train": _train}
    peaks = DevicePeaks(framework)
    possible = [name for name in settings.phases if name == "inference" or is_trained(spec)]
    if possible != list(settings.phases):
        reason = "a runtime does not train"
        output.record(Tags(spec.run, {"not_available.train/examples_per_second": reason}))
    measured = [phases[phase](framework, network, batch, spec, peaks, output) for phase in possible]
    output.metrics(memory_peaks(spec, peaks, peak_memory.rss_bytes(), output))
    values, summary = list[PhaseValues](), dict[str, float](deployed)
    for phase_values, metrics in measured:
        values += phase_values
        summary |= metrics
    write_run_files(spec, framework, values, summary, output)


def _answer_length(settings: PointSettings) -> int:
    """Return the tokens that a language model computes for an answer; 0 for one forward pass."""
    if not (isinstance(settings, transformers.Settings) and named.is_causal(settings.model)):
        return 0
    return settings.length + settings.new_tokens - 1


def arrays(settings: PointSettings, model: str, sizes: Any) -> Weights:
    """Return the weights of a network as the settings ask for."""
    assert isinstance(settings, Settings | transformers.Settings)
    is_checkpoint = settings.weights == "pretrained"
    source = named.checkpoint(model) if is_checkpoint else settings.weights
    return weights.load(source, model, sizes, settings.seed)


def inputs(
    settings: PointSettings, module: ModelDefinition, rng: np.random.Generator
) -> tuple[Any, Batch]:
    """Return the sizes of the network, and the batch of a point of the grid."""
    rows, sizes = settings.batch_size, sizes_of(settings, module)
    if isinstance(settings, transformers.Settings):
        return sizes, module.batch(sizes, np.full(rows, settings.length), rng)
    assert isinstance(settings, Settings)
    return sizes, images.batch(sizes, settings.image_size, rng, rows)


def sizes_of(settings: PointSettings, module: ModelDefinition) -> Any:
    """Return the sizes of a network of the grid."""
    if not isinstance(settings, transformers.Settings):
        return module.Spec(classes=settings.classes)
    sizes = module.sized(settings.size, attention=settings.attention, trained=settings.trained)
    return replace(sizes, classes=settings.classes)


def is_trained(spec: AnyCell) -> bool:
    return not described(spec.framework).exported_from


def deploy(
    spec: AnyCell, framework: Framework, network: Any, model: str, extent: int
) -> dict[str, float]:
    """Make a network ready for inference, for a runtime from its exported file.

    Args:
        spec: The cell, or the check before it.
        framework: Framework of the network.
        network: With its weights.
        model: Its name.
        extent: Height and width of images, in pixels, or length of the longest sequence.

    Returns:
        Metrics of a runtime.
    """
    if is_trained(spec):
        return {}
    module, rng = models.spec(model), np.random.default_rng(spec.settings.seed)
    in_int8 = described(spec.framework).in_int8
    times = 32 if in_int8 else 2  # the share of equal answers needs many
    batches = module.inference_batches(network.spec, rng, extent, times)
    return framework.deploy(network, batches, Path(spec.inputs[EXPORTED]))


def _infer(
    framework: Framework,
    network: Any,
    batch: Batch,
    spec: CellSpec[PointSettings],
    peaks: DevicePeaks,
    output: Output,
) -> Measured:
    """Time requests one by one, each until its answer is in host memory.

    Those for one token of a language model come first: they tell the rest of an answer's time.
    """
    settings, rows = spec.settings, spec.settings.batch_size
    answer = partial(framework.infer, network, batch.inputs)
    expected = rows, settings.classes
    first: PhaseValues | None = None
    peaks.begin_warmup()
    output.progress(f"inference, batch {rows}", 0, None)
    with output.phase("inference", "inference/", PLACES["inference"]) as phase:
        began, before = clock.now(), tuple[tuple[float, float], ...]()
        if isinstance(settings, transformers.Settings) and named.is_causal(settings.model):
            generate = _generation(framework, network, batch, settings)
            request = partial(generate, new_tokens=1), (rows, 1)
            seconds, budget = _requests(*request, spec, framework, peaks, output)
            warmup = budget.warm_up.steps if budget.warm_up else 0
            first = values_of(f"first_token_batch_{rows}", seconds, rows, warmup)
            answer = partial(generate, new_tokens=settings.new_tokens)
            expected = rows, settings.new_tokens
            before = ((began, clock.now()),)
        request_seconds, budget = _requests(answer, expected, spec, framework, peaks, output)
        _set_window(phase, len(request_seconds), budget, rows)
        phase.pauses = (*before, *phase.pauses)
    values = _values(spec, "inference", request_seconds, budget, output)
    summary = timing.summarise_requests(values)
    if first:
        summary |= timing.summarise_generation(values, first, expected[-1])
        digest = hashlib.sha256(answer().tobytes()).hexdigest()[:8]
        output.record(Tags(spec.run, {TOKENS_DIGEST: digest}))
    if isinstance(settings, Settings) and settings.data:
        summary["val/accuracy"] = _accuracy(framework, network, spec, settings)
    summary |= {
        "check/inference_requests": len(values.seconds),
        "check/inference_warmup": values.warmup,
    }
    output.metrics(summary)
    return [*filter(None, [first]), values], summary


def _accuracy(
    framework: Framework, network: Any, spec: CellSpec[PointSettings], settings: Settings
) -> float:
    """Return the share of validation pictures that a network classifies rightly."""
    channels = models.spec(settings.model).Spec.channels
    data = Labelled.open(Path(spec.inputs[pictures_of(settings.image_size, channels)]))
    right = 0
    for batch in batches.read(data, batches.files(data, data.validation, settings.batch_size)):
        answers = framework.infer(network, batch.inputs).argmax(-1)
        right += int(batch.weights[answers == batch.targets].sum())
    return right / len(data.validation)


def _generation(
    framework: Framework, network: Any, batch: Batch, settings: transformers.Settings
) -> Callable[..., Array]:
    """Return a function that answers the batch's prompts by `new_tokens` tokens."""
    generate = models.load(settings.model, framework.architecture).generate
    inputs, cached = batch.inputs, int(settings.kv_cache)

    def answer(new_tokens: int) -> Array:
        options = {"new_tokens": new_tokens, "cached": cached}
        tokens = framework.apply(generate, network, inputs, **options)
        return tokens.astype(np.int32, copy=False)

    return answer


def _requests(
    answer: Callable[[], Array],
    expected: tuple[int, ...],
    spec: CellSpec[PointSettings],
    framework: Framework,
    peaks: DevicePeaks,
    output: Output,
) -> tuple[list[float], Budget]:
    """Return the seconds of requests, all for the same answer, and the budget that they used.

    Raises:
        EvenhandError: An answer has another shape than `expected`.
    """
    seconds, least = spec.settings.seconds, spec.settings.least_steps
    budget = Budget(output, seconds, least, of_gpu(framework, output, least=1))

    def requests() -> Iterator[Callable[[], Array]]:
        for _ in budget:
            framework.synchronise()
            yield answer

    def check_shape(result: Array, seconds: float) -> None:
        count_step(seconds, budget.warm_up, peaks)
        if result.shape != expected:  # the timed work has to be the requested work
            raise EvenhandError(
                ErrorCode.INVALID_VALUE,
                f"inference answered {result.shape}, should be {expected}",
            )

    request_seconds, _ = time_calls(requests(), output, check_shape)
    return request_seconds, budget


def _train(
    framework: Framework,
    network: Any,
    batch: Batch,
    spec: CellSpec[PointSettings],
    peaks: DevicePeaks,
    output: Output,
) -> Measured:
    """Time optimizer steps on one batch, which stays on the device."""
    rows = spec.settings.batch_size
    peaks.begin_warmup()
    optimizer = framework.optimizer(network, optimizer_config(spec.settings))
    output.progress(f"training, batch {rows}", 0, None)
    with output.phase("train", place=PLACES["train"]) as phase:
        seconds, least = spec.settings.seconds, spec.settings.least_steps
        budget = Budget(output, seconds, least, of_gpu(framework, output, least=1))
        loop = TrainingLoop(framework, network, optimizer, output, peaks, budget.warm_up)
        watch = loop.stopwatch(
            timing.pace(spec.settings, first=0 if budget.warm_up else 1),
            lambda step, *_: output.progress(f"training, batch {rows}", step, None),
        )
        loop.run((batch for _ in budget), watch)
        steps = len(watch.losses)
        _set_window(phase, steps, budget, rows)
    check_losses(watch.losses)
    loop.compiling.record(spec, spec.settings.model, output)
    values = _values(spec, "train", watch.seconds, budget, output)
    values = replace(values, end_times=tuple(watch.end_times))
    windows = _windows(watch, rows)
    left_out = sum(window.steps for window in watch.windows[: windows.warmup])
    summary = timing.summarise_training(values, sum(values.seconds))
    del summary["train/total_seconds"]  # a budget, no result
    # of the steps that every cell makes: equal where the same training was timed
    summary["train/loss"] = float(np.mean(watch.losses[: spec.settings.least_steps + 1]))
    summary = as_timed(spec, summary, windows, output, held_up=watch.held_up)
    summary |= {"check/train_steps": steps, "check/train_warmup": values.warmup + left_out}
    output.metrics(summary, step=steps)
    record_implementation(spec, framework, network, optimizer, output)
    return [values, windows], summary


def _windows(watch: Stopwatch, rows: int) -> PhaseValues:
    """Return the windows with their warm-up, which begins with the single first step."""
    if watch.held_up:
        return timing.of_windows((), rows)
    means = [watch.seconds[0], *(window.seconds / window.steps for window in watch.windows)]
    return timing.of_windows(watch.windows, rows, timing.estimate_warmup(means) - 1)


def _set_window(phase: TimedPhase, steps: int, budget: Budget, rows: int) -> None:
    """Tell the sensors what counts: the steps or requests after the warm-up of a GPU."""
    warmup = budget.warm_up.steps if budget.warm_up else 0
    phase.examples, phase.pauses = rows * (steps - warmup), budget.pauses


def _values(
    spec: CellSpec[PointSettings],
    phase: str,
    seconds: Sequence[float],
    budget: Budget,
    output: Output,
) -> PhaseValues:
    """Return the times of a phase (`train` or `inference`) with their warm-up."""
    if budget.warm_up:
        budget.warm_up.record(spec, phase, output)
    rows, warmup = spec.settings.batch_size, budget.warm_up.steps if budget.warm_up else 0
    name = phase if phase == "train" else f"inference_batch_{rows}"
    return values_of(name, seconds, rows, warmup)


def values_of(phase: str, seconds: Sequence[float], rows: int, warmup: int) -> PhaseValues:
    """Return the times of a phase with an estimated warm-up, on a GPU after the timed one.

    Args:
        phase: Name of the phase.
        seconds: Seconds of its steps or requests.
        rows: Examples of each.
        warmup: Steps of the warm-up of a GPU; 0 on the CPU.
    """
    if warmup < len(seconds):
        warmup += timing.estimate_warmup(seconds[warmup:])
    return PhaseValues(phase, tuple(seconds), (rows,) * len(seconds), warmup)

"""S2, S4 · Data-parallel training: one network on 1, 2, … workers, against one worker.

Sources: PyTorch against TensorFlow on a grid of networks (Arizona State University, 2023);
Comparing the training speed of PyTorch and TensorFlow (Huazhong University of Science and
Technology, 2022). Workers were GPUs there, here they are processes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from experiments.config.settings import (
    MAX_RATE,
    MAX_ROWS,
    MAX_SIDE,
    MAX_STEPS,
    TrainingSettings,
    parameter,
    setting,
)
from experiments.contract import Comparison, ReportAddition, Study, Treatment
from experiments.metrics import outcome
from experiments.planning.treatments import UNCONTROLLED, check_count, require_single_steps
from models import devices
from tracking import provenance
from tracking.errors import ErrorCode, UsageError

HAVE = ("pytorch", "tensorflow")


@dataclass(frozen=True)
class Settings(TrainingSettings):
    """Settings of the data-parallel study, and the group of workers of a cell."""

    not_offered = UNCONTROLLED

    model: str = parameter("", "models")
    group: str = parameter("", "workers", "compression")
    worker_count: int = parameter(0, "workers")
    hook: str = parameter("", "compression")

    models: tuple[str, ...] = setting(
        ("lenet",),
        "networks of images without BatchNorm, by folder name",
        group="design",
        affects_measurement=False,
    )
    workers: tuple[int, ...] = setting(
        (1, 2),
        "processes that train together; 1, the framework alone, is the baseline",
        minimum=1,
        maximum=1_024,
        group="design",
        affects_measurement=False,
    )
    compression: tuple[str, ...] = setting(
        ("none",),
        "of the gradients that workers exchange; "
        "fp16 and powersgd lose something, and are PyTorch's alone",
        choices=("none", "fp16", "powersgd"),
        group="design",
        affects_measurement=False,
    )
    scaling: str = setting(
        "strong",
        "strong: batch_size is shared among the workers; weak: each has so many",
        choices=("strong", "weak"),
        group="design",
    )
    batch_size: int = setting(64, "images a step", minimum=1, maximum=MAX_ROWS, group="training")
    image_side: int = setting(
        40,
        "side of the images, pixels, for networks that take any",
        minimum=1,
        maximum=MAX_SIDE,
        group="design",
    )
    classes: int = setting(
        10, "outputs of the classifier", minimum=1, maximum=1_000_000, group="design", advanced=True
    )
    steps: int = setting(
        100,
        "timed steps, and as many without any exchange",
        minimum=12,
        maximum=MAX_STEPS,
        group="training",
    )
    warmup_steps: int = setting(
        10, "steps before the timed ones", minimum=1, maximum=MAX_STEPS, group="training"
    )
    optimizer: str = setting(
        "sgd",
        "plain SGD, of which k workers make the same step as one",
        choices=("sgd",),
        group="training",
    )
    learning_rate: float = setting(
        0.01, "of the optimizer", minimum=1e-9, maximum=MAX_RATE, group="training"
    )
    patience_seconds: float = setting(
        30.0,
        "how long a worker waits for another before the cell fails",
        minimum=1,
        maximum=3_600,
        group="machine",
        affects_measurement=False,
        advanced=True,
    )
    rendezvous: str = setting(
        "",
        "address of the first worker's machine at which the others find it; "
        "none: what Slurm calls it, or this machine alone",
        group="machine",
        affects_measurement=False,
        advanced=True,
    )
    threads: int = setting(
        1, "CPU threads of every worker", minimum=1, maximum=1_024, group="machine"
    )
    device: str = setting(
        devices.CPU,
        "cuda: a GPU a worker, over NCCL; several of them have not been run",
        choices=devices.KINDS,
        group="machine",
    )
    precision: str = setting("float32", "in full", choices=("float32",), group="training")

    @property
    def workers_of_a_cell(self) -> int:
        return self.worker_count or max(self.workers)

    @property
    def nodes_of_a_job(self) -> int:
        """Nodes of a job, over which the workers of a cell are spread."""
        return self.nodes

    @property
    def cpus_of_a_node(self) -> int:
        """CPUs of the workers of one node."""
        return math.ceil(max(self.workers) / self.nodes) * self.threads


def groups(
    workers: Sequence[int], compression: Sequence[str], framework: str
) -> dict[str, tuple[int, str]]:
    """Return level -> workers and compression: only PyTorch compresses, between several workers."""
    levels = {}
    for count, hook in product(workers, compression):
        if hook == "none":
            levels[f"{count}"] = (count, hook)
        elif framework == "pytorch" and count > 1:
            levels[f"{count} {hook}"] = (count, hook)
    return levels


def rows(batch_size: int, scaling: str, workers: int) -> int:
    """Return the images of a step of each worker.

    Args:
        batch_size: Images of a step of the whole group with strong scaling, else of each worker.
        scaling: `strong` or `weak`.
        workers: Number of workers.
    """
    return batch_size // workers if scaling == "strong" else batch_size


def treatments(settings: Settings) -> tuple[Treatment, ...]:
    """Return every group of workers of each framework and network."""
    require_single_steps(settings, "distributed")
    _check(settings)
    check_count(
        settings, settings.models, settings.frameworks, settings.workers, settings.compression
    )
    return tuple(
        Treatment(
            f"{level} · {framework} · {model}",
            framework,
            "measure",
            {"model": model, "group": level, "worker_count": count, "hook": hook},
            group=f"{framework} · {model}",
        )
        for framework, model in product(settings.frameworks, settings.models)
        for level, (count, hook) in groups(
            settings.workers, settings.compression, framework
        ).items()
    )


def _check(settings: Settings) -> None:
    """Raise UsageError for groups that cannot be trained."""
    for name in settings.frameworks:
        if name not in HAVE:
            raise UsageError(
                ErrorCode.UNSUPPORTED,
                f"frameworks={name}: it cannot be trained on several workers; "
                f"have {', '.join(HAVE)}",
            )
    if 1 not in settings.workers or "none" not in settings.compression:
        raise UsageError(
            ErrorCode.MISSING_VALUE,
            "workers, compression: the baseline is one worker without compression; "
            "name 1 and none, too",
        )
    if settings.pairing == "interleaved":
        raise UsageError(
            ErrorCode.CONFLICT,
            "pairing=interleaved: suspended workers would look frozen; take pairing=sequential",
        )
    _check_machine(settings)
    for count in settings.workers:
        if settings.scaling == "strong" and settings.batch_size % count:
            raise UsageError(
                ErrorCode.INVALID_VALUE,
                f"batch_size={settings.batch_size} is not a multiple of workers={count}",
            )


def _check_machine(settings: Settings) -> None:
    """Raise UsageError for more workers than nodes, CPUs or GPUs; on a cluster, Slurm checks."""
    most = max(settings.workers)
    if settings.nodes > most:
        raise UsageError(
            ErrorCode.TOO_LARGE,
            f"nodes={settings.nodes} are more than the workers={most} that use them; "
            f"at most nodes={most}",
        )
    if settings.on_cluster:
        return
    cpus = len(os.sched_getaffinity(0))
    if most * settings.threads > cpus:
        raise UsageError(
            ErrorCode.TOO_LARGE,
            f"workers={most} of threads={settings.threads} are more than the {cpus} CPUs "
            "that cells may use",
        )
    if settings.device != devices.CPU and (gpus := len(provenance.gpus())) < most:
        raise UsageError(
            ErrorCode.NO_DEVICE,
            f"device={settings.device}: each of workers={most} needs a separate GPU, "
            f"and this machine has {gpus}; take device=cpu",
        )


def also(settings: Settings, comparison: Comparison) -> ReportAddition:
    """Return speed-up and efficiency, the cost of exchanging gradients, and the proofs."""
    from experiments.comparison.analyses import workers

    levels = dict[str, tuple[int, str]]()
    for name in settings.frameworks:
        levels |= groups(settings.workers, settings.compression, name)
    return ReportAddition(sections=workers.sections(comparison, levels, settings.scaling))


STUDY = Study(
    name="distributed",
    title="Data-parallel training: 1, 2, … workers, their speed-up beside the ideal",
    workload="distributed",
    settings=Settings,
    models=lambda settings: settings.models,
    factor="group",
    baseline=lambda _: "1",
    treatments=treatments,
    strata=lambda _: ("framework", "model", "scaling"),
    allowed_to_differ=("worker_count", "hook"),
    also=also,
    presets={"demo": {"blocks": 6, "timing": "step"}},
    outcomes=(
        outcome("train/examples_per_second"),
        outcome("train/step_seconds"),
        outcome("train/step_seconds_p95"),
        outcome("train/first_step_seconds"),
        outcome("train/alone_step_seconds"),
        outcome("memory/peak_rss_bytes"),
    ),
    primary=("train/examples_per_second",),
)

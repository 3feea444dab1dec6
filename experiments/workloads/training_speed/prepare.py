"""Checks of networks, and sequences from files, of the studies of training speed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

import models
from experiments.contract import DatasetInfo, Prepared, Progress, Workload
from experiments.datasets.sequences import data
from experiments.datasets.sequences.data import Sequences
from experiments.studies.training_speed import SYNTHETIC, Settings
from experiments.workloads import networks, steps
from experiments.workloads.training_speed import inputs
from tracking.errors import ErrorCode, UsageError

# Frameworks of Keras' layers that cannot take TensorFlow's losses; XLA compiles neither.
OFF_TENSORFLOW = ("tensorflow+xla", "keras-torch", "keras-jax")


def prepare(settings: Settings, progress: Progress) -> Prepared:
    """Check the networks, and read files.

    Raises:
        UsageError: For a network that does not exist, is missing in a framework or cannot train.
    """
    steps.check_windows(settings, settings.steps, f"steps={settings.steps} that are timed")
    for name in settings.models:
        _check_model(name, settings)
    others = [name for name in settings.frameworks if name in OFF_TENSORFLOW]
    if settings.ctc in ("sparse", "dense") and others and "deepspeech2" in settings.models:
        raise UsageError(
            ErrorCode.CONFLICT,
            f"ctc={settings.ctc}: {', '.join(others)} cannot use TensorFlow's losses; "
            "take ctc=scan",
        )
    counts = {}
    for name in settings.models:
        for rows in settings.rows(name):
            suffix = f", {rows}" if len(settings.rows(name)) > 1 else ""
            counts[f"batch of {name}{suffix}"] = rows
    if settings.data != SYNTHETIC:
        return _prepare_files(settings, counts, progress)
    lengths = " and ".join(settings.length_kinds)
    text = f"random inputs of {settings.size} size, {lengths} lengths, drawn from the seed"
    return Prepared(DatasetInfo("random-inputs", f"{settings.seed:08x}", text, counts, {}), {})


def _check_model(name: str, settings: Settings) -> None:
    module = models.spec(name)
    if not module.has_random_inputs:
        raise UsageError(
            ErrorCode.UNSUPPORTED, f"models={name}: it has no random inputs and no files"
        )
    networks.check_siblings(name, settings.frameworks, "models")
    if module.takes_images:
        spec = inputs.sizes(module, settings.size, settings.ctc)
        side = ("side", inputs.side(spec, settings.size))
        networks.check_images(name, spec, side, ("batch_size", min(settings.rows(name))))


def _prepare_files(settings: Settings, counts: dict[str, int], progress: Progress) -> Prepared:
    """Read the files of every network; the data set's name has a part of its digest.

    So runs on other content are not pooled, wherever it is.
    """
    sequences = {name: _read(name, settings, progress) for name in settings.models}
    lines = [f"{name} {read.digest}\n" for name, read in sequences.items()]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    warnings = []
    buckets = 1 if settings.lengths == "fixed" else inputs.BUCKETS
    for name, read in sequences.items():
        lengths = read.lengths[:, 0]
        counts |= {
            f"examples of {name}": len(lengths),
            f"examples of {name} in the files": read.total,
            f"shortest of {name}": int(lengths.min()),
            f"longest of {name}": int(lengths.max()),
            f"median of {name}": round(float(np.median(lengths))),
        }
        least = len(lengths) // buckets
        if least < max(settings.rows(name)):
            warnings.append(f"{name}: a batch has some of its {least} examples more than once")
    path = Path(settings.data).expanduser().absolute()
    info = DatasetInfo(f"{path.name}-{digest[:8]}", digest[:32], str(path), counts, {})
    folders = {name: str(read.folder) for name, read in sequences.items()}
    return Prepared(info, {"data": folders}, warnings=tuple(warnings))


def _read(name: str, settings: Settings, progress: Progress) -> Sequences:
    module = models.spec(name)
    if not module.reads_files:
        have = ", ".join(model for model in settings.models if models.spec(model).reads_files)
        right = f"name others, such as models={have}" if have else f"take data={SYNTHETIC}"
        raise UsageError(
            ErrorCode.CONFLICT,
            f"data={settings.data}: {name} trains only on random inputs; {right}",
        )
    sequences = data.prepare(
        settings.data,
        module.reads(inputs.sizes(module, settings.size, settings.ctc)),
        any_length=settings.lengths == "fixed",
        seed=settings.seed,
        cache=Path(settings.cache).resolve(),
        progress=progress,
    )
    if (count := len(sequences.lengths)) < inputs.BUCKETS:
        raise UsageError(
            ErrorCode.TOO_FEW,
            f"data={settings.data}: {count} examples for {name}; at least {inputs.BUCKETS}",
        )
    return sequences


WORKLOAD = Workload(prepare=prepare)

"""Checks of the points of a grid."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import models
from experiments.contract import EXPORTED, DatasetInfo, Prepared, Progress, Workload
from experiments.datasets.labelled import data as labelled
from experiments.studies import transformers
from experiments.studies.grid import PointSettings, Settings
from experiments.workloads import networks, steps
from models import frameworks, named, weights
from tracking.errors import ErrorCode, UsageError


def prepare(settings: PointSettings, progress: Progress) -> Prepared:
    """Raise UsageError for models and windows that cannot be measured."""
    if "train" in settings.phases:
        least = settings.least_steps
        steps.check_windows(settings, least, f"least_steps={least} of a training")
    if isinstance(settings, transformers.Settings):
        return _prepare_sequences(settings)
    assert isinstance(settings, Settings)
    for name in settings.models:
        networks.of_images(name, settings.frameworks, "models").Spec(classes=settings.classes)
    if settings.weights not in ("random", "imagenet"):
        weights.check_file(Path(settings.weights))
    sizes = ", ".join(f"{side} × {side}" for side in sorted(set(settings.image_sizes)))
    text = f"standard normal, {sizes}, drawn from the seed"
    text += f"; accuracy on {settings.data}" if settings.data else ""
    inputs = _folder_of_runtimes(settings) | _pictures(settings, progress)
    counts = {f"batch of {size}": size for size in settings.batch_sizes}
    dataset = DatasetInfo("random-images", f"{settings.seed:08x}", text, counts, {})
    return Prepared(dataset, inputs, warnings=named.notes(settings.models))


def _pictures(settings: Settings, progress: Progress) -> dict[str, str]:
    """Return the folder of the pictures by side and channels; empty if no accuracy is measured.

    Raises:
        UsageError: They cannot be read, have other classes, or a training would change the weights.
    """
    if not settings.data:
        return {}
    if settings.phases != ("inference",):
        text = "data: the accuracy is that of the given weights; add phases=inference"
        raise UsageError(ErrorCode.CONFLICT, text)
    folders = dict[str, str]()
    channels = {models.spec(name).Spec.channels for name in settings.models}
    for side, count in product(settings.image_sizes, channels):
        cache = Path(settings.cache).resolve()
        pictures = labelled.prepare(
            settings.data, side=side, channels=count, cache=cache, progress=progress
        )
        if len(pictures.classes) != settings.classes:
            text = f"data={settings.data} has {len(pictures.classes)} classes"
            raise UsageError(ErrorCode.CONFLICT, f"{text}; give classes={len(pictures.classes)}")
        folders[pictures_of(side, count)] = str(pictures.folder)
    return folders


def pictures_of(side: int, channels: int) -> str:
    """Return the key of a cell's input: the folder of pictures of this size."""
    return f"pictures, {side} px, {channels} channels"


def _folder_of_runtimes(settings: PointSettings) -> dict[str, str]:
    """Return the input of cells of runtimes, the folder of their files; empty without a runtime.

    Raises:
        UsageError: If nothing but a training is timed.
    """
    names = [name for name in settings.frameworks if frameworks.described(name).exported_from]
    if names and "inference" not in settings.phases:
        text = f"phases=train: {names[0]} is a runtime and does not train; add inference"
        raise UsageError(ErrorCode.UNSUPPORTED, text)
    return {EXPORTED: str(Path(settings.cache, EXPORTED).resolve())} if names else {}


def _prepare_sequences(settings: transformers.Settings) -> Prepared:
    for name in settings.models:
        if "classes" not in vars(models.spec(name).SIZES.get(settings.size, name)):
            text = f"models={name}: it takes no tokens, or is no classifier; give bert or hf:NAME"
            raise UsageError(ErrorCode.UNSUPPORTED, text)
        networks.check_siblings(name, settings.frameworks, "models", settings.size)
        is_keras = any(
            frameworks.described(each).architecture == "keras" for each in settings.frameworks
        )
        if named.is_causal(name) and not settings.kv_cache and is_keras:
            text = "kv_cache=false: KerasHub generates with its cache alone; compare PyTorch's own"
            raise UsageError(ErrorCode.CONFLICT, text)
        if settings.trained == "head" and not named.has_head(name):
            text = f"trained=head: {name} has no classifier on a frozen part; give hf:bert"
            raise UsageError(ErrorCode.UNSUPPORTED, text)
        if settings.weights == "pretrained" and not named.checkpoint(name):
            text = f"weights=pretrained: {name} is no checkpoint; give models=hf:FOLDER"
            raise UsageError(ErrorCode.CONFLICT, text)
        if settings.weights == "pretrained":
            weights.check_file(Path(named.checkpoint(name)))
    text = f"random tokens, {', '.join(map(str, settings.lengths))} an example, from the seed"
    counts = {f"batch of {size}": size for size in settings.batch_sizes}
    dataset = DatasetInfo("random-tokens", f"{settings.seed:08x}", text, counts, {})
    inputs = _folder_of_runtimes(settings)
    return Prepared(dataset, inputs, warnings=named.notes(settings.models))


def longest(settings: transformers.Settings, model: str) -> int:
    """Return the most tokens among the lengths that a classifier takes; 0 if it takes none."""
    lengths = (each for each in settings.lengths if not _refusal(model, settings.size, each))
    return max(lengths, default=0)


def _refusal(model: str, size: str, length: int) -> str:
    sizes = models.spec(model).SIZES[size]
    most = getattr(sizes, "positions", 0) or named.positions(model, size)
    return f"{model} takes at most {most} tokens" if most and length > most else ""


def not_available(point: Any) -> str:
    """Return why a point of the grid cannot be measured, or an empty text."""
    if isinstance(point, transformers.Settings):
        is_answering = named.is_causal(point.model) and "inference" in point.phases
        length = point.length + is_answering * point.new_tokens
        return _refusal(point.model, point.size, length)
    spec = models.spec(point.model).Spec(classes=point.classes)
    rows = point.batch_size if "train" in point.phases else None
    return networks.refusal(point.model, spec, point.image_size, rows)


WORKLOAD = Workload(
    prepare=prepare,
    not_available=not_available,
    measured_in_a_row=lambda settings, _: settings.least_steps,
)

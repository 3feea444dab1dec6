"""Checks of networks of the study of training speed."""

from __future__ import annotations

import models
from experiments.contract import DatasetInfo, Prepared, Progress, Workload
from experiments.studies.training_speed import Settings
from experiments.workloads import networks, steps
from experiments.workloads.training_speed import inputs
from tracking.errors import ErrorCode, UsageError

# Frameworks of Keras' layers that cannot take TensorFlow's losses; XLA compiles neither.
OFF_TENSORFLOW = ("tensorflow+xla", "keras-torch", "keras-jax")


def prepare(settings: Settings, _: Progress) -> Prepared:
    """Check the networks.

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
    lengths = " and ".join(settings.length_kinds)
    text = f"random inputs of {settings.size} size, {lengths} lengths, drawn from the seed"
    return Prepared(DatasetInfo("random-inputs", f"{settings.seed:08x}", text, counts, {}), {})


def _check_model(name: str, settings: Settings) -> None:
    module = models.spec(name)
    if not module.has_random_inputs:
        raise UsageError(ErrorCode.UNSUPPORTED, f"models={name}: it has no random inputs")
    networks.check_siblings(name, settings.frameworks, "models")
    if module.takes_images:
        spec = inputs.sizes(module, settings.size, settings.ctc)
        side = ("side", inputs.side(spec, settings.size))
        networks.check_images(name, spec, side, ("batch_size", min(settings.rows(name))))


WORKLOAD = Workload(prepare=prepare)

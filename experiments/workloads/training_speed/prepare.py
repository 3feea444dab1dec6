"""Checks of networks of the study of training speed."""

from __future__ import annotations

import models
from experiments.contract import DatasetInfo, Prepared, Progress, Workload
from experiments.studies.training_speed import Settings
from experiments.workloads import networks, steps
from experiments.workloads.training_speed import inputs
from models import frameworks, named
from models.devices import KINDS
from models.lstms import FLOAT32_ALONE
from tracking.errors import ErrorCode, UsageError

# Operators of an LSTM -> the frameworks that have them.
BLOCKS = {"block": ("pytorch", "tensorflow"), "block-v2": ("tensorflow",)}


def prepare(settings: Settings, _: Progress) -> Prepared:
    """Check the networks.

    Raises:
        UsageError: For a network that does not exist, is missing in a framework or cannot train.
    """
    steps.check_windows(settings, settings.steps, f"steps={settings.steps} that are timed")
    for name in settings.models:
        _check_model(name, settings)
    others = [name for name in settings.frameworks if not _has_tensorflows_losses(name)]
    if settings.ctc in ("sparse", "dense") and others and "deepspeech2" in settings.models:
        raise UsageError(
            ErrorCode.CONFLICT,
            f"ctc={settings.ctc}: {', '.join(others)} cannot use TensorFlow's losses; "
            "take ctc=scan",
        )
    others = [name for name in settings.frameworks if name != "tensorflow"]
    if settings.graph_off != "none" and others:
        raise UsageError(
            ErrorCode.CONFLICT,
            f"graph_off={settings.graph_off}: {', '.join(others)} cannot leave it out; "
            "take frameworks=tensorflow",
        )
    _check_lstm(settings)
    counts = {f"batch of {name}": settings.rows(name) for name in settings.models}
    text = f"random inputs of {settings.size} size, {settings.lengths} lengths, drawn from the seed"
    dataset = DatasetInfo("random-inputs", f"{settings.seed:08x}", text, counts, {})
    return Prepared(dataset, {}, warnings=named.notes(settings.models))


def _has_tensorflows_losses(name: str) -> bool:
    """Return whether Keras' layers can have TensorFlow's losses: XLA compiles neither of these."""
    variant = frameworks.described(name)
    is_other = variant.architecture == "keras" and "tensorflow" not in variant.packages
    return not (is_other or variant.by_xla == KINDS)


def _check_model(name: str, settings: Settings) -> None:
    module = models.spec(name)
    if not (module.takes_images or module.SIZES):
        raise UsageError(ErrorCode.UNSUPPORTED, f"models={name}: it has no random inputs")
    size = settings.size if module.SIZES else named.FULL
    networks.check_siblings(name, settings.frameworks, "models", size)
    if module.takes_images:
        spec = inputs.sizes(module, settings.size, settings.ctc, settings.lstm)
        side = ("side", inputs.side(spec, settings.size))
        networks.check_images(name, spec, side, ("batch_size", settings.rows(name)))


def _check_lstm(settings: Settings) -> None:
    call, frameworks = f"lstm={settings.lstm}", BLOCKS.get(settings.lstm, settings.frameworks)
    if others := [name for name in settings.frameworks if name not in frameworks]:
        raise UsageError(
            ErrorCode.UNSUPPORTED,
            f"{call}: not in {', '.join(others)}; take frameworks={','.join(frameworks)}",
        )
    is_lower = settings.lstm in FLOAT32_ALONE and "tensorflow" in settings.frameworks
    if is_lower and settings.precision == "bfloat16":
        raise UsageError(ErrorCode.CONFLICT, f"{call}: TensorFlow's takes precision=float32 only")
    for name in settings.models if settings.lstm != "layer" else ():
        module = models.spec(name)
        if module.takes_images or "lstm" not in vars(module.sized("tiny")):
            raise UsageError(ErrorCode.UNSUPPORTED, f"models={name}: {call}, but it has no LSTM")


WORKLOAD = Workload(prepare=prepare, measured_in_a_row=lambda settings, _: settings.steps)

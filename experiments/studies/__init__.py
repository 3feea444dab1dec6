"""Experiments: one file each, whose `STUDY` is an instance of `Study`. No list is edited."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Mapping
from typing import Any

from experiments.config import devices, interpreters
from experiments.config.settings import (
    CampaignSettings,
    names_not_affecting_measurement,
    parse,
)
from experiments.contract import Study
from experiments.metrics import FREELY, Outcome, check_primary, outcome
from models.devices import CPU
from tracking import plain
from tracking.errors import ErrorCode, UsageError, suggestion

# Settings whose value in a preset is meant for cells on a CPU.
CPU_ONLY = frozenset({"threads", "malloc", "pairing"})
# Settings that `phase_seconds` makes larger.
LENGTH_OF_PHASES = frozenset({"epochs", "steps_per_epoch", "inference_requests"})


def available() -> list[str]:
    """Return the names of the experiments."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Study:
    """Return a study.

    Raises:
        UsageError: If there is no such study, with the closest name.
    """
    if name not in available():
        right = suggestion(name, available())
        raise UsageError(ErrorCode.UNKNOWN_NAME, f"no experiment '{plain.short(name)}'{right}")
    study: Study = importlib.import_module(f"{__name__}.{name}").STUDY
    return study


def parse_settings(study: Study, options: Mapping[str, str]) -> CampaignSettings:
    """Return the settings of a call, with the folder's interpreters and its device's presets.

    Raises:
        UsageError: For the first mistake, and for a device that this machine lacks.
    """
    settings: CampaignSettings = parse(study.settings, study.presets, options)
    presets = presets_on(study, devices.resolve_all(settings))
    if not LENGTH_OF_PHASES.isdisjoint(options):  # who sets a length gets it
        presets["demo"] = {k: v for k, v in presets["demo"].items() if k != "phase_seconds"}
    # levels have environments of their own, and a resumed campaign those that it began with
    of_folder = {} if settings.levels or settings.resume else interpreters.read_setup()
    return parse(study.settings, presets, options, of_folder)


def presets_on(study: Study, used: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the presets of a study on the devices that its cells use.

    On a GPU they are without what makes cells on a CPU steady: it would wait for the host.
    """
    presets = {preset: dict(values) for preset, values in study.presets.items()}
    if CPU in used:
        return presets
    for values in presets.values():
        for name in CPU_ONLY:
            values.pop(name, None)
    presets["demo"] |= study.demo_on_gpu
    return presets


def poolable_names() -> tuple[str, ...]:
    """Return the settings in which cells of some study may differ and still be pooled."""
    types = [load(name).settings for name in available()]
    return tuple(
        sorted({name for type_ in types for name in names_not_affecting_measurement(type_)})
    )


def names_differing_with(factor: str) -> tuple[str, ...]:
    """Return the settings that differ with a factor by its nature; a treatment has all of them."""
    return tuple(
        name
        for study in map(load, available())
        if factor in (study.factor, "treatment")
        for name in study.allowed_to_differ
    )


def primary(study: Study, settings: CampaignSettings) -> tuple[str, ...]:
    """Return the outcomes that the settings name, or the study's own.

    Raises:
        UsageError: For an outcome that the study does not judge.
    """
    metrics = [outcome.metric for outcome in outcomes(study, settings)]
    return check_primary(settings.primary or study.primary_of(settings) or study.primary, metrics)


def outcomes(study: Study, settings: CampaignSettings) -> tuple[Outcome, ...]:
    """Return the judged outcomes in the order of the report.

    If steps run freely, their throughput is one of them in every study.
    """
    metrics = [outcome.metric for outcome in study.outcomes]
    reported = study.reported(settings) if study.reported else ()
    if devices.timing(settings) == "step" or FREELY in metrics:
        return (*study.outcomes, *reported)
    return (outcome(FREELY), *study.outcomes, *reported)

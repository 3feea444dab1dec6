"""Treatments of a block: what is compared, and the controls that test the measurement itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from experiments.config import devices, variation
from experiments.config.settings import CampaignSettings, DesignSettings
from experiments.contract import Study, Treatment
from tracking.errors import ErrorCode, UsageError

MAX_CELLS = 100_000
# Settings of controls, which a study without any does not offer.
UNCONTROLLED = frozenset({"aa", "inject_delay"})


def list_treatments(study: Study, settings: CampaignSettings) -> tuple[Treatment, ...]:
    """Return a study's own treatments, or every framework once; then the requested controls.

    Each of them has every value of what is varied; the controls have the baseline's only.

    Raises:
        UsageError: For controls that would not be judged, and a setting that the study sets itself.
    """
    varied = variation.parse(settings)
    if not varied:
        return _of_study(study, settings)
    treatments = []
    for number, level in enumerate(varied.levels):
        for treatment in _of_study(study, level.applied(settings)):
            if treatment.control and number:
                continue
            values = {**level.settings, **treatment.settings}
            if any(values[key] != value for key, value in level.settings.items()):
                raise UsageError(
                    ErrorCode.CONFLICT,
                    f"vary: {study.name} sets {varied.name} itself, cell by cell",
                )
            name = f"{treatment.name} · {level.label}"
            version = level.text if varied.name == variation.VERSION else ""
            treatments.append(
                replace(
                    treatment,
                    name=name,
                    settings=values,
                    environment=level.environment,
                    version=version,
                )
            )
    check_count(settings, treatments)
    return tuple(treatments)


def _of_study(study: Study, settings: CampaignSettings) -> tuple[Treatment, ...]:
    if study.treatments:
        treatments = study.treatments(settings)
        of_controls = controls(settings, treatments[0])
    else:
        frameworks = compared(settings)
        of_controls = controls(settings, frameworks[0])
        treatments = (*frameworks, *of_controls)
    check_count(settings, treatments)
    names = {treatment.name for treatment in treatments}
    has_groups = any(treatment.group for treatment in treatments)
    if of_controls and (has_groups or not names.issuperset(each.name for each in of_controls)):
        raise UsageError(
            ErrorCode.UNSUPPORTED,
            f"aa, inject_delay: {study.name} has no controls with these settings; leave them out",
        )
    return treatments


def check_count(settings: DesignSettings, *factors: Sequence[Any]) -> None:
    """Raise UsageError if every combination of levels, in every block, is too many cells."""
    blocks = settings.most_blocks
    count = math.prod(map(len, factors)) * blocks
    if count > MAX_CELLS:
        raise UsageError(
            ErrorCode.TOO_LARGE,
            f"{count:,} cells, every combination in {blocks:,} blocks; at most {MAX_CELLS:,}",
        )


def require_single_steps(settings: CampaignSettings, study: str) -> None:
    """Raise UsageError if steps would not be timed one by one, which the study is about."""
    if (kind := devices.timing(settings)) != "step":
        raise UsageError(
            ErrorCode.CONFLICT,
            f"timing={kind}: {study} compares steps that are timed one by one; take timing=step",
        )


def models_of(study: Study, settings: CampaignSettings) -> tuple[str, ...]:
    """Return the models that a campaign measures: those of the settings, or the study's own."""
    names = [name for level in variation.each(settings) for name in study.models(level)]
    return tuple(dict.fromkeys(names))


def groups(treatments: Iterable[Treatment]) -> list[list[str]]:
    names: dict[str, list[str]] = {}
    for treatment in treatments:
        names.setdefault(treatment.group, []).append(treatment.name)
    return list(names.values())


def compared(settings: CampaignSettings) -> tuple[Treatment, ...]:
    """Return one treatment per framework, without the delay of a control."""
    return tuple(
        Treatment(name, name, settings={"inject_delay": 0.0}) for name in settings.frameworks
    )


def controls(settings: CampaignSettings, baseline: Treatment) -> tuple[Treatment, ...]:
    """Return the baseline once more: unchanged, and with a known delay that must be detected."""
    treatments = list[Treatment]()
    if settings.aa:
        treatments.append(replace(baseline, name=f"{baseline.name} A/A", control="A/A"))
    if settings.inject_delay:
        share = f"{100 * settings.inject_delay:g} %"
        delayed = {**baseline.settings, "inject_delay": settings.inject_delay}
        name, control = f"{baseline.name} +{share}", f"injected {share}"
        treatments.append(replace(baseline, name=name, control=control, settings=delayed))
    return tuple(treatments)

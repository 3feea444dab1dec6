"""What the cells of a block are given: the compared frameworks, and the controls that test the measurement itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from experiments.config import devices, variation
from experiments.config.settings import CampaignSettings
from experiments.contract import Study, Treatment
from tracking.errors import WrongCall

MAX_CELLS = 100_000


def of(study: Study, settings: CampaignSettings) -> tuple[Treatment, ...]:
    """A study's own treatments, where it states them, or every framework once; then the controls that were asked for.

    Each of them is there with every value of what is varied; the controls with the first, the baseline. Raises WrongCall where
    controls are asked for that would not be judged, and for a setting that the study itself sets.
    """
    varied = variation.parse(settings)
    if not varied:
        return _of_study(study, settings)
    found = [
        _with_level(one, level, varied.name, study)
        for number, level in enumerate(varied.levels)
        for one in _of_study(study, level.applied(settings))
        if not (one.control and number)
    ]
    check_count(settings, found)
    return tuple(found)


def _with_level(treatment: Treatment, level: variation.Level, name: str, study: Study) -> Treatment:
    own = {**level.settings, **treatment.settings}
    if any(own[key] != value for key, value in level.settings.items()):
        raise WrongCall(f"vary: {study.name} sets {name} itself, cell by cell")
    return dataclasses.replace(
        treatment,
        name=f"{treatment.name} · {level.label}",
        settings=own,
        environment=level.environment,
    )


def _of_study(study: Study, settings: CampaignSettings) -> tuple[Treatment, ...]:
    found = (
        study.treatments(settings)
        if study.treatments
        else (*compared(settings), *controls(settings))
    )
    check_count(settings, found)
    if (settings.aa or settings.inject_delay) and any(one.group for one in found):
        raise WrongCall(
            "aa, inject_delay: several groups of cells have no controls; ask for them in a campaign of a single group"
        )
    if not {one.name for one in controls(settings)} <= {one.name for one in found}:
        raise WrongCall(f"aa, inject_delay: {study.name} has no controls; leave them out")
    return found


def check_count(settings: CampaignSettings, *factors: Sequence[Any]) -> None:
    """Raises WrongCall where every combination of the factors' levels, in every block, is more than a campaign can hold."""
    blocks = settings.most_blocks
    count = math.prod(map(len, factors)) * blocks
    if count > MAX_CELLS:
        raise WrongCall(
            f"{count:,} cells are asked for, every combination in {blocks:,} blocks; at most {MAX_CELLS:,}"
        )


def require_single_steps(settings: CampaignSettings, study: str) -> None:
    """Raises WrongCall where steps would not be timed one by one, which is what the study is about."""
    if (kind := devices.timing(settings)) != "step":
        raise WrongCall(
            f"timing={kind}: {study} compares steps that are timed one by one; take timing=step"
        )


def models_of(study: Study, settings: CampaignSettings) -> tuple[str, ...]:
    """The models that a campaign measures: those that the settings name, where the study asks them, or the study's own."""
    found = map(study.models, variation.each(settings))
    return tuple(dict.fromkeys(name for names in found for name in names))


def groups(treatments: Iterable[Treatment]) -> list[list[str]]:
    """Names of the treatments of each group, in their order."""
    found: dict[str, list[str]] = {}
    for one in treatments:
        found.setdefault(one.group, []).append(one.name)
    return list(found.values())


def compared(settings: CampaignSettings) -> tuple[Treatment, ...]:
    """One treatment per framework, without the delay that controls are given."""
    return tuple(
        Treatment(name, name, settings={"inject_delay": 0.0}) for name in settings.frameworks
    )


def controls(settings: CampaignSettings) -> tuple[Treatment, ...]:
    """The baseline against itself, which must come out as equal, and with a known delay, which must be found."""
    baseline = settings.frameworks[0]
    found: list[Treatment] = []
    if settings.aa:
        found.append(
            Treatment(f"{baseline} A/A", baseline, settings={"inject_delay": 0.0}, control="A/A")
        )
    if settings.inject_delay:
        share = f"{100 * settings.inject_delay:g} %"
        found.append(Treatment(f"{baseline} +{share}", baseline, control=f"injected {share}"))
    return tuple(found)

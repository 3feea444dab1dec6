"""One file an experiment: settings, presets, outcomes, published figures. Found by file name; no list is edited."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from types import ModuleType

from experiments.config import devices
from experiments.config import settings as settings_
from experiments.metrics import FREELY, Outcome, declared, outcome
from tracking import plain
from tracking.errors import WrongCall


def available() -> list[str]:
    """Names of the experiments that can be run."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def immaterial() -> tuple[str, ...]:
    """Settings in which the cells of some study may differ and still be pooled."""
    return tuple(sorted({name for study in available() for name in settings_.immaterial(load(study).Settings)}))


def primary(study: ModuleType, settings: settings_.CampaignSettings) -> tuple[str, ...]:
    """The outcomes that a campaign is about: those that the settings name, or the study's own. Raises WrongCall."""
    return declared(settings.primary or getattr(study, "PRIMARY", ()), [one.metric for one in outcomes(study, settings)])


def outcomes(study: ModuleType, settings: settings_.CampaignSettings) -> tuple[Outcome, ...]:
    """What a campaign judges, in the order of its report; of steps that run freely, it is their throughput in every study."""
    found: tuple[Outcome, ...] = tuple(study.OUTCOMES)
    if devices.timing(settings) == "step" or FREELY in (one.metric for one in found):
        return found
    return (outcome(FREELY), *found)


def load(name: str) -> ModuleType:
    """The study's module. Raises WrongCall naming what there is."""
    if name not in available():
        close = difflib.get_close_matches(name, available(), n=1)
        right = f"did you mean {close[0]}?" if close else f"have {', '.join(available())}"
        raise WrongCall(f"no experiment '{plain.short(name)}'; {right}")
    return importlib.import_module(f"{__name__}.{name}")

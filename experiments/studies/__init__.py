"""Experiments: one file each, whose `STUDY` is an instance of `Study`. No list is edited."""

from __future__ import annotations

import importlib
import pkgutil

from experiments.config import devices
from experiments.config import settings as settings_
from experiments.contract import Study
from experiments.metrics import FREELY, Outcome, declared, outcome
from tracking import plain
from tracking.errors import WrongCall


def available() -> list[str]:
    """Names of the experiments that can be run."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Study:
    """Return a study.

    Raises:
        WrongCall: with what there is, if there is no such study.
    """
    if name not in available():
        right = settings_.suggestion(name, available())
        raise WrongCall(f"no experiment '{plain.short(name)}'{right}")
    study: Study = importlib.import_module(f"{__name__}.{name}").STUDY
    return study


def immaterial() -> tuple[str, ...]:
    """Settings in which the cells of some study may differ and still be pooled."""
    kinds = [load(name).settings for name in available()]
    return tuple(sorted({name for kind in kinds for name in settings_.immaterial(kind)}))


def primary(study: Study, settings: settings_.CampaignSettings) -> tuple[str, ...]:
    """Return the outcomes that the settings name, or the study's own.

    Raises:
        WrongCall: for what the study does not judge.
    """
    return declared(
        settings.primary or study.primary, [one.metric for one in outcomes(study, settings)]
    )


def outcomes(study: Study, settings: settings_.CampaignSettings) -> tuple[Outcome, ...]:
    """Return what a campaign judges, in the order of its report.

    Of steps that run freely it is their throughput in every study.
    """
    if devices.timing(settings) == "step" or FREELY in (one.metric for one in study.outcomes):
        return study.outcomes
    return (outcome(FREELY), *study.outcomes)

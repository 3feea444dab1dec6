"""What is known before the first cell, built once: settings, design, data and machine, checked and proven."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from experiments import studies, workloads
from experiments.config import devices, interpreters, memory, variation
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.contract import Prepared, Study, Treatment
from experiments.planning import treatments
from experiments.run import backends, preflight, scheduler
from experiments.run.machine_state import MachineProbe, MachineState
from experiments.run.plan import Plan
from models import frameworks
from models import own as own_models
from tracking import accounts
from tracking.errors import WrongCall
from tracking.store import Store

T = TypeVar("T")


@dataclass(frozen=True)
class PreparedCampaign:
    """A campaign before its first cell.

    data: of all cells; `of_treatment` has those of treatments whose own settings change them.
    machine: its state while nothing of ours computed. experiment: where the run goes; launches: where
    `mlflow run` has opened runs that lead to it.
    """

    study: str
    settings: CampaignSettings
    plan: Plan
    data: Prepared
    machine: MachineState = field(default_factory=MachineState)
    experiment: str = ""
    launches: str = ""

    @property
    def module(self) -> Study:
        return studies.load(self.study)

    def data_for(self, treatment: Treatment) -> Prepared:
        return self.data.of_treatment.get(treatment.name, self.data)


def prepare(
    study: str, settings: CampaignSettings, display: Display, plan: Plan | None = None
) -> PreparedCampaign:
    """Find whatever can be wrong before any minute of compute.

    Args:
        study: Name of the experiment.
        settings: As the user gave them.
        display: Shows what is being done.
        plan: What is compared, where that is not the study's own design.

    Raises:
        WrongCall: For what is wrong, and what would be right.
    """
    # jobs look at their nodes themselves
    probe = (
        None
        if settings.on_cluster
        else MachineProbe(devices.of(settings)[0], settings.workers_of_a_cell)
    )
    data = prepare_data(study, settings, display)
    store = Store()
    store.check()
    account = accounts.current(store)
    settings = dataclasses.replace(settings, team=accounts.team_of(account, settings.team))
    machine = probe.idle() if probe else MachineState()
    checked = preflight.check_devices(study, settings, data, display, plan)
    settings, plan = checked.settings, _by_machine(checked.plan, checked.settings)
    if after_checks := workloads.load(studies.load(study).workload).after_checks:
        data = after_checks(data, [result.findings for result in checked.results])
    own_data = {}
    if plan.own_inputs:
        own = [treatment.merged(settings) for treatment in plan.treatments]
        prepared = {
            settings_of: prepare_data(study, settings_of, display)
            for settings_of in dict.fromkeys(own)
        }
        own_data = {
            treatment.name: prepared[settings_of]
            for treatment, settings_of in zip(plan.treatments, own, strict=True)
        }
    parity = preflight.prove(study, settings, plan.treatments, display)
    of_baseline = (
        job
        for more in own_data.values()
        for job in more.before
        if job.framework == settings.frameworks[0]
    )
    warnings = _unique(
        [*data.warnings, *(line for more in own_data.values() for line in more.warnings)]
    )
    return PreparedCampaign(
        study,
        settings,
        plan,
        dataclasses.replace(
            data,
            before=tuple({repr(job): job for job in (*data.before, *of_baseline)}.values()),
            warnings=(
                *warnings,
                *parity.warnings,
                *machine.troubles,
                *filter(None, [checked.warning, plan.rates_only]),
            ),
            tags={**data.tags, **parity.tags, **accounts.tags(account)},
            files={**data.files, **parity.files, **_sources_of_own_models(study, settings)},
            of_treatment=own_data,
            refused=parity.refused,
        ),
        machine,
        accounts.place(account, settings.team, study),
        accounts.launches(account, settings.team),
    )


def prepare_data(study: str, settings: CampaignSettings, display: Display) -> Prepared:
    """Return the data of these settings, made in folders that can be written. Raises WrongCall."""
    check_settings(study, settings)
    for folder in (settings.journal, settings.cache):
        settings_.require_writable(Path(folder), "journal=DIR, cache=DIR")
    return read_data(study, settings, display)


def read_data(study: str, settings: CampaignSettings, display: Display) -> Prepared:
    """Return the data, read or made in the cache, and checked against the settings. Raises WrongCall."""
    module = studies.load(study)
    data = workloads.load(module.workload).prepare(settings, display.step)
    treatments.of(module, settings)  # raises for what it does not know
    return dataclasses.replace(data, warnings=(*data.warnings, *module.warnings(settings)))


def check_settings(study: str, settings: CampaignSettings) -> None:
    """Raise WrongCall for all that can be wrong with the settings only; write nothing."""
    module = studies.load(study)
    for name in settings.frameworks:
        frameworks.check(name)
        if missing := interpreters.missing(name, settings.pythons):
            raise WrongCall(missing)
    scheduler.check_stopping(settings)
    for own in variation.each(settings):
        memory.size(own.memory_limit)
        if 0 < own.sensor_seconds < devices.SHORTEST_SENSOR_SECONDS:
            raise WrongCall(
                f"sensor_seconds={own.sensor_seconds:g} is too small; at least {devices.SHORTEST_SENSOR_SECONDS}"
            )
        devices.check_variables(devices.of(own), os.environ)  # raises for a missing GPU, too
        if not own.on_cluster:
            devices.placement(own)  # raises where no CPU is left to the cells
    backends.check(settings)
    studies.primary(module, settings)  # raises for what it does not judge


def _by_machine(plan: Plan, settings: CampaignSettings) -> Plan:
    """Return the plan with blocks that ran on several nodes judged node by node, then together as a random effect."""
    apart = (
        settings.on_cluster
        and settings.nodes > settings.nodes_of_a_job
        and "machine" not in plan.strata
    )
    return dataclasses.replace(plan, strata=(*plan.strata, "machine")) if apart else plan


def _sources_of_own_models(study: str, settings: CampaignSettings) -> dict[str, str]:
    """Return the sources of the user's own models, for the campaign's files: no commit has them."""
    measured = (
        set(treatments.models_of(studies.load(study), settings)) & own_models.folders().keys()
    )
    return {
        f"{name}.{path.name}": path.read_text(encoding="utf-8")
        for name in measured
        for path in own_models.sources(name)
    }


def _unique(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))

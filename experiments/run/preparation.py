"""Preparation of a campaign: settings, design, data and machine, checked before the first cell."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from experiments import studies, workloads
from experiments.config import devices, interpreters, memory, variation
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.contract import DatasetInfo, Prepared, Study, Treatment
from experiments.planning import treatments
from experiments.run import backends, preflight, scheduler
from experiments.run import plan as plan_
from experiments.run.machine_state import MachineProbe, MachineState
from experiments.run.plan import Plan
from models import frameworks
from models import own as own_models
from tracking import accounts
from tracking.errors import WrongCall
from tracking.store import Store

NO_DATA = Prepared(DatasetInfo("", "", "", {}, {}), {})


@dataclass(frozen=True)
class PreparedCampaign:
    """Campaign before its first cell.

    Attributes:
        data: Of all cells; its `of_treatment` has those of treatments whose settings change them.
        machine: State of the machine before anything of the campaign computed.
        experiment: MLflow experiment of the runs.
        launches: MLflow experiment in which `mlflow run` opens runs that lead to it.
    """

    study: str
    settings: CampaignSettings
    plan: Plan
    data: Prepared = NO_DATA
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
    """Check everything that can be wrong before the first cell.

    Args:
        study: Name of the experiment.
        settings: As the user set them.
        display: Shows the progress.
        plan: What is compared, where that is not the study's own design.

    Raises:
        WrongCall: For what is wrong, with what would be right.
    """
    plan = plan or plan_.of_study(studies.load(study), settings)
    draft = PreparedCampaign(study, settings, plan)
    # jobs of a cluster check their nodes themselves
    probe = None
    if not draft.settings.on_cluster:
        device = devices.of(draft.settings)[0]
        probe = MachineProbe(device, draft.settings.workers_of_a_cell)
    data = prepare_data(study, draft.settings, display)
    store = Store()
    store.check()
    account = accounts.current(store)
    team = accounts.team_of(account, draft.settings.team)
    machine = probe.idle() if probe else MachineState()
    draft = replace(
        draft,
        settings=replace(draft.settings, team=team),
        data=data,
        machine=machine,
        experiment=accounts.place(account, team, study),
        launches=accounts.launches(account, team),
    )
    checked = preflight.check_devices(draft, display)
    prepared = checked.prepared
    data_of_treatment = _prepare_data_of_treatments(prepared, display)
    parity = preflight.prove(prepared, display)
    data = prepared.data
    jobs, warnings = list(data.before), list(data.warnings)
    for more in data_of_treatment.values():
        baseline = prepared.settings.frameworks[0]
        jobs += [job for job in more.before if job.framework == baseline]
        warnings += more.warnings
    warnings = [*dict.fromkeys(warnings), *parity.warnings, *machine.troubles]
    data = replace(
        data,
        before=tuple({repr(job): job for job in jobs}.values()),
        warnings=(*warnings, *filter(None, [checked.warning, prepared.plan.rates_only])),
        tags={**data.tags, **parity.tags, **accounts.tags(account)},
        files={**data.files, **parity.files, **_sources_of_own_models(prepared)},
        of_treatment=data_of_treatment,
        refused=parity.refused,
    )
    return replace(prepared, plan=_by_machine(prepared), data=data)


def prepare_data(study: str, settings: CampaignSettings, display: Display) -> Prepared:
    """Return the data of these settings, made in folders that can be written. Raises WrongCall."""
    check_settings(study, settings)
    for folder in (settings.journal, settings.cache):
        settings_.require_writable(Path(folder), "journal=DIR, cache=DIR")
    return read_data(study, settings, display)


def read_data(study: str, settings: CampaignSettings, display: Display) -> Prepared:
    """Return the data, read or made in the cache, checked against the settings. Raises WrongCall."""
    module = studies.load(study)
    data = workloads.load(module.workload).prepare(settings, display.step)
    treatments.of(module, settings)  # raises for what it does not know
    return replace(data, warnings=(*data.warnings, *module.warnings(settings)))


def check_settings(study: str, settings: CampaignSettings) -> None:
    """Raise WrongCall for all that can be wrong with the settings only; write nothing."""
    for name in settings.frameworks:
        frameworks.check(name)
        if missing := interpreters.missing(name, settings.pythons):
            raise WrongCall(missing)
    scheduler.check_stopping(settings)
    for level in variation.each(settings):
        memory.size(level.memory_limit)
        if 0 < level.sensor_seconds < devices.SHORTEST_SENSOR_SECONDS:
            raise WrongCall(
                f"sensor_seconds={level.sensor_seconds:g} is too small; "
                f"at least {devices.SHORTEST_SENSOR_SECONDS}"
            )
        devices.check_variables(devices.of(level), os.environ)  # raises for a missing GPU, too
        if not level.on_cluster:
            devices.placement(level)  # raises where no CPU is left to the cells
    backends.check(settings)
    studies.primary(studies.load(study), settings)  # raises for what it does not judge


def _prepare_data_of_treatments(
    prepared: PreparedCampaign, display: Display
) -> dict[str, Prepared]:
    """Return the data of each treatment where their settings may change it, made once for each."""
    if not prepared.plan.own_inputs:
        return {}
    settings_of = {
        treatment.name: treatment.merged(prepared.settings)
        for treatment in prepared.plan.treatments
    }
    data = {
        settings: prepare_data(prepared.study, settings, display)
        for settings in dict.fromkeys(settings_of.values())
    }
    return {name: data[settings] for name, settings in settings_of.items()}


def _by_machine(prepared: PreparedCampaign) -> Plan:
    """Return the plan, with blocks of several nodes judged by node, then as a random effect."""
    settings, plan = prepared.settings, prepared.plan
    has_several = settings.on_cluster and settings.nodes > settings.nodes_of_a_job
    if not has_several or "machine" in plan.strata:
        return plan
    return replace(plan, strata=(*plan.strata, "machine"))


def _sources_of_own_models(prepared: PreparedCampaign) -> dict[str, str]:
    """Return the sources of the user's own models by file name: no commit has them."""
    measured = treatments.models_of(prepared.module, prepared.settings)
    return {
        f"{name}.{path.name}": path.read_text(encoding="utf-8")
        for name in own_models.folders().keys() & set(measured)
        for path in own_models.sources(name)
    }

"""Preparation of a campaign: settings, design, data and machine, checked before the first cell."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments import studies, workloads
from experiments.comparison.verdicts import conditions
from experiments.config import devices, interpreters, memory, variation, virtual_environments
from experiments.config.console import Display
from experiments.config.settings import (
    MAX_SMOKE_BLOCKS,
    SMOKE,
    CampaignSettings,
    ModelSettings,
    require_writable,
)
from experiments.contract import Prepared, Progress
from experiments.planning import treatments
from experiments.run import machine_state, preflight, scheduler
from experiments.run.backends import selection
from experiments.run.plan import Plan
from experiments.run.prepared import PreparedCampaign
from experiments.workloads.command import environments
from models import frameworks
from models import own as own_models
from models.devices import CPU
from tracking import accounts, limits, plain
from tracking.cpus import cpus
from tracking.errors import ErrorCode, UsageError
from tracking.sensors import load
from tracking.store import Store

MAX_NAME_CHARACTERS = 100  # as the header of a column
REPORTED = "; declare what scripts report as [outcomes.NAME] in race.toml"


def prepare(
    study: str,
    settings: CampaignSettings,
    display: Display,
    plan: Plan | None = None,
    *,
    is_new: bool = False,
) -> PreparedCampaign:
    """Check everything that can be wrong before the first cell.

    Args:
        study: Name of the experiment.
        settings: As the user set them.
        display: Shows the progress.
        plan: What is compared, where that is not the study's own design.
        is_new: True if the length of its training may still be chosen.

    Raises:
        UsageError: For what is wrong, with what would be right.
    """
    if settings.levels:
        make_environments(settings, display.step)
        settings = virtual_environments.with_baseline(settings)
    plan = plan or Plan.of_study(studies.load(study), settings)
    prepared = PreparedCampaign(study, settings, plan)
    steps: list[Callable[[PreparedCampaign, Display], PreparedCampaign]] = [
        _read_data,
        _place_in_mlflow,
        partial(_observe_machine, load.take_snapshot()),
        preflight.check_folders,
        preflight.check_devices,
        _warn_of_few_threads,
        *([preflight.choose_length] if is_new else []),
        _read_data_of_treatments,
        preflight.fit_windows,
        preflight.prove,
        _judge_by_machine,
        _keep_own_models,
    ]
    for step in steps:
        prepared = step(prepared, display)
    return prepared


def _read_data(prepared: PreparedCampaign, display: Display) -> PreparedCampaign:
    return replace(prepared, data=prepare_data(prepared.study, prepared.settings, display))


def _place_in_mlflow(prepared: PreparedCampaign, _: Display) -> PreparedCampaign:
    """Return the campaign with its team, experiment and registered model on the server."""
    store, settings = Store(), prepared.settings
    store.check()
    account = accounts.current(store)
    team = accounts.team_of(account, settings.team)
    settings = replace(settings, team=team)
    if isinstance(settings, ModelSettings) and settings.register:
        name = accounts.registered_model(account, team, settings.register)
        settings = replace(settings, register=name)
    experiment = accounts.experiment_path(account, team, prepared.study)
    launches = accounts.launches(account, team)
    placed = replace(prepared, settings=settings, experiment=experiment, launches=launches)
    return placed.with_data(tags=accounts.tags(account))


def _observe_machine(
    began: load.CpuSnapshot,
    prepared: PreparedCampaign,
    _: Display,
) -> PreparedCampaign:
    settings = prepared.settings
    if settings.on_cluster:  # jobs check their nodes themselves
        return prepared
    device, workers = devices.resolve_all(settings)[0], settings.workers_of_a_cell
    machine = machine_state.observe(began, device, workers)
    return replace(prepared, machine=machine).with_data(machine.troubles)


def _warn_of_few_threads(prepared: PreparedCampaign, _: Display) -> PreparedCampaign:
    """Return the campaign with a warning if a GPU would wait for few threads of the host."""
    settings = prepared.settings
    usable = min(cpus().usable, len(devices.cpus_of_cells(settings)))
    is_on_cpu = CPU in devices.resolve_all(settings)
    if is_on_cpu or settings.on_cluster or not 0 < settings.threads < usable:
        return prepared
    text = f"threads={settings.threads} of {usable} CPUs: the GPU may wait for the host"
    return prepared.with_data([f"{text}; threads=0 takes all"])


def make_environments(settings: CampaignSettings, progress: Progress) -> None:
    """Make the environments of `levels`, and check that their cells see these versions.

    Raises:
        UsageError: If one cannot be made, or if other packages come before its own.
    """
    cache = Path(settings.cache)
    for version in settings.levels:
        for framework in settings.frameworks:
            environment = virtual_environments.of_level(settings, framework, version)
            place = environments.make_virtual(
                environment, cache, lambda text: progress(text, 0, None)
            )
            python = virtual_environments.python_of(place)
            installed = interpreters.installed(framework, python)
            for name, pin in variation.check_pins(version).items():
                if not virtual_environments.is_version(installed.get(name, ""), pin):
                    raise UsageError(
                        ErrorCode.CONFLICT,
                        f"levels: cells of {framework} would see {installed.get(name, 'no')} "
                        f"{name} instead of {pin}; remove it from PYTHONPATH",
                    )


def prepare_data(study: str, settings: CampaignSettings, display: Display) -> Prepared:
    """Return the data of these settings, made in folders that can be written. Raises UsageError."""
    check_settings(study, settings)
    for folder in (settings.journal, settings.cache):
        require_writable(Path(folder), "journal=DIR, cache=DIR")
    return read_data(study, settings, display)


def read_data(study: str, settings: CampaignSettings, display: Display) -> Prepared:
    """Return the data, read or made in the cache, and checked.

    Raises:
        UsageError: For what is wrong, and if no treatment can run.
    """
    module = studies.load(study)
    workload = workloads.load(module.workload)
    data = workload.prepare(settings, display.step)
    compared = treatments.list_treatments(module, settings)
    reasons = {each.name: workload.not_available(each.merged(settings)) for each in compared}
    if all(reasons.values()):
        name, reason = next(iter(reasons.items()))
        raise UsageError(ErrorCode.UNSUPPORTED, f"no cell can run, the first {name}: {reason}")
    return replace(
        data,
        warnings=(*data.warnings, *module.warnings(settings)),
        not_available={name: reason for name, reason in reasons.items() if reason},
    )


def check_settings(study: str, settings: CampaignSettings) -> None:
    """Raise UsageError for all that can be wrong with the settings only; write nothing."""
    if settings.preset == SMOKE and (settings.blocks > MAX_SMOKE_BLOCKS or settings.until_settled):
        raise UsageError(
            ErrorCode.CONFLICT,
            f"preset=smoke gives no verdict; choose at most {MAX_SMOKE_BLOCKS} blocks, "
            "or another preset",
        )
    takes_runtimes = studies.load(study).takes_runtimes
    for name in settings.frameworks:
        frameworks.check(name)
        if frameworks.described(name).exported_from and not takes_runtimes:
            text = (
                f"frameworks={name}: a runtime does not train; grid and transformers compare its "
                "inference"
            )
            raise UsageError(ErrorCode.UNSUPPORTED, text)
        for pythons in virtual_environments.interpreters_by_version(settings).values():
            is_unmade = settings.levels and not Path(interpreters.separate(name, pythons)).exists()
            if not is_unmade and (missing := interpreters.missing(name, pythons)):
                raise UsageError(ErrorCode.NOT_INSTALLED, missing)
    if len(settings.name) > MAX_NAME_CHARACTERS:
        raise UsageError(
            ErrorCode.TOO_LARGE,
            f"name has {len(settings.name):,} characters; at most {MAX_NAME_CHARACTERS}",
        )
    if isinstance(settings, ModelSettings) and settings.register:
        _check_registration(settings, studies.load(study).strata(settings))
    scheduler.check_stopping(settings)
    for level in variation.each(settings):
        memory.size(level.memory_limit)
        if 0 < level.sensor_seconds < devices.SHORTEST_SENSOR_SECONDS:
            raise UsageError(
                ErrorCode.INVALID_VALUE,
                f"sensor_seconds={level.sensor_seconds:g} is too small; "
                f"at least {devices.SHORTEST_SENSOR_SECONDS}",
            )
        # raises for a missing GPU, too
        devices.check_variables(devices.resolve_all(level), os.environ)
    selection.check(settings)
    module = studies.load(study)
    conditions.check(
        conditions.parse(settings.fail_if),
        studies.outcomes(module, settings),
        studies.primary(module, settings),  # raises for what it does not judge
        REPORTED if module.reported else "",
    )


def _check_registration(settings: ModelSettings, strata: Collection[str]) -> None:
    if not limits.is_registered_model(settings.register):
        raise UsageError(
            ErrorCode.INVALID_VALUE,
            f"register={plain.short(settings.register)} is no name of a registered model; use "
            "letters, digits, _ + = - and, each between two of them, single dots and spaces",
        )
    if settings.save_model == "none":
        raise UsageError(
            ErrorCode.CONFLICT,
            f"register={settings.register} needs logged models; add save_model=first",
        )
    if strata:
        raise UsageError(
            ErrorCode.CONFLICT,
            f"register={settings.register} needs one verdict for each framework; choose one "
            f"{', '.join(strata)}",
        )


def _read_data_of_treatments(prepared: PreparedCampaign, display: Display) -> PreparedCampaign:
    """Return the campaign with the data of each treatment, if their settings may change it."""
    if not prepared.plan.own_inputs:
        return prepared
    settings_of = {
        treatment.name: treatment.merged(prepared.settings)
        for treatment in prepared.plan.treatments
    }
    data_of = {
        settings: prepare_data(prepared.study, settings, display)
        for settings in dict.fromkeys(settings_of.values())
    }
    jobs = [
        job
        for data in data_of.values()
        for job in data.before
        if job.framework == prepared.settings.frameworks[0]
    ]
    before = {repr(job): job for job in (*prepared.data.before, *jobs)}
    of_treatment = {name: data_of[settings] for name, settings in settings_of.items()}
    data = replace(prepared.data, before=tuple(before.values()), of_treatment=of_treatment)
    warnings = [line for data in data_of.values() for line in data.warnings]
    return replace(prepared, data=data).with_data(warnings=warnings)


def _judge_by_machine(prepared: PreparedCampaign, _: Display) -> PreparedCampaign:
    """Return the campaign, with blocks of several nodes judged by node, then as a random effect."""
    settings, plan = prepared.settings, prepared.plan
    has_several = settings.on_cluster and settings.nodes > settings.nodes_of_a_job
    if has_several and "machine" not in plan.strata:
        prepared = replace(prepared, plan=replace(plan, strata=(*plan.strata, "machine")))
    return prepared.with_data(filter(None, [plan.rates_only]))


def _keep_own_models(prepared: PreparedCampaign, _: Display) -> PreparedCampaign:
    """Return the campaign with the sources of the user's models that it measures."""
    measured = treatments.models_of(prepared.module, prepared.settings)
    sources = {
        f"{name}.{path.name}": path.read_text(encoding="utf-8")
        for name in own_models.folders().keys() & set(measured)
        for path in own_models.sources(name)
    }
    return prepared.with_data(files=sources)

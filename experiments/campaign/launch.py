"""How a campaign begins, new or resumed: whatever can be wrong is found before any minute of compute."""

from __future__ import annotations

import dataclasses
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import studies, workloads
from experiments.campaign import equality, executors, extending, looking, readiness, repeats
from experiments.campaign.campaign import Campaign, looks_tag
from experiments.campaign.opening import chosen_experiment, describe, link_launch, open_run
from experiments.campaign.preflight import Opened, on_a_common_device
from experiments.campaign.readiness import MachineState
from experiments.campaign.runner import Runner, Setup, now_ms, origin_tags, told_apart
from experiments.config import devices, interpreters, memory, variation
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import STOP
from experiments.contract import Prepared, Study, Treatment
from experiments.planning import plan as plan_
from experiments.planning import treatments
from experiments.planning.plan import Plan
from models import frameworks, parity
from models import own as own_models
from models.contract import OptimizerConfig
from models.parity import Row, Side
from tracking import accounts, clock, journal, provenance, whereabouts
from tracking.errors import WrongCall
from tracking.journal import Journal, JournalError
from tracking.records import VANISHED, RunClosed, RunKind, RunOpened, RunOutcome
from tracking.store import Store


@dataclasses.dataclass(frozen=True)
class Ready:
    """Everything that can be wrong was looked at: what cells need is there, and who runs them where."""

    setup: Setup
    store: Store
    idle: MachineState
    plan: Plan
    experiment: str
    launches: str


def start(study: str, settings: CampaignSettings, display: Display, plan: Plan | None = None, within: str = "") -> Campaign:
    """Checks everything, then opens the campaign's run. Raises WrongCall.

    plan: what is compared where that is not the study's own design. within: id of the run whose work the campaign is part of.
    """
    if alone := (plan or plan_.of_study(studies.load(study), settings)).nothing_to_compare:
        display.say(f"! {alone}", style="bold yellow")
    ready = make_ready(study, settings, display, plan)
    kept = {"plan": plan_.to_values(plan)} if plan else {}
    tags = {**ready.plan.tags, "kind": RunKind.CAMPAIGN, **repeats.rule_tags(settings)}
    title = f"{study} {settings.preset}" + (f" · {ready.plan.title}" if plan else "")
    opening = Opening(" · ".join([title, *_told_apart(study, settings)]), tags, within)
    records = open_parent(ready, opening, kept)
    campaign = Campaign(ready.setup, ready.plan, records, display)
    keep_what_was_found(campaign.runner, ready)
    return campaign


def _told_apart(study: str, settings: CampaignSettings) -> list[str]:
    """What a campaign's name has beside its preset: the first settings that are not the preset's, and when it began."""
    left_out = settings_.immaterial(settings) - {"frameworks", "blocks", "vary"}
    return [*filter(None, [told_apart(study, settings, left_out)]), time.strftime("%Y-%m-%d %H:%M")]


def resume(study: str, wanted: str, given: Mapping[str, str], root: Path, display: Display) -> Campaign:
    """A campaign with the settings it began with. Raises WrongCall if it is not to be found or other settings are given."""
    folder = find(study, wanted, root)
    kept = journal.read_campaign(folder)
    records = Journal(folder)  # its lock before minutes of preparation: another process may be at work
    try:
        return _resumed(study, kept, given, records, display)
    except BaseException:
        records.close()
        raise


def _resumed(study: str, kept: Mapping[str, Any], given: Mapping[str, str], records: Journal, display: Display) -> Campaign:
    folder, before = records.folder, kept["settings"]
    _add_own_models(kept.get("own_models", {}))
    settings = extending.allowed(same_settings(study, before, given), before, folder, kept["run"])
    ready = make_ready(study, settings, display, plan_.from_values(kept["plan"]) if "plan" in kept else None)
    executors.gather(records, kept["run_id"])
    reopen_parent(ready.store, kept, records)
    now = {name: getattr(settings, name) for name in _open_ended(settings)}
    if {**before, **now} != before:
        lengthened = not settings.until_settled and settings.blocks != before["blocks"]
        if lengthened and (looks := extending.seen(folder, kept["run"], before["blocks"])):
            records.append(looks_tag(kept["run"], looks))
        journal.write_campaign(folder, {**kept, "settings": {**before, **now}})
    return Campaign(ready.setup, ready.plan, records, display)


def _add_own_models(kept: Mapping[str, Sequence[str]]) -> None:
    """The models of the user's own that the campaign began with. Raises WrongCall where one has changed since, ModelError."""
    for folder, before in kept.values():
        if own_models.digest(own_models.add(Path(folder))) != before:
            raise WrongCall(f"resume: the model in {folder} has changed since the campaign began; start anew")


def same_settings(study: str, kept: Mapping[str, Any], given: Mapping[str, str]) -> CampaignSettings:
    """Settings as they were, but for where their folders are now.

    Raises:
        WrongCall: for others than those kept, and for a newer setting whose value they may not have had.
    """
    module = studies.load(study)
    settings = settings_.from_values(module.settings, kept)
    wanted_now = settings_.parse(module.settings, module.presets, given)
    for name in set(given) - settings_.silent(settings) - _open_ended(settings):
        before, now = getattr(settings, name), getattr(wanted_now, name)
        if before != now:
            was = settings_.to_text(before)
            raise WrongCall(f"resume: {name} was {was} at the beginning and cannot become {given[name]}; start anew")
    changed = set(given) & {"cache", "journal", *_open_ended(settings)}
    if given.get("executor") == "local":  # what a cluster was asked for goes with it
        changed |= settings_.of_group(settings, "cluster")
    return dataclasses.replace(settings, **{name: getattr(wanted_now, name) for name in changed})


def _open_ended(settings: CampaignSettings) -> set[str]:
    """The settings that a resumption may change: how long it goes on, and where."""
    length = {"max_blocks", "budget"} if settings.until_settled else {"blocks"}
    return length | settings_.of_group(settings, "cluster")


def make_ready(study: str, settings: CampaignSettings, display: Display, plan: Plan | None = None) -> Ready:
    """All that can be wrong before any minute of compute; the machine is looked at while nothing of ours computes."""
    look = None  # jobs look at their nodes themselves
    if not settings.on_cluster:
        look = readiness.MachineProbe(devices.of(settings)[0], settings.workers_of_a_cell)
    prepared = prepare(study, settings, display)
    store = Store()
    store.check()
    account = accounts.current(store)
    settings = dataclasses.replace(settings, team=accounts.team_of(account, settings.team))
    idle = look.idle() if look else MachineState()
    if settings.require_idle_machine and idle.troubles:
        raise WrongCall(f"require_idle_machine=true: {idle.troubles[0]}; try again when it is free, or with false")
    settings, wanted, given_up, opened = on_a_common_device(study, settings, prepared, display, plan)
    prepared = _with_checks(study, prepared, opened)
    wanted = _by_machine(wanted, settings)
    if wanted.own_inputs:
        prepared = _with_own_inputs(study, settings, prepared, wanted, display)
    prepared = proven(study, settings, prepared, wanted.treatments, display)
    prepared = _with_own_sources(study, settings, prepared)
    warnings = (*prepared.warnings, *idle.troubles, *filter(None, [given_up, wanted.rates_only]))
    prepared = dataclasses.replace(prepared, warnings=warnings, tags={**prepared.tags, **accounts.tags(account)})
    places = (accounts.place(account, settings.team, study), accounts.launches(account, settings.team))
    return Ready(Setup(study, settings, prepared), store, idle, wanted, *places)


def _with_checks(study: str, prepared: Prepared, opened: Sequence[Opened]) -> Prepared:
    """With what the frameworks' checks found, where their workload keeps something of it."""
    after_checks = workloads.load(studies.load(study).workload).after_checks
    return after_checks(prepared, [one.found for one in opened]) if after_checks else prepared


def _by_machine(plan: Plan, settings: CampaignSettings) -> Plan:
    """Blocks that ran on several nodes are judged node by node, and then together as a random effect."""
    apart = settings.on_cluster and settings.nodes > settings.nodes_of_a_job and "machine" not in plan.strata
    return dataclasses.replace(plan, strata=(*plan.strata, "machine")) if apart else plan


def _with_own_sources(study: str, settings: CampaignSettings, prepared: Prepared) -> Prepared:
    """The sources of the user's own models among the campaign's files: no commit has them."""
    measured = set(treatments.models_of(studies.load(study), settings)) & own_models.folders().keys()
    texts = {f"{name}.{path.name}": path.read_text(encoding="utf-8") for name in measured for path in own_models.sources(name)}
    return dataclasses.replace(prepared, files={**prepared.files, **texts})


def _with_own_inputs(study: str, settings: CampaignSettings, prepared: Prepared, plan: Plan, display: Display) -> Prepared:
    """Add the data of treatments with settings of their own, and what has to be made for them first."""
    before, of_settings = {repr(job): job for job in prepared.before}, dict[CampaignSettings, Prepared]()
    warnings = dict.fromkeys(prepared.warnings)
    for own in dict.fromkeys(one.merged(settings) for one in plan.treatments):
        found = of_settings[own] = prepare(study, own, display)
        before |= {repr(job): job for job in found.before if job.framework == settings.frameworks[0]}
        warnings |= dict.fromkeys(found.warnings)
    return dataclasses.replace(
        prepared,
        before=tuple(before.values()),
        warnings=tuple(warnings),
        of_treatment={one.name: of_settings[one.merged(settings)] for one in plan.treatments},
    )


def find(study: str, wanted: str, root: Path) -> Path:
    """The journal folder of a campaign: by its run id, or the last one of this study."""
    mine = [folder for folder, kept in journal.descriptions(root, wanted) if kept["study"] == study]
    if not mine:
        raise WrongCall(f"resume: no campaign of {study} has its journal in {root}; give journal=DIR of the machine that ran it")
    if wanted == "last":
        return mine[-1]
    for folder in mine:
        if folder.name == wanted:
            return folder
    raise WrongCall(f"resume: no campaign {wanted} in {root}; have {', '.join(folder.name for folder in mine[-5:])}")


def check(study: str, settings: CampaignSettings) -> None:
    """All that can be wrong with the settings alone. Raises WrongCall; writes nothing."""
    module = studies.load(study)
    for name in settings.frameworks:
        frameworks.check(name)
        if missing := interpreters.missing(name, settings.pythons):
            raise WrongCall(missing)
    looking.check(settings)
    for own in variation.each(settings):
        memory.size(own.memory_limit)
        if 0 < own.sensor_seconds < devices.SHORTEST_SENSOR_SECONDS:
            raise WrongCall(f"sensor_seconds={own.sensor_seconds:g} is too small; at least {devices.SHORTEST_SENSOR_SECONDS}")
        devices.check_variables(devices.of(own), os.environ)  # raises for a GPU that is not there, too
        if not own.on_cluster:
            devices.placement(own)  # raises where no CPU is left to the cells
    executors.check(settings)
    studies.primary(module, settings)  # raises for what it does not judge


def prepare(study: str, settings: CampaignSettings, display: Display) -> Prepared:
    check(study, settings)
    for folder in (settings.journal, settings.cache):
        settings_.require_writable(Path(folder), "journal=DIR, cache=DIR")
    return prepared_data(study, settings, display)


def prepared_data(study: str, settings: CampaignSettings, display: Display) -> Prepared:
    """The data, read or made in the cache, and checked against the settings. Raises WrongCall."""
    module = studies.load(study)
    prepared = workloads.load(module.workload).prepare(settings, display.step)
    treatments.of(module, settings)  # raises for what it does not know
    return dataclasses.replace(prepared, warnings=(*prepared.warnings, *module.warnings(settings)))


def proven(
    study: str, settings: CampaignSettings, prepared: Prepared, compared: Sequence[Treatment], display: Display
) -> Prepared:
    """What is compared has passed the parity gate, or the report will say that it has not. Raises WrongCall."""
    module = studies.load(study)
    rules, found, refused = _rules(settings, compared), list[Row](), dict[str, str]()
    for name in models_to_prove(study, settings):
        sides = _sides(module, settings, compared, name)
        display.begin(f"parity of {name}")
        rows = list[Row]()
        for device in proof_devices(settings):
            asked = parity.ParityRequest(name, rules, device=device)
            rows += equality.rows(asked, list(dict.fromkeys(sides.values())), Path(settings.cache), display.step)
        of_side = {side: equality.difference([row for row in rows if row.framework == str(side)]) for side in sides.values()}
        refused |= {treatment: of_side[side] for treatment, side in sides.items() if of_side[side]}
        found += rows
    if not found:
        return prepared
    different = equality.differences(found)
    if module.side and not settings.allow_unequal:
        warnings, unequal = [f"not equal, and so not measured: {line}" for line in different], False
    else:
        warnings, unequal, refused = [f"UNEQUAL: {line}" for line in different], bool(different), {}
    if unequal and not settings.allow_unequal:
        raise WrongCall(f"{different[0]}; allow_unequal=true measures them all the same and marks the report")
    return dataclasses.replace(
        prepared,
        warnings=(*prepared.warnings, *warnings, *_elsewhere(settings)),
        tags={
            **prepared.tags,
            "parity": "unequal" if unequal else "equal",
            "parity.device": ",".join(proof_devices(settings)),
        },
        files={**prepared.files, "parity.json": equality.as_json(found)},
        refused=refused,
    )


def proof_devices(settings: CampaignSettings) -> tuple[str, ...]:
    """Return the devices on which the gate computes: those of the cells.

    A cluster's cells may have GPUs that the machine of the launch lacks; then it is this machine's CPU.
    """
    wanted = devices.of(settings)
    if settings.on_cluster and "cuda" in wanted and not provenance.gpus():
        return ("cpu",)
    return wanted


def _elsewhere(settings: CampaignSettings) -> tuple[str, ...]:
    """Return a warning where cells compute on a device on which the gate could not."""
    missing = sorted(set(devices.of(settings)) - set(proof_devices(settings)))
    return tuple(f"equality was proven on the CPU: this machine has no device {name}" for name in missing)


def models_to_prove(study: str, settings: CampaignSettings) -> tuple[str, ...]:
    """The models that go through the parity gate: none where nothing that computes by code of its own is compared."""
    module = studies.load(study)
    apart = module.strata(settings)
    alone = len(settings.frameworks) < 2 or "framework" in apart
    return () if alone and not module.side else treatments.models_of(module, settings)


def _sides(module: Study, settings: CampaignSettings, compared: Sequence[Treatment], model: str) -> dict[str, Side]:
    """Who has to compute a model alike: the treatments of a study that says what is a side's own, or the frameworks."""
    if module.side and (own := [one for one in compared if one.settings.get("model") == model]):
        return {one.name: _side(module.side(one), settings) for one in own}
    return {name: _side(Side(name), settings) for name in settings.frameworks}


def _side(side: Side, settings: CampaignSettings) -> Side:
    """Return the side with the interpreter that computes it."""
    return dataclasses.replace(side, python=interpreters.separate(side.framework, settings.pythons))


def _rules(settings: CampaignSettings, compared: Sequence[Treatment]) -> tuple[OptimizerConfig, ...]:
    """How the networks are trained, each way once; where a study leaves no choice, by Adam."""
    told = [vars(one.merged(settings)) for one in compared]
    found = (parity.rule(one.get("optimizer", "adam"), one.get("momentum", 0.0), one.get("weight_decay", 0.0)) for one in told)
    return tuple(dict.fromkeys(found))


@dataclasses.dataclass(frozen=True)
class Opening:
    """The run that cells will belong to. within: the run whose part it is, empty for a launch. params: beside the settings."""

    name: str
    tags: Mapping[str, str]
    within: str = ""
    params: Mapping[str, str] = dataclasses.field(default_factory=dict)


def open_parent(ready: Ready, opening: Opening, kept: Mapping[str, Any]) -> Journal:
    """Opens the run and its journal. kept: what a resumption needs beside the settings. Raises WrongCall.

    From here on signals are held: the runner, whose run it becomes, ends it in order.
    """
    STOP.hold()
    run, study, settings = uuid.uuid4().hex, ready.setup.study, ready.setup.settings
    opened, run_id = _open_run(ready, opening, run)
    if not opening.within:
        link_launch(ready.store, opened.experiment, run_id)
    description = {
        "study": study,
        "run": run,
        "run_id": run_id,
        "experiment": opened.experiment,
        "settings": dataclasses.asdict(settings),
        "idle": dataclasses.asdict(ready.idle),
        "own_models": {name: [str(folder), own_models.digest(name)] for name, folder in own_models.folders().items()},
        **kept,
    }
    try:
        records = Journal(Path(settings.journal).resolve() / run_id)
        journal.write_campaign(records.folder, description)
        records.append(opened)
        for name, text in ready.setup.prepared.files.items():
            (records.folder / name).write_text(text, encoding="utf-8")
    except (OSError, JournalError) as error:
        reason = f"no journal can be kept in {settings.journal}: {error}"
        ready.store.apply([RunClosed(run, now_ms(), RunOutcome.FAILED, reason)], Path())
        STOP.release()
        raise WrongCall(f"{reason}; choose another folder for it (journal=DIR)") from None
    return records


def keep_what_was_found(runner: Runner, ready: Ready) -> None:
    """The files and figures from before the first cell, as the run's own."""
    for name in ready.setup.prepared.files:
        runner.keep_file(runner.folder / name)
    runner.keep_metrics(ready.idle.metrics)


def reopen_parent(store: Store, kept: Mapping[str, Any], records: Journal) -> None:
    """Sets the run back to running, with signals held from here on; what its last process left open ends."""
    STOP.hold()
    store.adopt(kept["run_id"], kept["run"])
    store.tag(kept["run_id"], whereabouts.here())  # first, lest a campaign that begins now takes it for a dead one's
    store.reopen(kept["run_id"])
    link_launch(store, kept["experiment"], kept["run_id"])
    _close_unfinished(records, store)


def _open_run(ready: Ready, opening: Opening, run: str) -> tuple[RunOpened, str]:
    store, setup = ready.store, ready.setup
    experiment = chosen_experiment(store, ready.experiment)
    store.experiment_id(experiment)
    describe(store, experiment, setup.module)
    for place in {experiment, ready.launches}:
        store.close_stale(place)
    tags = {
        "dataset": setup.prepared.dataset.name,
        "model": ",".join(map(own_models.labelled, treatments.models_of(setup.module, setup.settings))),
        **origin_tags(setup.study, setup.settings),
        **setup.prepared.tags,
        **ready.idle.tags,
        **{f"not_available.machine_{name}": why for name, why in ready.idle.untold.items()},
        **whereabouts.here(),
        **opening.tags,
    }
    silent = settings_.silent(setup.settings)
    params = {name: text for name, text in settings_.as_text(setup.settings).items() if name not in silent and text}
    params |= opening.params
    wanted = RunOpened(run, now_ms(), experiment, opening.name, tags, params)
    return open_run(store, wanted, adopt=not opening.within)


def _close_unfinished(records: Journal, store: Store) -> None:
    """Runs that are open in the journal end as the server knows, which a full disk does not stop; else by their kind."""
    open_runs: dict[str, RunOutcome] = {}
    for record in journal.read_all(records.folder):
        if isinstance(record, RunOpened | RunClosed):
            clock.CLOCK.not_before(record.time_ms / 1_000)
        kind = record.tags.get("kind", RunKind.CELL) if isinstance(record, RunOpened) else ""
        if isinstance(record, RunOpened) and kind not in (RunKind.CAMPAIGN, RunKind.SWEEP):
            open_runs[record.run] = RunOutcome.FAILED if kind == RunKind.TRIAL else RunOutcome.INTERRUPTED
        elif isinstance(record, RunClosed):
            open_runs.pop(record.run, None)
    for run, otherwise in open_runs.items():
        run_id = store.run_id(run)
        known = store.run(run_id) if run_id else None
        if known and known.end_ms:
            outcome, reason = known.tags.get("outcome", RunOutcome.FAILED), known.tags.get("outcome_reason", "")
            records.append(RunClosed(run, known.end_ms, outcome, reason))
        else:
            records.append(RunClosed(run, now_ms(), otherwise, VANISHED))

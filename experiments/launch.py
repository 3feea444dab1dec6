"""How a campaign begins, new or resumed: whatever can be wrong is found before any minute of compute."""

from __future__ import annotations

import dataclasses
import importlib
import os
import platform
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from experiments import equality, memory, readiness, treatments
from experiments import settings as settings_
from experiments.campaign import SILENT, Campaign, devices, now_ms, origin_tags
from experiments.console import Display
from experiments.opening import LAUNCHES, chosen_experiment, link_launch, open_run
from experiments.process import Child
from experiments.readiness import Idle
from experiments.settings import CampaignSettings
from experiments.workloads.contract import CellSpec, Prepared
from models import frameworks
from models.parity import Asked
from tracking import journal
from tracking.errors import WrongCall
from tracking.journal import Journal, JournalError
from tracking.records import VANISHED, Kind, Outcome, RunClosed, RunOpened
from tracking.store import Store


def start(study: str, settings: CampaignSettings, display: Display) -> Campaign:
    """Checks everything, then opens the campaign's run. Raises WrongCall."""
    prepared, store, idle = _ready(study, settings, display)
    run = uuid.uuid4().hex
    opened, run_id = _open_run(store, study, settings, prepared, run)
    link_launch(store, opened.experiment, run_id)
    kept = {
        "study": study,
        "run": run,
        "run_id": run_id,
        "experiment": opened.experiment,
        "settings": dataclasses.asdict(settings),
        "idle": dataclasses.asdict(idle),
    }
    try:
        records = Journal(Path(settings.journal).resolve() / run_id)
        journal.write_campaign(records.folder, kept)
        records.append(opened)
        for name, text in prepared.files.items():
            (records.folder / name).write_text(text, encoding="utf-8")
    except (OSError, JournalError) as error:
        reason = f"no journal can be kept in {settings.journal}: {error}"
        store.apply([RunClosed(run, now_ms(), Outcome.FAILED, reason)], Path())
        raise WrongCall(f"{reason}; choose another folder for it (journal=DIR)") from None
    campaign = Campaign(study, settings, prepared, records, display)
    for name in prepared.files:
        campaign.keep_file(records.folder / name)
    campaign.keep_metrics(idle.metrics)
    return campaign


def resume(study: str, wanted: str, given: Mapping[str, str], root: Path, display: Display) -> Campaign:
    """A campaign with the settings it began with. Raises WrongCall if it is not to be found or other settings are given."""
    folder = find(study, wanted, root)
    kept = journal.read_campaign(folder)
    module = importlib.import_module(f"experiments.studies.{study}")
    settings: CampaignSettings = settings_.from_values(module.Settings, kept["settings"])
    wanted_now = settings_.parse(module.Settings, module.PRESETS, given)
    for name in set(given) - SILENT:
        before, now = getattr(settings, name), getattr(wanted_now, name)
        if before != now:
            was = settings_.to_text(before)
            raise WrongCall(f"resume: {name} was {was} when the campaign began and cannot become {given[name]}; start a new one")
    settings = dataclasses.replace(settings, **{name: getattr(wanted_now, name) for name in set(given) & {"cache", "journal"}})
    prepared, store, _ = _ready(study, settings, display)
    records = Journal(folder)
    store.adopt(kept["run_id"], kept["run"])
    store.reopen(kept["run_id"])
    store.tag(kept["run_id"], _whereabouts())
    link_launch(store, kept["experiment"], kept["run_id"])
    _close_unfinished(records, store)
    return Campaign(study, settings, prepared, records, display)


def _ready(study: str, settings: CampaignSettings, display: Display) -> tuple[Prepared, Store, Idle]:
    """All that can be wrong before any minute of compute; the machine is looked at while nothing of ours computes."""
    look = readiness.Look(devices(settings)[0])
    prepared = prepare(study, settings, display)
    store = Store()
    store.check()
    idle = look.idle()
    if settings.strict and idle.troubles:
        raise WrongCall(f"strict=true: {idle.troubles[0]}; try again when it is free, or with strict=false")
    preflight(study, settings, prepared, display)
    prepared = proven(study, settings, prepared, display)
    return dataclasses.replace(prepared, warnings=(*prepared.warnings, *idle.troubles)), store, idle


def find(study: str, wanted: str, root: Path) -> Path:
    """The journal folder of a campaign: by its run id, or the last one of this study."""
    mine = [folder for folder in journal.campaigns(root) if journal.read_campaign(folder)["study"] == study]
    if not mine:
        raise WrongCall(f"resume: no campaign of {study} has its journal in {root}; give journal=DIR of the machine that ran it")
    if wanted == "last":
        return mine[-1]
    for folder in mine:
        if folder.name == wanted:
            return folder
    raise WrongCall(f"resume: no campaign {wanted} in {root}; have {', '.join(folder.name for folder in mine[-5:])}")


def prepare(study: str, settings: CampaignSettings, display: Display) -> Prepared:
    module = importlib.import_module(f"experiments.studies.{study}")
    for name in settings.frameworks:
        frameworks.check(name)
        if missing := frameworks.missing(name):
            raise WrongCall(missing)
    memory.size(settings.memory_limit)
    for folder in (settings.journal, settings.cache):
        _check_writable(Path(folder))
    workload = importlib.import_module(f"experiments.workloads.{module.WORKLOAD}.prepare")
    prepared: Prepared = workload.prepare(settings, display.step)
    treatments.of(module, settings)  # raises for what it does not know
    warnings = getattr(module, "warnings", None)
    return dataclasses.replace(prepared, warnings=(*prepared.warnings, *warnings(settings))) if warnings else prepared


def preflight(study: str, settings: CampaignSettings, prepared: Prepared, display: Display) -> None:
    """Each framework opens on the device, in a process of its own; two at a time, since nothing is measured yet."""

    module = importlib.import_module(f"experiments.studies.{study}")
    values = {k: v for k, v in dataclasses.asdict(settings).items() if k not in SILENT}
    with tempfile.TemporaryDirectory() as folder:
        waiting = [
            CellSpec(
                *(name, module.WORKLOAD, "check", name, device, 1, 0, values, dict(prepared.inputs)),
                *(folder, f"{name}-{device}", f"{folder}/none"),
            )
            for device in devices(settings)
            for name in settings.frameworks
        ]
        display.begin("check")
        for number in range(0, len(waiting), 2):
            pair = waiting[number : number + 2]
            display.step(f"check {', '.join(spec.framework for spec in pair)}", number, len(waiting))
            children = [(spec, Child(spec, spec.path / "output.log")) for spec in pair]
            for spec, child in children:
                closed = _drain(child)
                if closed.outcome != Outcome.OK:
                    for _, other in children:
                        other.stop()
                    raise WrongCall(f"{spec.framework}: {closed.reason}")


def proven(study: str, settings: CampaignSettings, prepared: Prepared, display: Display) -> Prepared:
    """What is compared has passed the parity gate, or the report will say that it has not. Raises WrongCall."""
    if len(settings.frameworks) < 2:
        return prepared
    module = importlib.import_module(f"experiments.studies.{study}")
    optimizer, names = getattr(settings, "optimizer", "adam"), treatments.models_of(module, settings)
    found = []
    for name in names:
        display.begin(f"parity of {name}")
        found += equality.rows(Asked(name, optimizer), settings.frameworks, Path(settings.cache), display.step)
    different = equality.differences(found)
    if different and not settings.allow_unequal:
        raise WrongCall(f"{different[0]}; allow_unequal=true measures them all the same and marks the report")
    return dataclasses.replace(
        prepared,
        warnings=(*prepared.warnings, *(f"UNEQUAL: {line}" for line in different)),
        tags={**prepared.tags, "parity": "unequal" if different else "equal"},
        files={**prepared.files, "parity.json": equality.as_json(found)},
    )


def _drain(child: Child) -> RunClosed:
    closed = None
    while child.open:
        for message in child.listen(1.0):
            closed = message if isinstance(message, RunClosed) else closed
    ended = child.ended()
    return closed or ended


def _open_run(store: Store, study: str, settings: CampaignSettings, prepared: Prepared, run: str) -> tuple[RunOpened, str]:
    module = importlib.import_module(f"experiments.studies.{study}")
    experiment = chosen_experiment(store, study)
    store.experiment_id(experiment)
    store.describe_experiment(
        experiment, f"**{module.TITLE}**\n\nOne campaign per launch, a run a cell; the verdict is in the campaign's report."
    )
    for place in {experiment, LAUNCHES}:
        store.close_stale(place, _is_alive)
    tags = {
        "kind": Kind.CAMPAIGN,
        "dataset": prepared.dataset.name,
        "model": ",".join(treatments.models_of(module, settings)),
        **prepared.tags,
        **origin_tags(study, settings),
        **_whereabouts(),
    }
    params = {name: text for name, text in settings_.as_text(settings).items() if name not in SILENT and text}
    return open_run(store, RunOpened(run, now_ms(), experiment, f"{study} {settings.preset}", tags, params))


def _whereabouts() -> dict[str, str]:
    return {"host": platform.node(), "pid": str(os.getpid()), "heartbeat": str(int(time.time()))}


def _is_alive(host: str, pid: str) -> bool | None:
    if host != platform.node() or not pid.isdigit():
        return None  # not ours to say: the heartbeat decides
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _close_unfinished(records: Journal, store: Store) -> None:
    """Runs that are open in the journal end as the server knows, which a full disk does not stop; else as interrupted."""
    open_runs: dict[str, None] = {}
    for record in journal.read_all(records.folder):
        if isinstance(record, RunOpened) and record.tags["kind"] != Kind.CAMPAIGN:
            open_runs[record.run] = None
        elif isinstance(record, RunClosed):
            open_runs.pop(record.run, None)
    for run in open_runs:
        run_id = store.run_id(run)
        known = store.run(run_id) if run_id else None
        if known and known.end_ms:
            outcome, reason = known.tags.get("outcome", Outcome.FAILED), known.tags.get("outcome_reason", "")
            records.append(RunClosed(run, known.end_ms, outcome, reason))
        else:
            records.append(RunClosed(run, now_ms(), Outcome.INTERRUPTED, VANISHED))


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise WrongCall(
            f"cannot write in {folder.resolve()}: {error.strerror}; choose another folder for it (journal=DIR, cache=DIR)"
        ) from None

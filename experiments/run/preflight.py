"""Checks before the first cell: every framework opens on the device, and the networks are equal."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments import studies, workloads
from experiments.cell import timing
from experiments.config import devices, interpreters, shell, variation
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings, ModelSettings
from experiments.contract import DEVICE, LIMITS, NOT_EXPORTED, AnyCell, Node, Study, Treatment
from experiments.planning import treatments
from experiments.planning.length import LENGTH
from experiments.run import parity_cache
from experiments.run.cell_process import CellProcess
from experiments.run.cell_run import CellTask, cell_spec
from experiments.run.plan import Plan
from experiments.run.prepared import PreparedCampaign
from experiments.workloads import steps
from models import frameworks, parity
from models.contract import OptimizerConfig
from models.devices import AUTO, CPU
from models.parity import ParityRequest, Row, Side
from tracking import provenance
from tracking.errors import ErrorCode, EvenhandError, UsageError
from tracking.records import Record, RunClosed, RunOutcome, Tags

# Settings that decide how a framework opens; every study has them.
OPENING = (
    *("device", "conv_algorithm", "precision", "malloc", "memory_limit", "pythons", "threads"),
)
NO_NVML = (
    "NVML shows no GPU but the frameworks do: cells run on it, without its sensors, "
    "and cannot be given one of several"
)


@dataclass(frozen=True)
class CheckResult:
    """Result of a framework's check.

    Attributes:
        sees_device: False if it failed because its framework does not see the device.
        was_killed: True if a signal ended its process.
        findings: By name.
    """

    framework: str
    closed: RunClosed
    sees_device: bool
    was_killed: bool
    findings: Mapping[str, str]

    @property
    def ok(self) -> bool:
        return self.closed.outcome == RunOutcome.OK


def check_devices(prepared: PreparedCampaign, display: Display) -> PreparedCampaign:
    """Open every framework, and return the campaign on a device that all of them see.

    A GPU that only some of them see would decide the comparison. Where the device is chosen
    automatically, a user at a terminal may choose the CPU for all of them.

    Args:
        prepared: The campaign with its data, which the checks are sent.
        display: Shows the progress.

    Raises:
        UsageError: If a framework does not open, or does not see the GPU that this machine has.
        EvenhandError: If a signal ended the process that opens it.
    """
    warning = ""
    results = _check_where_cells_run(prepared, display)
    failed = [result for result in results if not result.ok]
    blind = [result.framework for result in failed if not result.sees_device]
    all_blind = len(blind) == len(failed)
    seen = {result.findings[DEVICE] for result in results if result.findings.get(DEVICE)}
    requested = {
        treatment.merged(prepared.settings).device for treatment in prepared.plan.treatments
    }
    if seen - {CPU}:
        blind = [result.framework for result in results if result.findings.get(DEVICE) == CPU]
    if not failed and len(seen) == 1 and CPU not in seen:
        prepared, warning = _on_device(prepared, *seen), NO_NVML
    elif blind and all_blind and requested <= {AUTO, CPU}:
        reasons = {result.framework: result.closed.reason for result in failed}
        names = list(dict.fromkeys(blind))
        prepared, warning = _on_cpu(prepared, names, reasons, display)
        results = _check_where_cells_run(prepared, display)
        failed = [result for result in results if not result.ok]
    if failed:
        kind = EvenhandError if failed[0].was_killed else UsageError
        raise kind(ErrorCode.CHILD_FAILED, f"{failed[0].framework}: {failed[0].closed.reason}")
    workload = workloads.load(prepared.module.workload)
    findings = [result.findings for result in results]
    if workload.after_checks:
        prepared = replace(prepared, data=workload.after_checks(prepared.data, findings))
    not_exported = {
        treatment.name: reason
        for finding in findings
        for key, reason in finding.items()
        for treatment in prepared.plan.treatments
        if key.startswith(NOT_EXPORTED)
        and treatment.name.startswith(key.removeprefix(NOT_EXPORTED))
    }
    prepared = replace(prepared, findings=findings).with_data(not_available=not_exported)
    return prepared.with_data(warnings=[warning]) if warning else prepared


def _on_cpu(
    prepared: PreparedCampaign, blind: Sequence[str], reasons: Mapping[str, str], display: Display
) -> tuple[PreparedCampaign, str]:
    """Return the campaign on the CPU with a warning, if a user at a terminal agrees.

    Raises:
        UsageError: If there is no such user, or no consent.
    """
    gpus = ", ".join(provenance.gpus()) or "a GPU"
    text = f"{', '.join(blind)} {'does' if len(blind) == 1 else 'do'} not see {gpus}"
    repair = f"{shell.command('setup')} makes environments in which frameworks see it"
    display.say(f"! {text}; {repair}", style="bold yellow")
    for framework, reason in reasons.items():
        display.say(f"  {framework}: {reason}")
    if prepared.settings.levels or not display.confirms("Compare on the CPU instead? [y/N] "):
        raise UsageError(
            ErrorCode.NO_DEVICE, f"{text}; {repair}, and --device cpu compares on the CPU"
        )
    return _on_device(prepared, CPU), f"{text}, so all run on the CPU"


def choose_length(prepared: PreparedCampaign, _: Display) -> PreparedCampaign:
    """Return the campaign with the length of training that its checks have timed, if it has one."""
    settings, scaling = prepared.settings, prepared.module.scaling
    shortened = workloads.load(prepared.module.workload).shortened
    varied = {name for treatment in prepared.plan.treatments for name in treatment.settings}
    if not scaling or varied & {"batch_size", "inference_requests", *LENGTH}:
        return prepared
    if shortened:
        settings = shortened(settings, prepared.data, prepared.findings)
    is_on_gpu = CPU not in devices.resolve_all(settings)
    if isinstance(settings, ModelSettings) and settings.phase_seconds and is_on_gpu:
        examples = prepared.data.dataset.counts[scaling.examples]
        settings = steps.lengthened(settings, examples, prepared.findings)
    return replace(prepared, settings=settings)


def fit_windows(prepared: PreparedCampaign, _: Display) -> PreparedCampaign:
    """Return the campaign with the steps of a window that the user has left open."""
    settings, workload = prepared.settings, workloads.load(prepared.module.workload)
    count = workload.measured_in_a_row
    if settings.window_steps or not count:
        return prepared
    window = timing.WINDOW_STEPS
    if devices.timing(settings) != "step":
        in_a_row = [
            count(treatment.merged(settings), prepared.data_for(treatment))
            for treatment in prepared.plan.treatments
        ]
        window = min(window, steps.longest_window(settings, min(in_a_row)))
    return replace(prepared, settings=replace(settings, window_steps=window))


def _on_device(prepared: PreparedCampaign, device: str) -> PreparedCampaign:
    """Return the campaign with `device` wherever it was chosen automatically."""
    settings, plan = replace(prepared.settings, device=device), prepared.plan
    if plan == Plan.of_study(prepared.module, prepared.settings):
        plan = Plan.of_study(prepared.module, settings)
    else:
        plan = plan.on_device(device)
    return replace(prepared, settings=settings, plan=plan)


def _check_where_cells_run(prepared: PreparedCampaign, display: Display) -> list[CheckResult]:
    settings = prepared.settings
    if not settings.frameworks:
        return []
    display.begin("check")
    if not settings.on_cluster:
        display.step(f"check {', '.join(settings.frameworks)}", 0, None)
        return check_frameworks(prepared)
    results: list[CheckResult] = _call_on_node(
        settings, partial(check_frameworks, prepared), display
    )
    return results


def _call_on_node(settings: CampaignSettings, task: Callable[[], Any], display: Display) -> Any:
    from experiments.run.backends import cluster

    with tempfile.TemporaryDirectory(prefix="check-", dir=settings.journal) as folder:
        return cluster.call(settings, Path(folder).resolve(), task, display.waiting)


def check_folders(prepared: PreparedCampaign, display: Display) -> PreparedCampaign:
    """Raise UsageError if a node of a cluster lacks a folder that cells need."""
    settings, folders = prepared.settings, prepared.data.folders
    if not (settings.on_cluster and folders):
        return prepared
    display.begin("check")
    missing = _call_on_node(settings, partial(_missing_folders, folders), display)
    if missing:
        raise UsageError(
            ErrorCode.NOT_FOUND,
            f"executor=slurm: a node has no folder {missing[0]}; every node must share it: "
            "set cwd, or cache=DIR for environments and commits",
        )
    return prepared


def _missing_folders(folders: Sequence[str]) -> list[str]:
    return [folder for folder in folders if not Path(folder).is_dir()]


def check_frameworks(
    prepared: PreparedCampaign, enough: Mapping[str, float] | None = None, among: Path | None = None
) -> list[CheckResult]:
    """Check these frameworks, or all of them.

    Args:
        prepared: Campaign whose cells use them.
        enough: Names, and FLOP/s that are enough where they measure the machine; all if empty.
        among: Folder of processes that compute, while which nothing measures the machine.
    """
    nodes: tuple[Node, ...] = ()
    if prepared.settings.on_cluster:
        from experiments.run.backends import cluster

        nodes = cluster.nodes()
    enough = enough or {}
    with tempfile.TemporaryDirectory() as temporary:
        folder, specs = among or Path(temporary), []
        for number, (treatment, settings) in enumerate(_distinct(prepared)):
            if enough and treatment.framework not in enough:
                continue
            name, inputs = treatment.framework, prepared.data.inputs
            task = CellTask(treatment, f"{name}-{number}", name, {}, inputs, run=name)
            spec = cell_spec(prepared, task, folder, nodes)
            device = devices.to_open(settings.device, settings)
            limits = {LIMITS: enough.get(name, 0.0)} if prepared.measures_limits else {}
            inputs = {**spec.inputs, **limits}
            specs.append(replace(spec, stage="check", device=device, inputs=inputs))
        stop = threading.Event()
        with ThreadPoolExecutor(2) as pool:
            try:
                return list(pool.map(partial(_check, stop=stop), specs))
            except BaseException:
                stop.set()
                raise


def _check(spec: AnyCell, stop: threading.Event) -> CheckResult:
    findings: dict[str, str] = {}

    def write(record: Record) -> None:
        if isinstance(record, Tags):
            findings.update(record.values)

    process = CellProcess(spec, write)
    closed = process.run(why_stop=lambda: "interrupted" if stop.is_set() else "")
    return CheckResult(
        spec.framework, closed, process.sees_device, (process.child.poll() or 0) < 0, findings
    )


def _distinct(prepared: PreparedCampaign) -> list[tuple[Treatment, CampaignSettings]]:
    """Return one treatment of a framework for each of the settings that it is opened with."""
    opening: dict[tuple[Any, ...], tuple[Treatment, CampaignSettings]] = {}
    for name in prepared.settings.frameworks:
        compared = [each for each in prepared.plan.treatments if each.framework == name]
        for treatment in compared or [Treatment(name, name)]:
            settings = treatment.merged(prepared.settings)
            values = [getattr(settings, field) for field in OPENING]
            key = (name, *values, *sorted(treatment.environment.items()))
            opening.setdefault(key, (treatment, settings))
    return sorted(opening.values(), key=lambda pair: pair[1].device)


# ---- the parity gate


def prove(prepared: PreparedCampaign, display: Display) -> PreparedCampaign:
    """Compare the networks numerically, and return the campaign with the result.

    Raises:
        UsageError: For what is not the same network.
    """
    module, settings, compared = prepared.module, prepared.settings, prepared.plan.treatments
    optimizers, proof_devices = training_rules(settings, compared), _proof_devices(settings)
    all_rows = list[Row]()
    models_by_sides: dict[tuple[Side, ...], list[str]] = {}
    for model in models_to_prove(prepared.study, settings):
        sides = tuple(_sides(module, settings, compared, model))
        models_by_sides.setdefault(sides, []).append(model)
    for sides, names in models_by_sides.items():
        display.begin(f"parity of {', '.join(names)}")
        for device in proof_devices:
            requests = [ParityRequest(name, optimizers, device=device) for name in names]
            all_rows += parity_cache.rows(requests, sides, Path(settings.cache), display.step)
    if not all_rows and settings.frameworks == network_frameworks(settings):
        return prepared
    different = parity_cache.differences(all_rows)
    warnings = [f"UNEQUAL: {line}" for line in different]
    if different and not settings.allow_unequal:
        raise UsageError(
            ErrorCode.NOT_EQUAL,
            f"{different[0]}; allow_unequal=true measures them all the same and marks the report",
        )
    warnings += [
        f"equality was proven on the CPU: this machine has no device {name}"
        for name in sorted(set(devices.resolve_all(settings)) - set(proof_devices))
    ]
    tags = {
        "parity": "unequal" if different else "equal",
        "parity.device": ",".join(proof_devices),
    }
    files = {"parity.json": parity_cache.as_json(all_rows)} if all_rows else {}
    return prepared.with_data(warnings=warnings, tags=tags, files=files)


def network_frameworks(settings: CampaignSettings) -> tuple[str, ...]:
    """Return the frameworks whose networks are measured.

    A runtime's file is that of the framework that exports it, with which its check compares it.
    """
    sources = [frameworks.described(name).exported_from or name for name in settings.frameworks]
    return tuple(dict.fromkeys(sources))


def _proof_devices(settings: CampaignSettings) -> tuple[str, ...]:
    """Return the devices on which the gate computes: those of the cells.

    If only a cluster's nodes have GPUs, it is this machine's CPU.
    """
    compared = devices.resolve_all(settings)
    is_elsewhere = settings.on_cluster and {*compared} - {CPU} and not provenance.gpus()
    return (CPU,) if is_elsewhere else compared


def models_to_prove(study: str, settings: CampaignSettings) -> tuple[str, ...]:
    """Return the models that go through the gate; none where all cells compute by the same code."""
    module = studies.load(study)
    names = network_frameworks(settings)
    is_single = len(names) < 2 or "framework" in module.strata(settings)
    sides = {
        module.side(name, level) if module.side else None
        for level in variation.each(settings)
        for name in names
    }
    is_same_code = is_single and len(sides) < 2 and not settings.levels
    return () if is_same_code else treatments.models_of(module, settings)


def _sides(
    module: Study, settings: CampaignSettings, compared: Sequence[Treatment], model: str
) -> list[Side]:
    """Return the sides that have to compute a model alike, each with its interpreter.

    These are the frameworks, in each version and with each of the settings that shape the network.
    """
    sides = [(Side(name), settings.pythons) for name in network_frameworks(settings)]
    if settings.levels or module.side:
        sides = []
        for treatment in compared:
            if treatment.control or treatment.settings.get("model", model) != model:
                continue
            of_cell, name = treatment.merged(settings), treatment.framework
            name = frameworks.described(name).exported_from or name
            side = module.side(name, of_cell) if module.side else Side(name)
            sides.append((replace(side, version=treatment.version), of_cell.pythons))
    return list(
        dict.fromkeys(
            replace(side, python=interpreters.separate(side.framework, pythons))
            for side, pythons in sides
        )
    )


def training_rules(
    settings: CampaignSettings, compared: Sequence[Treatment]
) -> tuple[OptimizerConfig, ...]:
    """Return the optimizers that train the networks; Adam where a study has no choice."""
    rules = []
    for treatment in compared:
        values = vars(treatment.merged(settings))
        momentum, decay = values.get("momentum", 0.0), values.get("weight_decay", 0.0)
        rules.append(parity.rule(values.get("optimizer", "adam"), momentum, decay))
    return tuple(dict.fromkeys(rules))

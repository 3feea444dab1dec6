"""Before any minute of compute: every framework opens on the device, and what is compared is the same network."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from experiments import studies
from experiments.config import devices, interpreters
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.contract import DEVICE, CellSpec, Prepared, Study, Treatment
from experiments.planning import treatments
from experiments.run import parity_cache
from experiments.run import plan as plan_
from experiments.run.cell_process import CellProcess
from experiments.run.plan import Plan
from models import parity
from models.contract import OptimizerConfig
from models.parity import ParityRequest, Row, Side
from tracking import provenance
from tracking.errors import WrongCall
from tracking.records import Record, RunClosed, RunOutcome, Tags

# What decides how a framework opens, and whether it does; every study has these.
OPENING = ("device", "conv_algorithm", "precision", "malloc", "memory_limit")
AT_ONCE = 2  # nothing is measured yet

NO_NVML = "NVML shows no GPU but the frameworks do: cells run on it, without its sensors, and cannot be given one of several"


@dataclass(frozen=True)
class CheckResult:
    """How a framework's check ended.

    sees_device: whether it failed for another reason than a missing device. findings: by name.
    """

    framework: str
    closed: RunClosed
    sees_device: bool
    findings: Mapping[str, str]

    @property
    def device(self) -> str:
        """The device that the framework sees, if it was to open `auto`; else empty."""
        return self.findings.get(DEVICE, "")

    @property
    def ok(self) -> bool:
        return self.closed.outcome == RunOutcome.OK


@dataclass(frozen=True)
class DeviceCheck:
    """Settings and plan whose device every framework sees, a warning or nothing, and all checks."""

    settings: CampaignSettings
    plan: Plan
    warning: str
    results: list[CheckResult]


def check_devices(
    study: str,
    settings: CampaignSettings,
    data: Prepared,
    display: Display,
    plan: Plan | None = None,
) -> DeviceCheck:
    """Open every framework on the device.

    A GPU that only some of them see would decide the comparison: where the user left the choice to us,
    none gets it.

    Args:
        study: Name of the experiment.
        settings: Of the campaign.
        data: What the checks are sent.
        display: Shows what is being done.
        plan: What is compared, where that is not the study's own design.

    Raises:
        WrongCall: If a framework does not open.
    """
    module = studies.load(study)
    wanted = plan or plan_.of_study(module, settings)
    results = _check_where_cells_run(study, settings, wanted.treatments, data, display)
    failed = [result for result in results if not result.ok]
    blind = [result.framework for result in failed if not result.sees_device]
    warning = ""
    requested = {treatment.merged(settings).device for treatment in wanted.treatments}
    devices_seen = {result.device for result in results if result.device}
    if not failed and devices_seen == {"cuda"}:
        settings = dataclasses.replace(settings, device="cuda")
        return DeviceCheck(settings, plan or plan_.of_study(module, settings), NO_NVML, results)
    if "cuda" in devices_seen:
        blind = [result.framework for result in results if result.device == "cpu"]
    if blind and all(not result.sees_device for result in failed) and "cuda" not in requested:
        settings = dataclasses.replace(settings, device="cpu")
        wanted = plan_.on_the_cpu(plan) if plan else plan_.of_study(module, settings)
        for result in failed:
            display.say(f"  {result.framework}: {result.closed.reason}")
        warning = f"no GPU for {', '.join(dict.fromkeys(blind))}, so all run on the CPU; README.md says how each gets to the GPU"
        results = _check_where_cells_run(study, settings, wanted.treatments, data, display)
        failed = [result for result in results if not result.ok]
    if failed:
        raise WrongCall(f"{failed[0].framework}: {failed[0].closed.reason}")
    return DeviceCheck(settings, wanted, warning, results)


def _check_where_cells_run(
    study: str,
    settings: CampaignSettings,
    compared: Sequence[Treatment],
    data: Prepared,
    display: Display,
) -> list[CheckResult]:
    """Check all frameworks, here or on a node of the cluster."""
    if not settings.on_cluster:
        return check_frameworks(study, settings, compared, data, display)
    from experiments.run.backends import cluster

    display.begin("check")
    with tempfile.TemporaryDirectory(prefix="check-", dir=settings.journal) as folder:
        task = partial(_check_on_a_node, study, settings, compared, data)
        results: list[CheckResult] = cluster.call(
            settings, Path(folder).resolve(), "evenhand-check", task, display.waiting
        )
    return results


def _check_on_a_node(
    study: str, settings: CampaignSettings, compared: Sequence[Treatment], data: Prepared
) -> list[CheckResult]:
    from experiments.run.backends import cluster

    return check_frameworks(study, settings, compared, data, nodes=cluster.nodes())


def check_frameworks(
    study: str,
    settings: CampaignSettings,
    compared: Sequence[Treatment],
    data: Prepared,
    display: Display | None = None,
    **more: Any,
) -> list[CheckResult]:
    """Open all frameworks on this machine, each in a process of its own.

    more: what these processes are sent besides, see `CellSpec`.
    """
    display = display or Display()
    module, silent = studies.load(study), settings_.silent(settings)
    results: list[CheckResult] = []
    with tempfile.TemporaryDirectory() as folder:
        specs = []
        for number, (treatment, own) in enumerate(_distinct(settings, compared)):
            name, device = treatment.framework, devices.to_open(own.device, own)
            values = {k: v for k, v in devices.values_of_cell(own).items() if k not in silent}
            spec = CellSpec(
                *(name, module.workload, "check", name, device, 1, 0, values, dict(data.inputs)),
                *(folder, f"{name}-{number}", f"{folder}/none"),
                environment=dict(treatment.environment),
                **more,
            )
            specs.append(spec)
        display.begin("check")
        for number in range(0, len(specs), AT_ONCE):
            together = specs[number : number + AT_ONCE]
            display.step(
                f"check {', '.join(spec.framework for spec in together)}", number, len(specs)
            )
            results += _check(together)
    return results


def _check(specs: Sequence[CellSpec]) -> list[CheckResult]:
    findings: list[dict[str, str]] = [{} for _ in specs]
    cells = [
        CellProcess(spec, partial(_keep_tags, found))
        for spec, found in zip(specs, findings, strict=True)
    ]
    with ExitStack() as running:
        for cell in cells:
            running.enter_context(cell).start()
        for cell in cells:
            while cell.open:
                cell.poll(1.0)
    ends = [(cell, cell.end()) for cell in cells]
    return [
        CheckResult(cell.spec.framework, closed, cell.sees_device, found)
        for (cell, closed), found in zip(ends, findings, strict=True)
        if closed
    ]


def _keep_tags(findings: dict[str, str], record: Record) -> None:
    if isinstance(record, Tags):
        findings |= record.values


def _distinct(
    settings: CampaignSettings, compared: Sequence[Treatment]
) -> list[tuple[Treatment, CampaignSettings]]:
    """Return a treatment of every framework for each of the settings and variables that it is opened with."""
    opening: dict[tuple[Any, ...], tuple[Treatment, CampaignSettings]] = {}
    for name in settings.frameworks:
        for treatment in [one for one in compared if one.framework == name] or [
            Treatment(name, name)
        ]:
            own = treatment.merged(settings)
            key = (
                name,
                *(getattr(own, field) for field in OPENING),
                *sorted(treatment.environment.items()),
            )
            opening.setdefault(key, (treatment, own))
    return sorted(opening.values(), key=lambda pair: pair[1].device)


# ---- the parity gate


@dataclass(frozen=True)
class ParityCheck:
    """What the gate says of a campaign: warnings, tags and files of its run.

    refused: treatments that are not measured, and what differs.
    """

    warnings: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def prove(
    study: str, settings: CampaignSettings, compared: Sequence[Treatment], display: Display
) -> ParityCheck:
    """Send what is compared through the parity gate. Raises WrongCall for what is not the same network."""
    module = studies.load(study)
    rules, found, refused = training_rules(settings, compared), list[Row](), dict[str, str]()
    for name in models_to_prove(study, settings):
        sides = _sides(module, settings, compared, name)
        display.begin(f"parity of {name}")
        rows = list[Row]()
        for device in proof_devices(settings):
            request = ParityRequest(name, rules, device=device)
            rows += parity_cache.rows(
                request, list(dict.fromkeys(sides.values())), Path(settings.cache), display.step
            )
        of_side = {
            side: parity_cache.difference([row for row in rows if row.framework == str(side)])
            for side in sides.values()
        }
        refused |= {treatment: of_side[side] for treatment, side in sides.items() if of_side[side]}
        found += rows
    if not found:
        return ParityCheck()
    different = parity_cache.differences(found)
    if module.side and not settings.allow_unequal:
        warnings, unequal = [f"not equal, and so not measured: {line}" for line in different], False
    else:
        warnings, unequal, refused = [f"UNEQUAL: {line}" for line in different], bool(different), {}
    if unequal and not settings.allow_unequal:
        raise WrongCall(
            f"{different[0]}; allow_unequal=true measures them all the same and marks the report"
        )
    not_proven = sorted(set(devices.of(settings)) - set(proof_devices(settings)))
    elsewhere = [
        f"equality was proven on the CPU: this machine has no device {name}" for name in not_proven
    ]
    return ParityCheck(
        (*warnings, *elsewhere),
        {
            "parity": "unequal" if unequal else "equal",
            "parity.device": ",".join(proof_devices(settings)),
        },
        {"parity.json": parity_cache.as_json(found)},
        refused,
    )


def proof_devices(settings: CampaignSettings) -> tuple[str, ...]:
    """Return the devices on which the gate computes: those of the cells.

    A cluster's cells may have GPUs that the machine of the launch lacks; then it is this machine's CPU.
    """
    wanted = devices.of(settings)
    if settings.on_cluster and "cuda" in wanted and not provenance.gpus():
        return ("cpu",)
    return wanted


def models_to_prove(study: str, settings: CampaignSettings) -> tuple[str, ...]:
    """Return the models that go through the gate: none where everything compared computes by the same code."""
    module = studies.load(study)
    apart = module.strata(settings)
    alone = len(settings.frameworks) < 2 or "framework" in apart
    return () if alone and not module.side else treatments.models_of(module, settings)


def _sides(
    module: Study, settings: CampaignSettings, compared: Sequence[Treatment], model: str
) -> dict[str, Side]:
    """Return who has to compute a model alike, each with the interpreter that computes it.

    These are the treatments of a study that says what is a side's own, or the frameworks.
    """
    sides = {name: Side(name) for name in settings.frameworks}
    if module.side:
        own = {one.name: module.side(one) for one in compared if one.settings.get("model") == model}
        sides = own or sides
    pythons = settings.pythons
    return {
        name: dataclasses.replace(side, python=interpreters.separate(side.framework, pythons))
        for name, side in sides.items()
    }


def training_rules(
    settings: CampaignSettings, compared: Sequence[Treatment]
) -> tuple[OptimizerConfig, ...]:
    """Return how the networks are trained, each way once; where a study leaves no choice, by Adam."""
    own = [vars(treatment.merged(settings)) for treatment in compared]
    rules = (
        parity.rule(
            of.get("optimizer", "adam"), of.get("momentum", 0.0), of.get("weight_decay", 0.0)
        )
        for of in own
    )
    return tuple(dict.fromkeys(rules))

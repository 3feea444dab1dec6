"""Before any minute of compute: every framework opens on the device; with `auto`, on one that all of them see."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments import studies
from experiments.campaign.process import Child
from experiments.config import devices
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.contract import DEVICE, NO_DEVICE, CellSpec, Prepared, Treatment
from experiments.planning import plan as plan_
from experiments.planning.plan import Plan
from tracking.errors import WrongCall
from tracking.records import RunClosed, RunOutcome, Tags

# What decides how a framework opens, and whether it does; every study has these.
OPENING = ("device", "conv_algorithm", "precision", "flush_denormals", "malloc", "memory_limit")

NO_NVML = "NVML shows no GPU but the frameworks do: cells run on it, without its sensors, and cannot be given one of several"


@dataclasses.dataclass(frozen=True)
class Opened:
    """How a framework's child ended. sees_device: whether it failed for another reason than a device that is not there.

    found: what its check found out, by name.
    """

    framework: str
    closed: RunClosed
    sees_device: bool
    found: Mapping[str, str]

    @property
    def device(self) -> str:
        """What the framework sees, where it was asked; else empty."""
        return self.found.get(DEVICE, "")

    @property
    def well(self) -> bool:
        return self.closed.outcome == RunOutcome.OK


def on_a_common_device(
    study: str, settings: CampaignSettings, prepared: Prepared, display: Display, plan: Plan | None = None
) -> tuple[CampaignSettings, Plan, str, list[Opened]]:
    """Return settings and plan whose device every framework sees, a warning or nothing, and what opened.

    A GPU that only some of them see would decide the comparison: where the user left the choice to us, none gets it.

    Args:
        plan: what is compared, where that is not the study's own design.

    Raises:
        WrongCall: where a framework does not open.
    """
    module = studies.load(study)
    wanted = plan or plan_.of_study(module, settings)
    found = _opened_where_cells_run(study, settings, wanted.treatments, prepared, display)
    failed = [one for one in found if not one.well]
    blind = [one.framework for one in failed if not one.sees_device]
    given_up = ""
    asked = {one.merged(settings).device for one in wanted.treatments}
    devices_seen = {one.device for one in found if one.device}
    if not failed and devices_seen == {"cuda"}:
        settings = dataclasses.replace(settings, device="cuda")
        return settings, plan or plan_.of_study(module, settings), NO_NVML, found
    if "cuda" in devices_seen:
        blind = [one.framework for one in found if one.device == "cpu"]
    if blind and all(not one.sees_device for one in failed) and "cuda" not in asked:
        settings = devices.on_the_cpu(settings)
        wanted = plan_.on_the_cpu(plan) if plan else plan_.of_study(module, settings)
        for one in failed:
            display.say(f"  {one.framework}: {one.closed.reason}")
        given_up = f"no GPU for {', '.join(dict.fromkeys(blind))}, so all run on the CPU; README.md says how each gets to the GPU"
        found = _opened_where_cells_run(study, settings, wanted.treatments, prepared, display)
        failed = [one for one in found if not one.well]
    if failed:
        raise WrongCall(f"{failed[0].framework}: {failed[0].closed.reason}")
    return settings, wanted, given_up, found


def _opened_where_cells_run(
    study: str,
    settings: CampaignSettings,
    compared: Sequence[Treatment],
    prepared: Prepared,
    display: Display,
) -> list[Opened]:
    """All frameworks, here or on a node of the cluster."""
    if not settings.on_cluster:
        return opened(study, settings, compared, prepared, display)
    from experiments.campaign import slurm

    display.begin("check")
    with tempfile.TemporaryDirectory(prefix="check-", dir=settings.journal) as folder:
        work = partial(_opened_on_a_node, study, settings, compared, prepared)
        found: list[Opened] = slurm.call(settings, Path(folder).resolve(), "evenhand-check", work, display.waiting)
    return found


def _opened_on_a_node(study: str, settings: CampaignSettings, compared: Sequence[Treatment], prepared: Prepared) -> list[Opened]:
    from experiments.campaign import slurm

    return opened(study, settings, compared, prepared, nodes=slurm.nodes())


def opened(
    study: str,
    settings: CampaignSettings,
    compared: Sequence[Treatment],
    prepared: Prepared,
    display: Display | None = None,
    **more: Any,
) -> list[Opened]:
    """All frameworks on this machine, each in a process of its own; two at a time, since nothing is measured yet.

    more: what these processes are told besides, see `CellSpec`.
    """
    display = display or Display()
    module = studies.load(study)
    silent = settings_.silent(settings)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        waiting = []
        for number, (treatment, own) in enumerate(_distinct(settings, compared)):
            name = treatment.framework
            values = {k: v for k, v in devices.values_of_cell(own).items() if k not in silent}
            device = devices.to_open(own.device, own)
            spec = CellSpec(
                *(name, module.workload, "check", name, device, 1, 0, values, dict(prepared.inputs)),
                *(folder, f"{name}-{number}", f"{folder}/none"),
                environment=dict(treatment.environment),
                **more,
            )
            waiting.append(spec)
        display.begin("check")
        for number in range(0, len(waiting), 2):
            pair = waiting[number : number + 2]
            display.step(f"check {', '.join(spec.framework for spec in pair)}", number, len(waiting))
            children = [(spec.framework, Child(spec, spec.path / "output.log")) for spec in pair]
            found += [_opened(name, child) for name, child in children]
    return found


def _distinct(settings: CampaignSettings, compared: Sequence[Treatment]) -> list[tuple[Treatment, CampaignSettings]]:
    """Return a treatment of every framework for each of the settings and variables that it is opened with."""
    opening: dict[tuple[Any, ...], tuple[Treatment, CampaignSettings]] = {}
    for name in settings.frameworks:
        for one in [one for one in compared if one.framework == name] or [Treatment(name, name)]:
            own = one.merged(settings)
            key = (name, *(getattr(own, field) for field in OPENING), *sorted(one.environment.items()))
            opening.setdefault(key, (one, own))
    return sorted(opening.values(), key=lambda pair: pair[1].device)


def _opened(framework: str, child: Child) -> Opened:
    closed, sees_device, found = None, True, dict[str, str]()
    while child.open:
        for message in child.listen(1.0):
            closed = message if isinstance(message, RunClosed) else closed
            found |= message.values if isinstance(message, Tags) else {}
            sees_device = sees_device and not (isinstance(message, dict) and NO_DEVICE in message)
    ended = child.ended()
    return Opened(framework, closed or ended, sees_device, found)

"""Before any minute of compute: every framework opens on the device; with `auto`, on one that all of them see."""

from __future__ import annotations

import dataclasses
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from experiments import studies
from experiments.campaign.process import Child
from experiments.cell.contract import NO_DEVICE, CellSpec, Prepared
from experiments.config import devices
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from tracking.errors import WrongCall
from tracking.records import RunClosed, RunOutcome


@dataclasses.dataclass(frozen=True)
class Opened:
    """How a framework's child ended. sees_device: whether it failed for another reason than a device that is not there."""

    framework: str
    closed: RunClosed
    sees_device: bool


def on_a_common_device(
    study: str, settings: CampaignSettings, prepared: Prepared, display: Display
) -> tuple[CampaignSettings, str]:
    """Settings whose device every framework sees, and what is to be said of it. Raises WrongCall where one does not open.

    A GPU that only some of them see would decide the comparison: where the user left the choice to us, none gets it.
    """
    failed = _failed(study, settings, prepared, display)
    blind = [one.framework for one in failed if not one.sees_device]
    given_up = ""
    if blind and len(blind) == len(failed) and "cuda" not in devices.asked(settings):
        settings = devices.on_the_cpu(settings)
        given_up = f"no GPU for {', '.join(dict.fromkeys(blind))}, so all run on the CPU; README.md says how each gets to the GPU"
        failed = _failed(study, settings, prepared, display)
    if failed:
        raise WrongCall(f"{failed[0].framework}: {failed[0].closed.reason}")
    return settings, given_up


def _failed(study: str, settings: CampaignSettings, prepared: Prepared, display: Display) -> list[Opened]:
    """Those that do not open, here or on a node of the cluster."""
    if not settings.on_cluster:
        return failed(study, settings, prepared, display)
    from experiments.campaign import slurm

    display.begin("check")
    with tempfile.TemporaryDirectory(prefix="check-", dir=settings.journal) as folder:
        work = partial(_failed_on_a_node, study, settings, prepared)
        found: list[Opened] = slurm.call(settings, Path(folder).resolve(), "evenhand-check", work, display.waiting)
    return found


def _failed_on_a_node(study: str, settings: CampaignSettings, prepared: Prepared) -> list[Opened]:
    from experiments.campaign import slurm

    nodes = slurm.nodes()
    return failed(study, settings, prepared, nodes=nodes.ways, address=nodes.address)


def failed(
    study: str, settings: CampaignSettings, prepared: Prepared, display: Display | None = None, **more: Any
) -> list[Opened]:
    """Those that do not open on this machine, each in a process of its own; two at a time, since nothing is measured yet.

    more: what these processes are told besides, see `CellSpec`.
    """
    display = display or Display()
    module = studies.load(study)
    silent = settings_.silent(settings)
    values = {k: v for k, v in dataclasses.asdict(settings).items() if k not in silent}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        waiting = [
            CellSpec(
                *(name, module.WORKLOAD, "check", name, device, 1, 0, values, dict(prepared.inputs)),
                *(folder, f"{name}-{device}", f"{folder}/none"),
                **more,
            )
            for device in devices.of(settings)
            for name in settings.frameworks
        ]
        display.begin("check")
        for number in range(0, len(waiting), 2):
            pair = waiting[number : number + 2]
            display.step(f"check {', '.join(spec.framework for spec in pair)}", number, len(waiting))
            children = [(spec.framework, Child(spec, spec.path / "output.log")) for spec in pair]
            found += [_opened(name, child) for name, child in children]
    return [one for one in found if one.closed.outcome != RunOutcome.OK]


def _opened(framework: str, child: Child) -> Opened:
    closed, sees_device = None, True
    while child.open:
        for message in child.listen(1.0):
            closed = message if isinstance(message, RunClosed) else closed
            sees_device = sees_device and not (isinstance(message, dict) and NO_DEVICE in message)
    ended = child.ended()
    return Opened(framework, closed or ended, sees_device)

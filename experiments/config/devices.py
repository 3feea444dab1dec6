"""The device (CPU or GPU) on which cells compute."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from experiments.config import variation
from experiments.config.settings import CampaignSettings
from tracking import cpus, provenance
from tracking.errors import WrongCall


def of(settings: CampaignSettings) -> tuple[str, ...]:
    """What the cells compute on: the study's `devices`, where it names several, or `device`."""
    return tuple(dict.fromkeys(resolve(one, settings) for one in asked(settings)))


def asked(settings: CampaignSettings) -> tuple[str, ...]:
    """The devices as the user wrote them."""
    wanted: tuple[str, ...] = getattr(settings, "devices", ())
    return wanted or tuple(dict.fromkeys(own.device for own in variation.each(settings)))


def on_the_cpu(settings: CampaignSettings) -> CampaignSettings:
    """The same settings without a GPU."""
    own: dict[str, Any] = {"devices": ("cpu",)} if getattr(settings, "devices", ()) else {}
    return dataclasses.replace(settings, device="cpu", **own)


@dataclass(frozen=True)
class Placement:
    """Numbers of the CPUs that cells run on, and those of the parent with its uploads; empty: as the system places it."""

    cells: tuple[int, ...]
    parent: tuple[int, ...] = ()

    @property
    def tags(self) -> dict[str, str]:
        """What a run says of it."""
        told = {"pinned.cell": self.cells, "pinned.parent": self.parent}
        return {name: ",".join(map(str, numbers)) for name, numbers in told.items() if numbers}


def placement(settings: CampaignSettings, mine: Sequence[int] = (), root: Path = Path("/")) -> Placement:
    """Where a campaign's processes run. Raises WrongCall if no CPU is left to the cells.

    mine: the CPUs that there are; none: those that this process was given. The first `reserve_cores` are not the cells'. With
    pin=auto cells get one thread of each core, and the parent the reserved CPUs or, where there are three cores, the first core.
    No core is shared by both. root: of the file system that holds `sys`.
    """
    mine, reserved = sorted(mine or own_cpus()), settings.reserve_cores
    if reserved >= len(mine):
        raise WrongCall(f"reserve_cores={reserved} leaves no CPU to the cells; this process may use {len(mine)}")
    if settings.pin == "none":
        return Placement(tuple(mine[reserved:]))
    if not hasattr(os, "sched_setaffinity"):
        raise WrongCall("pin=auto: this system lets no process choose its CPUs; leave it out")
    cores = cpus.cores(mine, root)
    parent = set(mine[:reserved]) or set(cores[0] if len(cores) > 2 else ())
    cells = tuple(core[0] for core in cores if not parent & set(core))
    if not cells:
        raise WrongCall(f"pin=auto: reserve_cores={reserved} has a thread of every core; reserve fewer of {len(mine)}")
    return Placement(cells, tuple(sorted(parent)))


def cpus_of_cells(settings: CampaignSettings) -> tuple[int, ...]:
    """Return the CPUs that a cell is placed on; none where the system lets no process choose.

    All are named where nothing is pinned: the parent that starts it may be pinned for another.
    """
    return placement(settings).cells if hasattr(os, "sched_setaffinity") else ()


def cpus_of_parent(cells: Iterable[CampaignSettings]) -> set[int]:
    """Return the CPUs that the parent stays on while these cells are alive; none: any."""
    pinned = [set(placement(one).parent) for one in cells if one.pin != "none"]
    return set.intersection(*filter(None, pinned)) if any(pinned) else set()


@cache
def own_cpus() -> tuple[int, ...]:
    """Numbers of the CPUs that this process was given, as they were when it was first asked: before it placed itself."""
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return tuple(sorted(mine))


@contextmanager
def staying_on(numbers: Collection[int]) -> Iterator[None]:
    """Within it all threads of this process run on these CPUs alone; where none is named, as before.

    What is started inherits it, unless it is placed itself.
    """
    before = os.sched_getaffinity(0) if numbers else set[int]()
    _place(numbers)
    try:
        yield
    finally:
        _place(before)


def _place(numbers: Collection[int]) -> None:
    for thread in os.listdir("/proc/self/task") if numbers else ():
        with suppress(ProcessLookupError):  # it has ended since
            os.sched_setaffinity(int(thread), numbers)


def resolve(device: str, settings: CampaignSettings) -> str:
    """`auto` is the GPU if the driver shows one, or the job on a cluster asks for one. Raises WrongCall for cuda without one."""
    if settings.on_cluster:  # what this machine has says nothing of the nodes; on those, a framework that sees no GPU fails
        return ("cuda" if "gpu" in settings.gres else "cpu") if device == "auto" else device
    return present(device)


def present(device: str) -> str:
    """Return `cpu` or `cuda`: for `auto`, the GPU if the driver of this machine shows one.

    Raises:
        WrongCall: for cuda without a GPU.
    """
    has_gpu = bool(provenance.gpus())
    if device == "cuda" and not has_gpu:
        raise WrongCall("device=cuda: no NVIDIA GPU answers on this machine; use device=cpu or device=auto")
    return ("cuda" if has_gpu else "cpu") if device == "auto" else device

"""The device (CPU or GPU) on which cells compute."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from experiments.config.settings import CampaignSettings
from tracking import provenance
from tracking.errors import WrongCall


def of(settings: CampaignSettings) -> tuple[str, ...]:
    """What the cells compute on: the study's `devices`, where it names several, or `device`."""
    return tuple(dict.fromkeys(map(resolve, asked(settings))))


def asked(settings: CampaignSettings) -> tuple[str, ...]:
    """The devices as the user wrote them."""
    wanted: tuple[str, ...] = getattr(settings, "devices", ())
    return wanted or (settings.device,)


def on_the_cpu(settings: CampaignSettings) -> CampaignSettings:
    """The same settings without a GPU."""
    own: dict[str, Any] = {"devices": ("cpu",)} if getattr(settings, "devices", ()) else {}
    return dataclasses.replace(settings, device="cpu", **own)


def cpus_of_cells(reserved: int) -> tuple[int, ...]:
    """Numbers of the CPUs that cells run on: this process's without the first `reserved`. Raises WrongCall if none is left."""
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    if reserved >= len(mine):
        raise WrongCall(f"reserve_cores={reserved} leaves no CPU to the cells; this process may use {len(mine)}")
    return tuple(mine[reserved:])


def resolve(device: str) -> str:
    """`auto` is the GPU if the driver shows one. Raises WrongCall for cuda without one."""
    present = bool(provenance.gpus())
    if device == "cuda" and not present:
        raise WrongCall("device=cuda: no NVIDIA GPU answers on this machine; use device=cpu or device=auto")
    return ("cuda" if present else "cpu") if device == "auto" else device

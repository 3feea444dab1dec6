"""The device (CPU or GPU) on which cells compute."""

from __future__ import annotations

from experiments.config.settings import CampaignSettings
from tracking import provenance
from tracking.errors import WrongCall


def of(settings: CampaignSettings) -> tuple[str, ...]:
    """What the cells compute on: the study's `devices`, where it names several, or `device`."""
    wanted: tuple[str, ...] = getattr(settings, "devices", ()) or (settings.device,)
    return tuple(dict.fromkeys(map(resolve, wanted)))


def resolve(device: str) -> str:
    """`auto` is the GPU if the driver shows one. Raises WrongCall for cuda without one."""
    present = bool(provenance.gpus())
    if device == "cuda" and not present:
        raise WrongCall("device=cuda: no NVIDIA GPU answers on this machine; use device=cpu or device=auto")
    return ("cuda" if present else "cpu") if device == "auto" else device

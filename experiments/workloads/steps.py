"""Whether the steps that are asked for can be made of the data, and leave some to be measured as they are to be."""

from __future__ import annotations

from typing import Protocol, cast

from experiments.config import devices
from experiments.config.settings import CampaignSettings
from tracking.errors import WrongCall


class Timing(Protocol):
    """Settings of the clock."""

    @property
    def timing(self) -> str: ...

    @property
    def window_steps(self) -> int: ...


class Steps(Timing, Protocol):
    """Settings of a training by epochs."""

    @property
    def batch_size(self) -> int: ...

    @property
    def epochs(self) -> int: ...

    @property
    def steps_per_epoch(self) -> int: ...

    @property
    def warmup_steps(self) -> int: ...


def check(settings: Steps, examples: int, what: str, data: str) -> None:
    """Raises WrongCall. what: the examples in words, `training captions`."""
    if settings.batch_size > examples:
        raise WrongCall(
            f"batch_size={settings.batch_size} is more than the {examples} {what} of {data}; at most {examples}"
        )
    possible = examples // settings.batch_size
    if settings.steps_per_epoch > possible:
        raise WrongCall(
            f"steps_per_epoch={settings.steps_per_epoch} is more than {data} has at this batch size; at most {possible}"
        )
    steps = settings.epochs * (settings.steps_per_epoch or possible)
    if settings.warmup_steps >= steps:
        raise WrongCall(
            f"warmup_steps={settings.warmup_steps} leaves none of the {steps} steps to be measured "
            f"({examples} {what} in batches of {settings.batch_size}, epochs={settings.epochs}); "
            f"{f'at most {steps - 1}, or ' if steps > 1 else ''}more epochs or a smaller batch_size"
        )
    measured = min(settings.steps_per_epoch or possible, steps - settings.warmup_steps)
    check_windows(settings, measured, f"{measured} measured steps of an epoch")


def check_windows(settings: Timing, steps: int, what: str) -> None:
    """Raises WrongCall where a window is too long. steps: measured in a row; what: those in words."""
    kind = devices.timing(cast(CampaignSettings, settings))
    most = {"step": settings.window_steps, "free": steps, "both": steps // 2}[kind]
    if settings.window_steps > most:
        right = f"at most {most}, or timing=step" if most else "take timing=step"
        twice = ", with as many timed one by one," * (kind == "both")
        raise WrongCall(
            f"window_steps={settings.window_steps}: a window{twice} is longer than the {what}; {right}"
        )

"""Whether the steps that are asked for can be made of the data, and leave some to be measured."""

from __future__ import annotations

from typing import Protocol

from tracking.errors import WrongCall


class Steps(Protocol):
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
        raise WrongCall(f"batch_size={settings.batch_size} is more than the {examples} {what} of {data}; at most {examples}")
    possible = examples // settings.batch_size
    if settings.steps_per_epoch > possible:
        raise WrongCall(
            f"steps_per_epoch={settings.steps_per_epoch} is more than {data} has at this batch size; at most {possible}"
        )
    steps = settings.epochs * (settings.steps_per_epoch or possible)
    if settings.warmup_steps >= steps:
        raise WrongCall(f"warmup_steps={settings.warmup_steps} leaves none of the {steps} steps to be measured; give fewer")

"""Checks that a training has enough steps to be measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from experiments.config import devices
from experiments.config.settings import CampaignSettings, ModelSettings
from experiments.contract import REQUEST_SECONDS, STEP_SECONDS
from tracking.errors import ErrorCode, UsageError

# Of the steps of an epoch. They are few, so that campaigns of one machine have the same.
SHARES = (1.0, 0.75, 0.5, 0.375, 0.25)


def choices(most: int) -> list[int]:
    """Return the steps of an epoch from which a training is shortened, the most first."""
    return [max(1, int(share * most)) for share in SHARES]


def lengthened(
    settings: ModelSettings, examples: int, findings: Sequence[Mapping[str, str]]
) -> ModelSettings:
    """Return the settings with as many epochs and requests as take the fastest `phase_seconds`.

    They are doubled until it does, so that campaigns of one machine have the same.

    Args:
        settings: Settings of a campaign on a GPU.
        examples: Number of training examples.
        findings: Of the checks of all frameworks.
    """
    steps = settings.steps_per_epoch or examples // settings.batch_size
    needed = {}
    for name, finding, count in (
        ("epochs", STEP_SECONDS, settings.epochs * steps),
        ("inference_requests", REQUEST_SECONDS, settings.inference_requests),
    ):
        if timed := [float(of[finding]) for of in findings if finding in of]:
            doublings = math.ceil(math.log2(settings.phase_seconds / (count * min(timed))))
            needed[name] = getattr(settings, name) * 2 ** max(0, doublings)
    return replace(settings, **needed)


def check(settings: ModelSettings, examples: int, what: str, data: str) -> None:
    """Raise UsageError for a training by epochs that leaves no step to be measured.

    Args:
        settings: Settings of a cell.
        examples: Number of training examples.
        what: Name of the examples, such as `training captions`.
        data: Name of the data set.
    """
    if settings.batch_size > examples:
        raise UsageError(
            ErrorCode.TOO_LARGE,
            f"batch_size={settings.batch_size} is more than the {examples} {what} of {data}; "
            f"at most {examples}",
        )
    possible = examples // settings.batch_size
    if settings.steps_per_epoch > possible:
        raise UsageError(
            ErrorCode.TOO_LARGE,
            f"steps_per_epoch={settings.steps_per_epoch} is more than {data} has "
            f"at this batch size; at most {possible}",
        )
    steps_per_epoch = settings.steps_per_epoch or possible
    steps = settings.epochs * steps_per_epoch
    if settings.warmup_steps >= steps:
        raise UsageError(
            ErrorCode.TOO_FEW,
            f"warmup_steps={settings.warmup_steps} leaves none of the {steps} steps to be measured "
            f"({examples} {what} in batches of {settings.batch_size}, epochs={settings.epochs}); "
            "take fewer, more epochs or a smaller batch_size",
        )
    measured = measured_in_a_row(settings, examples)
    check_windows(settings, measured, f"{measured} measured steps of an epoch")


def measured_in_a_row(settings: ModelSettings, examples: int) -> int:
    """Return the fewest steps of an epoch after the warm-up, of a training that has some."""
    steps_per_epoch = settings.steps_per_epoch or examples // settings.batch_size
    return min(steps_per_epoch, settings.epochs * steps_per_epoch - settings.warmup_steps)


def longest_window(settings: CampaignSettings, steps: int) -> int:
    """Return the steps of the longest window that fits into those that are measured in a row."""
    return steps // 2 if devices.timing(settings) == "both" else steps


def check_windows(settings: CampaignSettings, steps: int, what: str) -> None:
    """Raise UsageError if a window is longer than the steps that are measured in a row."""
    kind, most = devices.timing(settings), longest_window(settings, steps)
    if kind != "step" and max(1, settings.window_steps) > most:
        raise UsageError(
            ErrorCode.TOO_LARGE,
            f"window_steps={settings.window_steps} does not fit with timing={kind} into the "
            f"{what}; at most {most}, or timing=step",
        )

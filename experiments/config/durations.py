"""Durations in the form that users write and read."""

from __future__ import annotations

import math
import re

from tracking import plain
from tracking.errors import ErrorCode, UsageError

UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MAX_SECONDS = 366 * UNITS["d"]


def seconds(name: str, text: str) -> float:
    """Return the seconds of `90s`, `30m` or `1.5h`; infinite for `none`.

    Raises:
        UsageError: for another text, with the name of the setting.
    """
    if text == "none":
        return math.inf
    matched = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    duration = float(matched[1]) * UNITS[matched[2]] if matched else math.nan
    if not 0 < duration <= MAX_SECONDS:
        raise UsageError(
            ErrorCode.INVALID_VALUE,
            f"{name}={plain.short(text)} is not a duration; write 90s, 30m, 2h or none",
        )
    return duration


def format_duration(duration: float) -> str:
    """Return a duration as text: `45 s`, `18 min`, `3 h`."""
    for unit, size in (("h", 3_600), ("min", 60)):
        if duration >= 2 * size:
            return f"{duration / size:,.0f} {unit}"
    return f"{max(1.0, duration):.0f} s"

"""Durations as people write them."""

from __future__ import annotations

import math
import re

from tracking import plain
from tracking.errors import WrongCall

UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MAX_SECONDS = 366 * UNITS["d"]


def seconds(name: str, text: str) -> float:
    """Seconds of `90s`, `30m`, `1.5h`; infinite for `none`. name: of the setting, for the error. Raises WrongCall."""
    if text == "none":
        return math.inf
    matched = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    found = float(matched[1]) * UNITS[matched[2]] if matched else math.nan
    if not 0 < found <= MAX_SECONDS:
        raise WrongCall(f"{name}={plain.short(text)} is not a duration; write 90s, 30m, 2h or none")
    return found


def told(duration: float) -> str:
    """A duration in seconds as one reads it: `45 s`, `18 min`, `3 h`."""
    for unit, size in (("h", 3_600), ("min", 60)):
        if duration >= 2 * size:
            return f"{duration / size:,.0f} {unit}"
    return f"{max(1.0, duration):.0f} s"

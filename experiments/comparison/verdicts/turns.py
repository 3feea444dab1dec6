"""What cells that took turns cannot answer: how long a process takes that has the machine for itself from its start on."""

from __future__ import annotations

from fnmatch import fnmatch

import pandas as pd

PAIRING, INTERLEAVED = "params.pairing", "interleaved"
# What a process does once, and sums over all that it does.
ALONE = ("train/first_step_seconds", "train/first_epoch_seconds", "train/total_seconds", "inference/*first_call_seconds")
REASON = "cells took turns (pairing=interleaved): what comes first, and whole times, are those of processes that have company"


def taken(*sides: pd.DataFrame) -> bool:
    """Whether any of these runs took turns with others."""
    return any(PAIRING in side.columns and bool((side[PAIRING] == INTERLEAVED).any()) for side in sides)


def refused(metric: str) -> str:
    """Why the outcome has no verdict in runs that took turns; empty where it may have one."""
    return REASON if any(fnmatch(metric, one) for one in ALONE) else ""

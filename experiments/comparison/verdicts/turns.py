"""What cells that took turns cannot answer: how long a process takes that has the machine for itself from its start on."""

from __future__ import annotations

import pandas as pd

from experiments.metrics import outcome

PAIRING, INTERLEAVED = "params.pairing", "interleaved"
REASON = "cells took turns (pairing=interleaved): what comes first, and whole times, are those of processes that have company"


def taken(*sides: pd.DataFrame) -> bool:
    """Return whether any of these runs took turns with others."""
    return any(
        PAIRING in side.columns and bool((side[PAIRING] == INTERLEAVED).any()) for side in sides
    )


def refused(metric: str) -> str:
    """Return why the outcome has no verdict in runs that took turns; empty where it may have one."""
    return REASON if outcome(metric).alone else ""

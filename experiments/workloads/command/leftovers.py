"""Processes that outlived their command, and their end if the cell was killed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from experiments.workloads.command import process_tree

# Variable of every process of a command: the path of a file in its cell's folder.
METRICS_VARIABLE = "EVENHAND_METRICS"
GRACE_SECONDS = 2.0
MAX_NAMES = 5


def end(folder: Path) -> str:
    """End the processes of commands whose cells are in a folder and run no more.

    Args:
        folder: Absolute path, of a cell or of a campaign.

    Returns:
        Their number and names; empty if there is none.
    """
    find = partial(process_tree.marked, METRICS_VARIABLE, folder)
    names = process_tree.names(find())
    process_tree.end(GRACE_SECONDS, find)
    return describe(names) if names else ""


def describe(names: Sequence[str]) -> str:
    """Return the number and the first names of processes that outlived their command."""
    count = f"{len(names)} process{'es' * (len(names) != 1)}"
    return f"{count} outlived the command: {', '.join(names[:MAX_NAMES])}"

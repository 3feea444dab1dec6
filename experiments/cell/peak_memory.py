"""Peak resident memory of this process, counted from a moment that the measurement chooses."""

from __future__ import annotations

import ctypes
import gc
import resource
from contextlib import suppress
from pathlib import Path

PEAK_FROM_HERE = "5"  # of /proc/self/clear_refs: proc(5)


def settle() -> bool:
    """Before the first step: what was freed goes back to the system, and collections inside steps look at what is new alone.

    Returns what `restart` does. Not between epochs: what was given back would have to be taken again, inside of a step.
    """
    gc.collect()
    gc.freeze()
    with suppress(AttributeError, OSError):  # the C library of GNU alone can
        ctypes.CDLL(None).malloc_trim(0)
    return restart()


def restart() -> bool:
    """The peak counts from here on: copies of initial weights and of checkpoints are no part of a training's memory.

    Returns whether the kernel did it; where it cannot, the peak is that of the whole process.
    """
    try:
        Path("/proc/self/clear_refs").write_text(PEAK_FROM_HERE)
    except OSError:
        return False
    return True


def rss_bytes() -> float:
    """Peak resident set of this program, in bytes. (getrusage would include what the parent held when it started us.)"""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1_024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024.0

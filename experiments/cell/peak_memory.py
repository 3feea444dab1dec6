"""Peak memory of this process and of its accelerator, counted from a moment that the measurement chooses."""

from __future__ import annotations

import ctypes
import gc
import resource
from contextlib import suppress
from pathlib import Path

from models.contract import Framework

NO_RESET = "{name} cannot count its peak from the end of the warm-up on; see memory/peak_device_with_warmup_bytes"
NEVER_WARM = "no step came after the warm-up"
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


class DevicePeaks:
    """Peaks of the accelerator's memory: after the warm-up, and with it.

    A warm-up contains the workspaces that algorithms are tried in, and what compiling needs.
    A process begins with one, and each phase may have one of its own.
    """

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._is_warm = False
        self._has_reset = True
        self._steady_bytes = self._warmup_bytes = 0

    def begin_warmup(self) -> None:
        """Keep the peak so far, of a phase before."""
        self._keep()
        self._is_warm = False

    def end_warmup(self) -> None:
        """Count the peak from here on; the second call in a phase changes nothing."""
        if not self._is_warm and self._keep():
            self._has_reset &= self._framework.reset_peak()
        self._is_warm = True

    def metrics(self) -> dict[str, float]:
        """Return both peaks; without the one after the warm-up if there was no end of one, or no reset."""
        if not self._keep():
            return {}
        found = {
            "memory/peak_device_with_warmup_bytes": float(
                max(self._steady_bytes, self._warmup_bytes)
            )
        }
        if self._has_reset and self._steady_bytes:
            found["memory/peak_device_bytes"] = float(self._steady_bytes)
        return found

    def missing(self) -> dict[str, str]:
        """Return tags with the reason why a peak is missing."""
        if (
            self._framework.peak_device_bytes() is None
            or "memory/peak_device_bytes" in self.metrics()
        ):
            return {}
        reason = NEVER_WARM if self._has_reset else NO_RESET.format(name=self._framework.name)
        return {"not_available.memory/peak_device_bytes": reason}

    def _keep(self) -> bool:
        """Keep the framework's peak as that of the phase's part; False if there is no accelerator."""
        peak = self._framework.peak_device_bytes()
        if peak is None:
            return False
        if self._is_warm:
            self._steady_bytes = max(self._steady_bytes, peak)
        else:
            self._warmup_bytes = max(self._warmup_bytes, peak)
        return True

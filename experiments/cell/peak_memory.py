"""Peak memory of this process and of its accelerator."""

from __future__ import annotations

import ctypes
import gc
import resource
from contextlib import suppress
from pathlib import Path

from models.contract import Framework

NO_RESET = (
    "{name} cannot count its peak from the end of the warm-up on; "
    "see memory/peak_device_with_warmup_bytes"
)
NEVER_WARM = "no step came after the warm-up"
RESET_PEAK = "5"  # of /proc/self/clear_refs: proc(5)


def settle() -> bool:
    """Give freed memory back before the first step, and restart the peak.

    Later collections of garbage look at new objects only. Do not call it between epochs: the
    memory would have to be requested again inside of a step.

    Returns:
        See `restart`.
    """
    gc.collect()
    gc.freeze()
    with suppress(AttributeError, OSError):  # only the C library of GNU has it
        ctypes.CDLL(None).malloc_trim(0)
    return restart()


def restart() -> bool:
    """Count the peak from here on, without copies of initial weights and checkpoints.

    Returns:
        Whether the kernel can do it; otherwise the peak is that of the whole process.
    """
    try:
        Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def rss_bytes() -> float:
    """Return the peak resident set of this program.

    `getrusage` would include what the parent had when it started this process.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1_024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024.0


class DevicePeaks:
    """Peaks of the accelerator's memory: after the warm-up, and including it.

    A warm-up contains the workspaces in which algorithms are tried, and what compiling needs.
    A process begins with one, and each phase may have another.
    """

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._is_warm = False
        self._has_reset = True
        self._peaks = {False: 0, True: 0}  # is warm -> bytes

    def begin_warmup(self) -> None:
        self._update()
        self._is_warm = False

    def end_warmup(self) -> None:
        """Count the peak from here on; the second call in a phase changes nothing."""
        if not self._is_warm and self._update():
            self._has_reset &= self._framework.reset_peak()
        self._is_warm = True

    def metrics(self) -> dict[str, float]:
        """Return both peaks, or only that with the warm-up if none ended or there was no reset."""
        if not self._update():
            return {}
        metrics = {"memory/peak_device_with_warmup_bytes": float(max(self._peaks.values()))}
        if self._has_reset and self._peaks[True]:
            metrics["memory/peak_device_bytes"] = float(self._peaks[True])
        return metrics

    def missing(self) -> dict[str, str]:
        """Return a tag with the reason if a peak is missing."""
        if not self._update() or "memory/peak_device_bytes" in self.metrics():
            return {}
        reason = NEVER_WARM if self._has_reset else NO_RESET.format(name=self._framework.name)
        return {"not_available.memory/peak_device_bytes": reason}

    def _update(self) -> bool:
        """Read the framework's peak; False if there is no accelerator."""
        peak = self._framework.peak_device_bytes()
        if peak is None:
            return False
        self._peaks[self._is_warm] = max(self._peaks[self._is_warm], peak)
        return True

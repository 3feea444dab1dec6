"""Peaks of memory: of a process from the first step on, of a device with and without warm-up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from experiments.cell.peak_memory import DevicePeaks
from tests.models.children import run_python

MEBIBYTE = 2**20
# Ones are written, so that they are resident; a process alone, since a peak belongs to all of it.
SCRIPT = f"""
import numpy as np
from experiments.cell import peak_memory
def take(mebibytes):
    return np.ones(mebibytes * {MEBIBYTE} // 8)
data = take(100)
before = peak_memory.rss_bytes()
copies = [take(200), [take(1) for _ in range(200)]]
loading = peak_memory.rss_bytes()
del copies
assert peak_memory.settle()
settled = peak_memory.rss_bytes()
step = take(50)
del step
training = peak_memory.rss_bytes()
checkpoint = take(300)
del checkpoint
assert peak_memory.restart()
again = peak_memory.rss_bytes()
print(*(round((value - before) / {MEBIBYTE}) for value in (loading, settled, training, again)))
"""


def test_memory_freed_before_steps_is_no_peak() -> None:
    loading, settled, training, again = map(int, run_python("-c", SCRIPT).stdout.split())
    assert loading == pytest.approx(400, abs=20)
    assert abs(settled) < 20
    assert training - settled == pytest.approx(50, abs=10)
    assert abs(again) < 20


STEADY, WHOLE = "memory/peak_device_bytes", "memory/peak_device_with_warmup_bytes"


class Device:
    """Allocator: `take` moves the peak, a reset brings it down to what is allocated."""

    name = "toy"

    def __init__(self, *, resets: bool = True) -> None:
        self._resets, self._allocated, self._peak = resets, 10, 10

    def take(self, extra: int) -> None:
        self._peak = max(self._peak, self._allocated + extra)

    def peak_device_bytes(self) -> int | None:
        return self._peak

    def reset_peak(self) -> bool:
        if self._resets:
            self._peak = self._allocated
        return self._resets


CPU = SimpleNamespace(take=lambda _: None, peak_device_bytes=lambda: None, reset_peak=lambda: False)


@pytest.mark.parametrize(
    ("device", "phases", "expected", "missing"),
    [
        (Device(), [(900, 30, 50, 40)], {STEADY: 60.0, WHOLE: 910.0}, False),
        (Device(), [(100, 70), (500, 20)], {STEADY: 80.0, WHOLE: 510.0}, False),
        (Device(resets=False), [(900,)], {WHOLE: 910.0}, True),
        (Device(), [], {WHOLE: 10.0}, True),  # no warm step
        (CPU, [(900, 30)], {}, False),
    ],
)
def test_workspace_of_a_warm_up_is_in_one_peak(
    device: Any, phases: list[tuple[int, ...]], expected: dict[str, float], *, missing: bool
) -> None:
    """The first step of a phase is its warm-up."""
    peaks = DevicePeaks(device)
    for phase in phases:
        peaks.begin_warmup()
        for extra in phase:
            device.take(extra)
            peaks.end_warmup()
    assert peaks.metrics() == expected
    assert set(peaks.missing()) == ({f"not_available.{STEADY}"} if missing else set())

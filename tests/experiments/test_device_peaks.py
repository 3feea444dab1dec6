"""The peak of a device's memory is that after the warm-up; the one with autotuning stands beside it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from experiments.cell.peak_memory import DevicePeaks

STEADY, WHOLE = "memory/peak_device_bytes", "memory/peak_device_with_warmup_bytes"


class Device:
    """Counts as an allocator does: `take` moves the peak, a reset brings it down to what is held."""

    name = "toy"

    def __init__(self, *, resets: bool = True) -> None:
        self._resets, self._held, self._peak = resets, 10, 10

    def take(self, extra: int) -> None:
        self._peak = max(self._peak, self._held + extra)

    def peak_device_bytes(self) -> int | None:
        return self._peak

    def reset_peak(self) -> bool:
        if self._resets:
            self._peak = self._held
        return self._resets


def peaks_of(device: Any) -> DevicePeaks:
    return DevicePeaks(device)


def test_a_workspace_of_the_warm_up_is_in_one_of_the_two() -> None:
    device = Device()
    peaks = peaks_of(device)
    device.take(900)
    peaks.end_warmup()
    for extra in (30, 50, 40):
        device.take(extra)
        peaks.end_warmup()  # told after every step
    assert peaks.metrics() == {STEADY: 60.0, WHOLE: 910.0}
    assert peaks.missing() == {}


def test_each_phase_has_a_warm_up_of_its_own() -> None:
    device = Device()
    peaks = peaks_of(device)
    device.take(100)
    peaks.end_warmup()
    device.take(70)
    peaks.begin_warmup()
    device.take(500)
    peaks.end_warmup()
    device.take(20)
    assert peaks.metrics() == {STEADY: 80.0, WHOLE: 510.0}


def test_a_peak_that_cannot_be_reset_is_not_compared_with_those_that_can() -> None:
    device = Device(resets=False)
    peaks = peaks_of(device)
    device.take(900)
    peaks.end_warmup()
    assert peaks.metrics() == {WHOLE: 910.0}
    assert peaks.missing().keys() == {f"not_available.{STEADY}"}


def test_a_cell_without_a_step_after_its_warm_up_has_no_such_peak() -> None:
    peaks = peaks_of(Device())
    assert peaks.metrics() == {WHOLE: 10.0}
    assert peaks.missing().keys() == {f"not_available.{STEADY}"}


def test_the_cpu_has_neither() -> None:
    peaks = peaks_of(
        SimpleNamespace(name="toy", peak_device_bytes=lambda: None, reset_peak=lambda: False)
    )
    peaks.end_warmup()
    assert (peaks.metrics(), peaks.missing()) == ({}, {})

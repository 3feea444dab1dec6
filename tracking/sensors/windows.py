"""Summary of the sensors over a timed window: means, greatest values, energy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tracking.nvml import THROTTLES
from tracking.sensors.sampler import Sample

RISES = 3
# Metric by reading of the processor and of GPUs.
MEANS = {
    "utilization_percentage": "utilization_percent",
    "temperature_celsius": "temperature_celsius",
    "clock_megahertz": "clock_megahertz",
}
UNREAD = "the timed window ended before the sensors were read; choose a shorter sensor_seconds"


@dataclass(frozen=True)
class Window:
    """Wall-clock time in which something was timed.

    Attributes:
        prefix: Goes before the names of its metrics: empty, or `inference/`.
        pauses: Begin and end of each time, in order, that is not part of the window, such as
            validation in a training.
    """

    prefix: str
    start_seconds: float
    end_seconds: float
    examples: int
    pauses: Sequence[Sequence[float]] = ()

    @property
    def spans(self) -> list[tuple[float, float]]:
        """Begin and end of the window's parts between the pauses."""
        starts = [self.start_seconds, *(end for _, end in self.pauses)]
        ends = [*(start for start, _ in self.pauses), self.end_seconds]
        return list(zip(starts, ends, strict=True))

    @property
    def seconds(self) -> float:
        return sum(end - start for start, end in self.spans)

    def holds(self, moment: float) -> bool:
        """Return whether a moment is in the window and in none of its pauses.

        Args:
            moment: Seconds on the clock of the window.
        """
        return any(start <= moment <= end for start, end in self.spans)


@dataclass(frozen=True)
class Summary:
    """Metrics of a window.

    Attributes:
        metrics: Of sensors that are available.
        missing: Reason by metric that is not available.
        throttled: Share of the samples by reason for slower clocks.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    throttled: dict[str, float] = field(default_factory=dict)


def summarise(
    samples: Sequence[Sample],
    window: Window,
    *,
    gpus: Sequence[str] = (),
    ranges_joules: Mapping[str, float],
) -> Summary:
    """Return the summary of a window.

    Energy is the rise of the counters over the window, interpolated between samples. Of several
    GPUs energy, power and memory are sums, utilisation, clocks and temperature means. A counter
    that moved fewer than three times inside the window gives no energy.

    Args:
        gpus: Prefixes of the devices' keys.
    """
    inside = [sample for sample in samples if window.holds(sample.time_seconds)]
    keys = [f"system/{gpu}_clock_limits" for gpu in gpus]
    masks = [sample.values[key] for sample in inside for key in keys if key in sample.values]
    counts = Counter(name for mask in masks for bit, name in THROTTLES.items() if int(mask) & bit)
    joules, trouble = _joules(samples, window, ranges_joules)
    metrics, missing = _values(inside, gpus), dict[str, str]()
    if joules is not None:
        metrics |= {"energy/joules": joules, "power/watts_mean": joules / window.seconds}
        if window.examples:
            metrics["energy/joules_per_example"] = joules / window.examples
    if trouble:
        missing["energy"] = trouble
    if not inside:
        missing["sensors"] = UNREAD
    return Summary(
        {f"{window.prefix}{key}": value for key, value in metrics.items()},
        {f"{window.prefix}{name}": reason for name, reason in missing.items()},
        {name: count / len(masks) for name, count in sorted(counts.items())},
    )


def _joules(
    samples: Sequence[Sample], window: Window, ranges_joules: Mapping[str, float]
) -> tuple[float | None, str]:
    """Return the rise of all counters, or why it is not known; neither if there is no counter."""
    names = sorted({name for sample in samples for name in sample.counters_joules})
    total = 0.0
    for name in names:
        seconds, risen = _series(samples, name, ranges_joules.get(name, 0.0))
        rises = 0
        for start, end in window.spans:  # a move over a pause is not the window's
            inside = (seconds >= start) & (seconds <= end)
            rises += int(np.count_nonzero(np.diff(risen[inside]) > 0))
        if rises < RISES:
            moved = f"{name} moved {rises} times in the {window.seconds:.1f} s"
            return None, f"{moved}, {RISES} are needed"
        total += float(np.diff(np.interp(window.spans, seconds, risen)).sum())
    return (total if names else None), ""


def _values(inside: Sequence[Sample], gpus: Sequence[str]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, keys in {"cpu": ("cpu",), "gpu": gpus}.items():
        devices = [f"system/{key}" for key in keys]
        for reading, key in MEANS.items():
            values = _by_sample(inside, devices, reading)
            complete = [sample for sample in values if len(sample) == len(devices)]
            if complete:
                metrics[f"{name}/{key}_mean"] = float(np.mean(complete))
            if complete and reading == "temperature_celsius":
                metrics[f"{name}/{key}_max"] = max(map(max, values))
        if held := _by_sample(inside, devices, "process_memory_megabytes"):
            metrics["memory/peak_device_process_bytes"] = 1e6 * max(map(sum, held))
    return metrics


def _by_sample(inside: Sequence[Sample], devices: Sequence[str], reading: str) -> list[list[float]]:
    """Return a reading of the devices that have it, for each sample with any."""
    keys = [f"{device}_{reading}" for device in devices]
    values = [[sample.values[key] for key in keys if key in sample.values] for sample in inside]
    return [of_devices for of_devices in values if of_devices]


def _series(
    samples: Sequence[Sample], name: str, range_joules: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return seconds, and the rise of a counter since the first, without its wrap-arounds."""
    points = [
        (sample.time_seconds, sample.counters_joules[name])
        for sample in samples
        if name in sample.counters_joules
    ]
    seconds, joules = np.array(points, dtype=np.float64).T
    steps = np.diff(joules)
    steps[steps < 0] += range_joules
    return seconds, np.concatenate([[0.0], np.cumsum(steps)])

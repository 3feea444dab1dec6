"""What the sensors said while something was timed: means, greatest values, energy."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tracking.sensors.nvml import throttles
from tracking.sensors.sampler import Sample

RISES = 3
# A GPU is steady if for so long its clock moved by no more than this share, and its temperature by no more than this.
STEADY_SECONDS, CLOCK_BAND, CELSIUS_BAND = 1.0, 0.02, 1.0
UNSTEADY = "clock or temperature of the GPU moved until the timed window ended; more steps, and more warm-up, help"
UNREAD = "the timed window ended before the sensors were read; choose a shorter sensor_seconds"


@dataclass(frozen=True)
class Window:
    """Wall-clock time in which something was timed; `prefix` goes before its metrics' names: empty, or `inference/`.

    pauses: when, in order, something else was done in between, as validation in a training: began and ended.
    """

    prefix: str
    start_seconds: float
    end_seconds: float
    examples: int
    pauses: Sequence[Sequence[float]] = ()

    @property
    def spans(self) -> list[tuple[float, float]]:
        """The window without its pauses: began and ended."""
        began = [self.start_seconds, *(end for _, end in self.pauses)]
        return list(
            zip(began, [*(start for start, _ in self.pauses), self.end_seconds], strict=True)
        )

    @property
    def seconds(self) -> float:
        return sum(end - start for start, end in self.spans)

    def holds(self, moment: float) -> bool:
        return any(start <= moment <= end for start, end in self.spans)


@dataclass(frozen=True)
class Summary:
    """metrics: only of sensors that spoke. missing: what cannot be said -> why. throttled: what slowed the clocks -> share."""

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
    """gpus: the prefixes of the devices' keys. Energy is the counters' rise over the window, read off between samples.

    Of several GPUs energy, power and memory are sums, utilisation, clocks and temperature means.

    Counters are invalid, and that is said, where one was seen to move fewer than three times inside the window; it is also said
    where no sample was taken in the window.
    """
    inside = [one for one in samples if window.holds(one.time_seconds)]
    joules, trouble = _joules(samples, window, ranges_joules)
    metrics = _values(inside, gpus) | ({} if joules is None else _energy(joules, window))
    missing = {
        name: reason
        for name, reason in {"energy": trouble, "sensors": "" if inside else UNREAD}.items()
        if reason
    }
    return Summary(
        {f"{window.prefix}{key}": value for key, value in metrics.items()},
        {f"{window.prefix}{name}": reason for name, reason in missing.items()},
        _throttled(inside, gpus),
    )


def is_steady(samples: Sequence[Sample], gpus: Sequence[str]) -> bool:
    """Return whether clock and temperature of all GPUs have stayed where they are for a second, until the last sample."""
    since = samples[-1].time_seconds - STEADY_SECONDS if samples else 0.0
    before = [sample for sample in samples if sample.time_seconds <= since]
    recent = [*before[-1:], *(sample for sample in samples if sample.time_seconds > since)]
    return bool(before) and all(_stays(recent, f"system/{gpu}") for gpu in gpus)


def _stays(recent: Sequence[Sample], device: str) -> bool:
    clocks, celsius = (
        _of(recent, f"{device}_{reading}") for reading in ("clock_megahertz", "temperature_celsius")
    )
    is_clock_steady = not clocks or max(clocks) - min(clocks) <= CLOCK_BAND * max(clocks)
    return is_clock_steady and (not celsius or max(celsius) - min(celsius) <= CELSIUS_BAND)


def seconds_until_steady(
    samples: Sequence[Sample], window: Window, gpus: Sequence[str]
) -> float | None:
    """Return after how much of a window its GPUs were steady; None if they were not before its end."""
    times = [sample.time_seconds for sample in samples]
    for end, now in enumerate(times, start=1):
        begin = max(0, bisect_right(times, now - STEADY_SECONDS) - 1)
        if window.holds(now) and is_steady(samples[begin:end], gpus):
            return max(0.0, now - STEADY_SECONDS - window.start_seconds)
    return None


def _joules(
    samples: Sequence[Sample], window: Window, ranges_joules: Mapping[str, float]
) -> tuple[float | None, str]:
    """What all counters rose by, or why that cannot be said; neither where there is no counter."""
    names = sorted({name for one in samples for name in one.counters_joules})
    total = 0.0
    for name in names:
        seconds, risen = _series(samples, name, ranges_joules.get(name, 0.0))
        if (rises := _rises(seconds, risen, window)) < RISES:
            return (
                None,
                f"{name} moved {rises} times in the {window.seconds:.1f} s, {RISES} are needed",
            )
        total += float(np.diff(np.interp(window.spans, seconds, risen)).sum())
    return (total if names else None), ""


def _values(inside: Sequence[Sample], gpus: Sequence[str]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, keys in {"cpu": ("cpu",), "gpu": gpus}.items():
        devices = [f"system/{key}" for key in keys]
        if used := _mean_of(inside, devices, "utilization_percentage"):
            metrics[f"{name}/utilization_percent_mean"] = float(np.mean(used))
        if celsius := _mean_of(inside, devices, "temperature_celsius"):
            metrics[f"{name}/temperature_celsius_mean"] = float(np.mean(celsius))
            hottest = [
                max(_of(inside, f"{device}_temperature_celsius"), default=0.0) for device in devices
            ]
            metrics[f"{name}/temperature_celsius_max"] = max(hottest)
        if clocks := _mean_of(inside, devices, "clock_megahertz"):
            metrics[f"{name}/clock_megahertz_mean"] = float(np.mean(clocks))
        if held := [
            sum(values) for values in _by_sample(inside, devices, "process_memory_megabytes")
        ]:
            metrics["memory/peak_device_process_bytes"] = 1e6 * max(held)
    return metrics


def _mean_of(inside: Sequence[Sample], devices: Sequence[str], reading: str) -> list[float]:
    """Return the mean over devices in every sample that has them all."""
    return [
        float(np.mean(v)) for v in _by_sample(inside, devices, reading) if len(v) == len(devices)
    ]


def _by_sample(inside: Sequence[Sample], devices: Sequence[str], reading: str) -> list[list[float]]:
    keys = [f"{device}_{reading}" for device in devices]
    values = [[sample.values[key] for key in keys if key in sample.values] for sample in inside]
    return [of_devices for of_devices in values if of_devices]


def _throttled(inside: Sequence[Sample], gpus: Sequence[str]) -> dict[str, float]:
    masks = [mask for gpu in gpus for mask in _of(inside, f"system/{gpu}_clock_limits")]
    reasons = [throttles(mask) for mask in masks]
    return {
        name: sum(name in one for one in reasons) / len(masks)
        for name in sorted({name for one in reasons for name in one})
    }


def _energy(joules: float, window: Window) -> dict[str, float]:
    metrics = {"energy/joules": joules, "power/watts_mean": joules / window.seconds}
    return metrics | (
        {"energy/joules_per_example": joules / window.examples} if window.examples else {}
    )


def _series(
    samples: Sequence[Sample], name: str, range_joules: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds, and how far the counter had risen since the first; a wrap-around is undone."""
    told = [
        (one.time_seconds, one.counters_joules[name])
        for one in samples
        if name in one.counters_joules
    ]
    seconds, joules = np.array(told, dtype=np.float64).T
    steps = np.diff(joules)
    steps[steps < 0] += range_joules
    return seconds, np.concatenate([[0.0], np.cumsum(steps)])


def _rises(seconds: NDArray[np.float64], risen: NDArray[np.float64], window: Window) -> int:
    """How often the counter was seen to move inside the window; a move over a pause is none of its own."""
    told = 0
    for start, end in window.spans:
        inside = (seconds >= start) & (seconds <= end)
        told += int(np.count_nonzero(np.diff(risen[inside]) > 0))
    return told


def _of(inside: Sequence[Sample], key: str) -> list[float]:
    return [one.values[key] for one in inside if key in one.values]

"""Whether the machine is free and cool enough to measure on: others' work at the start, the idle baseline, cool-down."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from experiments.config import devices
from experiments.config.settings import OTHERS_LIMIT_PERCENT
from tracking import tuning
from tracking.sensors import Sensors, load

LOOK_SECONDS = 0.5
BASELINE_SECONDS = 2.0  # where there is a counter of energy; NVIDIA's move ten times a second or so
BAND_CELSIUS = 3.0
TEMPERATURE = "_temperature_celsius"
# Of the time: with more of it, pages are written out and read back while something is timed.
MEMORY_LIMIT_PERCENT = 10.0


@dataclass(frozen=True)
class MachineState:
    """State of the machine before the first cell.

    others_percent: of all CPUs, used by others; `busiest`: who used more than half of it. on_gpu: who computes there.
    celsius, watts: by sensor; empty where there is none. set_up: governor, turbo and so on; untold: what of it the kernel does
    not tell, and why. memory_pressure_percent: of the last ten seconds; None where the kernel does not count.
    """

    others_percent: float = 0.0
    busiest: str = ""
    on_gpu: tuple[str, ...] = ()
    celsius: Mapping[str, float] = field(default_factory=dict)
    watts: Mapping[str, float] = field(default_factory=dict)
    set_up: Mapping[str, str] = field(default_factory=dict)
    untold: Mapping[str, str] = field(default_factory=dict)
    memory_pressure_percent: float | None = None

    @property
    def troubles(self) -> tuple[str, ...]:
        """What makes measuring here doubtful, a line each."""
        found = []
        if self.others_percent > OTHERS_LIMIT_PERCENT:
            who = f", most of it by {self.busiest}" if self.busiest else ""
            found.append(
                f"the CPU was not free at the start: others used {self.others_percent:.0f} % of all CPUs{who}"
            )
        if self.on_gpu:
            found.append(
                f"the GPU was not free at the start: {', '.join(self.on_gpu)} computed there"
            )
        if (self.memory_pressure_percent or 0.0) > MEMORY_LIMIT_PERCENT:
            found.append(
                f"memory was short at the start: processes waited for it {self.memory_pressure_percent:.0f} % of the time"
            )
        return tuple(found)

    @property
    def tags(self) -> dict[str, str]:
        """How the machine was set up, for every run that is measured on it."""
        return {f"machine.{name}": told for name, told in self.set_up.items()}

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the campaign's run."""
        found = {"idle/others_cpu_percent": self.others_percent}
        found |= {f"idle/{name}/temperature_celsius": value for name, value in self.celsius.items()}
        return found | ({"idle/watts": sum(self.watts.values())} if self.watts else {})

    def __str__(self) -> str:
        parts = [f"CPU {self.others_percent:.0f} % used by others"]
        parts += [f"{name} {value:.0f} °C" for name, value in self.celsius.items()]
        parts += [f"{name} {value:.1f} W" for name, value in self.watts.items()]
        return ", ".join(parts)


class MachineProbe:
    """Watches the machine from its making to `idle`; what this process and its children do meanwhile is not others' work.

    workers: of the largest cell, which has a GPU for each.
    """

    def __init__(self, device: str, workers: int = 1) -> None:
        self._sensors = Sensors(
            device=device, gpus=devices.gpus_of_cell(device, workers, os.environ)
        )
        self._began = load.look()

    def idle(self) -> MachineState:
        """Waits until half a second has passed, and 2 s more where there is a counter of energy."""
        time.sleep(max(0.0, self._began.at + LOOK_SECONDS - time.monotonic()))
        found = load.between(self._began, load.look())
        on_gpu = tuple(f"{_name(pid)} ({pid})" for pid in self._sensors.on_gpu())
        told, untold = tuning.look()
        others, heat, watts = found.others_percent, celsius(self._sensors), self._watts()
        return MachineState(
            others, found.culprit(), on_gpu, heat, watts, told, untold, tuning.memory_pressure()
        )

    def _watts(self) -> dict[str, float]:
        before, began = self._sensors.counters(), time.monotonic()
        if not before:
            return {}
        time.sleep(BASELINE_SECONDS)
        after, seconds = self._sensors.counters(), time.monotonic() - began
        return {
            name: (after[name] - before[name]) / seconds
            for name in before
            if after.get(name, -1.0) > before[name]
        }


def celsius(sensors: Sensors) -> dict[str, float]:
    """Temperature in °C by sensor: `cpu`, `gpu_0`."""
    return {
        key.removesuffix(TEMPERATURE): value
        for key, value in sensors.values().items()
        if key.endswith(TEMPERATURE)
    }


def cool_down(
    start: Mapping[str, float],
    sensors: Sensors,
    limit_seconds: float,
    go_on: Callable[[str, float], bool],
) -> str:
    """Waits until every sensor is at most 3 °C above its start, and says how that went; nothing where nothing was too warm.

    go_on(what is too warm, seconds waited) is asked twice a second.
    """
    began, first = time.monotonic(), ""
    while warm := _too_warm(start, celsius(sensors)):
        first, waited = first or warm, time.monotonic() - began
        if waited >= limit_seconds or not go_on(warm, waited):
            return f"still {warm} after {waited:.0f} s"
        time.sleep(0.5)
    return f"{first}, waited {time.monotonic() - began:.0f} s" if first else ""


def _too_warm(start: Mapping[str, float], now: Mapping[str, float]) -> str:
    warm = [
        name for name, value in now.items() if name in start and value > start[name] + BAND_CELSIUS
    ]
    return ", ".join(f"{name} {now[name]:.0f} °C (started at {start[name]:.0f})" for name in warm)


def from_values(values: Mapping[str, Any]) -> MachineState:
    """MachineState from JSON values, as the journal keeps them."""
    return MachineState(**{**values, "on_gpu": tuple(values.get("on_gpu", ()))})


def _name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "a process"

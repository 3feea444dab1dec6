"""State of the machine: load by others, its setup, and cool-down between cells."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from experiments.config import devices
from experiments.config.settings import OTHERS_LIMIT_PERCENT
from tracking import tuning
from tracking.sensors import Sensors, load
from tracking.sensors.host import process_name
from tracking.sensors.load import CpuSnapshot

IDLE_SECONDS = 0.5
BAND_CELSIUS = 3.0
TEMPERATURE = "_temperature_celsius"
# Share of the time: above it pages are written out and read back while something is timed.
MEMORY_LIMIT_PERCENT = 10.0


@dataclass(frozen=True)
class MachineState:
    """State of the machine before the first cell.

    Attributes:
        others_percent: Use by others of the CPUs that this process may use.
        busiest: The process that used more than half of it, if any.
        on_gpu: Processes that compute on the GPUs.
        celsius: Temperature by sensor.
        setup: Governor, turbo and so on.
        not_available: Parts of the setup that the kernel does not report, with the reason.
        memory_pressure_percent: Share of the last ten seconds; None if not counted.
    """

    others_percent: float = 0.0
    busiest: str = ""
    on_gpu: tuple[str, ...] = ()
    celsius: Mapping[str, float] = field(default_factory=dict)
    setup: Mapping[str, str] = field(default_factory=dict)
    not_available: Mapping[str, str] = field(default_factory=dict)
    memory_pressure_percent: float | None = None

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> MachineState:
        """Return a stored state; another version may have stored other fields."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names})

    @property
    def troubles(self) -> tuple[str, ...]:
        lines = []
        if self.others_percent > OTHERS_LIMIT_PERCENT:
            process = f", most of it by {self.busiest}" if self.busiest else ""
            lines.append(
                f"other programs used {self.others_percent:.0f} % of the CPU at the start"
                f"{process}: times get a verdict if all sides meet the same load and each thread "
                "has a CPU"
            )
        if self.on_gpu:
            names = ", ".join(self.on_gpu)
            lines.append(
                f"{names} computed on the GPU at the start: times get a verdict if all sides meet "
                "the same load"
            )
        if (self.memory_pressure_percent or 0.0) > MEMORY_LIMIT_PERCENT:
            lines.append(
                "memory was short at the start: processes waited for it "
                f"{self.memory_pressure_percent:.0f} % of the time"
            )
        return tuple(lines)

    @property
    def tags(self) -> dict[str, str]:
        """Setup of the machine, for every run that is measured on it."""
        return {f"machine.{name}": text for name, text in self.setup.items()}

    @property
    def metrics(self) -> dict[str, float]:
        heat = {f"idle/{name}/temperature_celsius": value for name, value in self.celsius.items()}
        return {"idle/others_cpu_percent": self.others_percent, **heat}


def observe(began: CpuSnapshot, device: str, workers: int = 1) -> MachineState:
    """Return the state since a moment, half a second ago at least.

    Work of this process and its children does not count.

    Args:
        began: When the observation began.
        device: Of the cells.
        workers: Of the largest cell, which has a GPU for each.
    """
    time.sleep(max(0.0, began.at + IDLE_SECONDS - time.monotonic()))
    others = load.load_between(began, load.take_snapshot())
    sensors = Sensors(device=device, gpus=devices.gpus_of_cell(device, workers, os.environ))
    on_gpu = tuple(f"{process_name(pid)} ({pid})" for pid in sensors.on_gpu())
    setup, not_available = tuning.read_setup()
    return MachineState(
        others.others_percent,
        others.culprit(),
        on_gpu,
        celsius(sensors),
        setup,
        not_available,
        tuning.memory_pressure(),
    )


def celsius(sensors: Sensors) -> dict[str, float]:
    """Return the temperature in °C by sensor: `cpu`, `gpu_0`."""
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
    """Wait until every sensor is at most 3 °C above its start.

    Args:
        start: Temperature by sensor.
        sensors: Read twice a second.
        limit_seconds: The longest wait.
        go_on: Called with what is too warm and the seconds waited; False ends the wait.

    Returns:
        How it went; empty if nothing was too warm.
    """
    began, first = time.monotonic(), ""
    while True:
        warm = ", ".join(
            f"{name} {value:.0f} °C (started at {start[name]:.0f})"
            for name, value in celsius(sensors).items()
            if name in start and value > start[name] + BAND_CELSIUS
        )
        waited, first = time.monotonic() - began, first or warm
        if not warm:
            return f"{first}, waited {waited:.0f} s" if first else ""
        if waited >= limit_seconds or not go_on(warm, waited):
            return f"still {warm} after {waited:.0f} s"
        time.sleep(0.5)

"""Utilisation, memory, temperature, power and energy of a process and its machine: psutil, NVML and RAPL, whichever is there.

Keys below `system/` that MLflow's own sampler uses keep its names and units, so that the UI's system tab shows both alike.
A sensor that is missing is named with its reason in `missing`, never a zero.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

RAPL = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Sample:
    """What all sensors said at one moment; `counters_joules` rise until they wrap around."""

    time_seconds: float
    values: dict[str, float]
    counters_joules: dict[str, float]


class Sensors:
    """Reads everything that this machine has."""

    def __init__(self, pid: int | None = None) -> None:
        self.missing: dict[str, str] = {}
        self._process = psutil.Process(pid) if pid else None
        self._gpus = self._open_gpus()
        self._cpu_label = self._find_cpu_temperature()
        self._packages = self._find_rapl()
        self._network = psutil.net_io_counters()
        psutil.cpu_percent()

    def read(self) -> Sample:
        values = {**self._host(), **self._of_process()}
        counters: dict[str, float] = {}
        for index, handle in enumerate(self._gpus):
            self._gpu(index, handle, values, counters)
        for name, path in self._packages.items():
            counters[name] = int(path.read_text()) / 1e6
        return Sample(time.time(), {f"system/{key}": value for key, value in values.items()}, counters)

    def _host(self) -> dict[str, float]:
        memory, disk, network = psutil.virtual_memory(), psutil.disk_usage("/"), psutil.net_io_counters()
        values = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / 1e6,
            "system_memory_usage_percentage": memory.percent,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / 1e6,
            "disk_available_megabytes": disk.free / 1e6,
            "network_receive_megabytes": (network.bytes_recv - self._network.bytes_recv) / 1e6,
            "network_transmit_megabytes": (network.bytes_sent - self._network.bytes_sent) / 1e6,
        }
        if self._cpu_label:
            values["cpu_temperature_celsius"] = psutil.sensors_temperatures()[self._cpu_label][0].current
        return values

    def _of_process(self) -> dict[str, float]:
        if self._process is None:
            return {}
        try:
            with self._process.oneshot():
                rss, used = self._process.memory_info().rss, self._process.cpu_percent()
            return {"process_rss_megabytes": rss / 1e6, "process_cpu_percentage": used}
        except psutil.Error:  # it has just ended
            return {}

    def _gpu(self, index: int, handle: Any, values: dict[str, float], counters: dict[str, float]) -> None:
        import pynvml

        used = pynvml.nvmlDeviceGetMemoryInfo(handle).used
        values[f"gpu_{index}_memory_usage_megabytes"] = used / 1e6
        readings: dict[str, Callable[[], float]] = {
            f"gpu_{index}_utilization_percentage": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            f"gpu_{index}_temperature_celsius": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            f"gpu_{index}_power_usage_watts": lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1_000,
            f"gpu_{index}_clock_megahertz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        }
        for key, reading in readings.items():
            try:
                values[key] = float(reading())
            except pynvml.NVMLError as error:
                self.missing[key] = str(error)
        try:
            counters[f"gpu_{index}"] = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1_000
        except pynvml.NVMLError as error:
            self.missing[f"gpu_{index}_energy"] = str(error)

    def _open_gpus(self) -> list[Any]:
        try:
            import pynvml

            pynvml.nvmlInit()
            return [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except Exception as error:  # NVML raises a class of its own for every way of not being there
            self.missing["gpu"] = f"no NVIDIA device: {error}"
            return []

    def _find_cpu_temperature(self) -> str:
        found = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
        for label in ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz"):
            if found.get(label):
                return label
        self.missing["cpu_temperature"] = "the system shows no CPU temperature sensor"
        return ""

    def _find_rapl(self) -> dict[str, Path]:
        found = {}
        for zone in sorted(RAPL.glob("intel-rapl:[0-9]*")):
            if zone.name.count(":") == 1:
                try:
                    int((zone / "energy_uj").read_text())
                    found[zone.name] = zone / "energy_uj"
                except (OSError, ValueError) as error:
                    self.missing["cpu_energy"] = f"{zone.name} cannot be read: {error}"
        if not found:
            self.missing.setdefault("cpu_energy", "no RAPL counter in /sys/class/powercap")
        return found


class Sampler(threading.Thread):
    """Samples in the parent, at a stated period, so that the measured process does nothing for it."""

    def __init__(self, pid: int, period_seconds: float, on_sample: Callable[[Sample], None]) -> None:
        super().__init__(name="sensors", daemon=True)
        self._sensors = Sensors(pid)
        self._period_seconds = period_seconds
        self._on_sample = on_sample
        self._stop_now = threading.Event()
        self.samples: list[Sample] = []
        self.missing = self._sensors.missing

    def run(self) -> None:
        while not self._stop_now.wait(self._period_seconds):
            try:
                sample = self._sensors.read()
            except Exception as error:  # a driver's fault ends its readings, not the campaign
                self.missing["sensors"] = f"stopped after {len(self.samples)} samples: {error}"
                return
            self.samples.append(sample)
            self._on_sample(sample)

    def stop(self) -> None:
        self._stop_now.set()
        self.join()


def summarise(samples: list[Sample], start_seconds: float, end_seconds: float, examples: int) -> dict[str, float]:
    """Metrics over a window of wall-clock time; only of sensors that spoke inside it. Energy needs two samples of a counter."""
    inside = [sample for sample in samples if start_seconds <= sample.time_seconds <= end_seconds]

    def series(key: str) -> list[float]:
        return [sample.values[key] for sample in inside if key in sample.values]

    metrics: dict[str, float] = {}
    for name, key in {"cpu": "system/cpu_utilization_percentage", "gpu": "system/gpu_0_utilization_percentage"}.items():
        if values := series(key):
            metrics[f"{name}/utilization_percent_mean"] = float(np.mean(values))
    for name, key in {"cpu": "system/cpu_temperature_celsius", "gpu": "system/gpu_0_temperature_celsius"}.items():
        if values := series(key):
            metrics[f"{name}/temperature_celsius_mean"] = float(np.mean(values))
            metrics[f"{name}/temperature_celsius_max"] = max(values)
    if len(inside) > 1 and inside[0].counters_joules:
        joules = sum(_risen([sample.counters_joules[name] for sample in inside]) for name in inside[0].counters_joules)
        seconds = inside[-1].time_seconds - inside[0].time_seconds
        metrics["power/watts_mean"] = joules / seconds
        metrics["energy/joules"] = joules / seconds * (end_seconds - start_seconds)
        if examples:
            metrics["energy/joules_per_example"] = metrics["energy/joules"] / examples
    return metrics


def _risen(readings: list[float]) -> float:
    """How far a counter rose; a step in which it wrapped around counts nothing, rather than a negative amount."""
    return sum(max(0.0, later - earlier) for earlier, later in itertools.pairwise(readings))

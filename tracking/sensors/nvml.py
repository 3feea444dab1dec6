"""The only module that imports nvidia-ml-py: the NVIDIA device that a CUDA program sees first, as NVML tells."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# What slows a device's clocks down; its idling and what the user set (bits 0, 1, 8) do not count.
THROTTLES = {
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x200: "board limit",
    0x400: "reliability",
}


class Gpu:
    """missing: reading -> why the device does not give it. Raises pynvml.NVMLError where there is no device."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self.missing: dict[str, str] = {}
        self.index, self._handle = _visible()
        self._nvml = pynvml
        self._readings: dict[str, Callable[[], float]] = {
            "memory_usage_megabytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(self._handle).used / 1e6,
            "utilization_percentage": lambda: pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu,
            "temperature_celsius": lambda: pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU),
            "power_usage_watts": lambda: pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1_000,
            "clock_megahertz": lambda: pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM),
            "memory_clock_megahertz": lambda: pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_MEM),
            "clock_limits": self._clock_limits,
        }

    def read(self, pid: int | None) -> dict[str, float]:
        """What the device gives; `clock_limits` is NVML's mask of reasons, `process_memory_megabytes` that of `pid` alone."""
        values = {name: value for name, reading in self._readings.items() if (value := self._try(name, reading)) is not None}
        if pid is None:
            return values
        used = self.processes().get(pid)
        if used is None:
            self.missing["process_memory"] = "the driver does not report what this process holds"
            return values
        self.missing.pop("process_memory", None)
        return values | {"process_memory_megabytes": used / 1e6}

    def joules(self) -> float | None:
        """The device's energy counter since its driver was loaded."""
        return self._try("energy", lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1_000)

    def processes(self) -> dict[int, int | None]:
        """Process -> the bytes of the device that it holds, None where the driver does not say; of all who compute on it."""
        try:
            return {one.pid: one.usedGpuMemory for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)}
        except self._nvml.NVMLError as error:
            self.missing["process_memory"] = str(error)
            return {}

    def _clock_limits(self) -> float:
        try:
            return float(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
        except self._nvml.NVMLError_FunctionNotFound:  # drivers before 535
            return float(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))

    def _try(self, name: str, reading: Callable[[], float]) -> float | None:
        try:
            return float(reading())
        except self._nvml.NVMLError as error:
            self.missing[name] = str(error)
            return None


def free_share() -> float | None:
    """Return which share of the memory of the device that CUDA sees first is free; None if the driver does not report it."""
    try:
        import pynvml

        pynvml.nvmlInit()
        memory = pynvml.nvmlDeviceGetMemoryInfo(_visible()[1])
        return float(memory.free / memory.total)
    except Exception:  # NVML has an error class for each cause: the device or its memory is unknown
        return None


def throttles(mask: float) -> list[str]:
    """Names of what slows the clocks, of NVML's mask of reasons."""
    return [name for bit, name in THROTTLES.items() if int(mask) & bit]


def _visible() -> tuple[int, Any]:
    """Index and handle of the first device of CUDA_VISIBLE_DEVICES, a number or a UUID; of all devices, where it is not set."""
    import pynvml

    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        handle = pynvml.nvmlDeviceGetHandleByUUID(first)
        return pynvml.nvmlDeviceGetIndex(handle), handle
    index = int(first) if first.isdigit() else 0
    return index, pynvml.nvmlDeviceGetHandleByIndex(index)


def names() -> list[str]:
    """All devices with their driver; empty where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [f"{pynvml.nvmlDeviceGetName(handle)} (driver {driver})" for handle in handles]
    except Exception:  # NVML has one error class a cause, and every one of them means: no usable device
        return []

"""Readings of all sensors of this machine, once or in a thread of the parent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from models.devices import CPU
from tracking import clock, nvml
from tracking.sensors import rapl
from tracking.sensors.host import Host, process_name

# Reading of a GPU: the number of processes of others that compute on it.
OTHERS = "other_processes"
MEMORY = "process_memory"
UNREPORTED = "the driver does not report what the measured processes hold"
NONE_OF_OURS = "the driver lists no process of ours, so that it is not known who else computes"


@dataclass(frozen=True)
class Sample:
    """Values of all sensors at one moment; `counters_joules` rise until they wrap around."""

    time_seconds: float
    values: dict[str, float]
    counters_joules: dict[str, float]


class Sensors:
    """Sensors of the machine, of one process and of the GPUs in use.

    Attributes:
        device: the kind; on the CPU only the energy of processor packages counts.
        gpus: Prefixes of the GPUs' keys, such as `gpu_0`.
        others: Name by process id of others that were seen to compute on the GPUs in use.
        ranges_joules: Value at which a counter wraps around.
    """

    def __init__(self, pid: int | None = None, device: str = CPU, gpus: Sequence[str] = ()) -> None:
        """Open the sensors.

        Args:
            gpus: UUIDs of the GPUs that the process uses; if none is named, CUDA's first is read.
        """
        self._pid, self.device = pid, device
        self._host = Host(pid)
        self._missing: dict[str, str] = {}
        self._gpus: list[nvml.Gpu] = []
        try:
            self._gpus = nvml.open_devices(gpus)
        except Exception as error:  # NVML has an error class for each cause
            self._missing["gpu"] = f"no NVIDIA device: {error}"
        self.others = dict[int, str]()
        self.gpus = tuple(gpu.key for gpu in self._gpus)
        self._packages, reason = rapl.find_packages()
        if reason:
            self._missing["cpu_energy"] = reason
        self.ranges_joules = {package.name: package.range_joules for package in self._packages}

    @property
    def missing(self) -> dict[str, str]:
        missing = {**self._missing, **self._host.missing}
        for gpu in self._gpus:
            missing |= {f"{gpu.key}_{name}": why for name, why in gpu.missing.items() if why}
        return missing

    def follow(self, ranks: Mapping[int, int]) -> None:
        """Read these processes too, as `rank_N_process_…`. `ranks`: process id by rank."""
        self._host.follow(ranks)

    def read(self) -> Sample:
        now, counters = clock.now(), self.counters()
        return Sample(
            now, {f"system/{key}": value for key, value in self.values().items()}, counters
        )

    def values(self) -> dict[str, float]:
        """Return all but the counters, by MLflow's names without their `system/`."""
        values = self._host.read()
        for gpu in self._gpus:
            readings = gpu.read()
            if self._pid and self.device != CPU:
                readings |= self._read_holders(gpu)
            values |= {f"{gpu.key}_{name}": value for name, value in readings.items()}
        return values

    def _read_holders(self, gpu: nvml.Gpu) -> dict[str, float]:
        """Return what a cell and its descendants hold on a GPU, and how many others compute.

        Others are counted while one of ours computes. Process numbers are those of the driver's
        namespace: where it is not this one, ours are not among them, and others are not known.
        """
        holders = gpu.processes()
        lineages = {pid: lineage for pid in holders if (lineage := _lineage(pid))}
        held = [holders[pid] for pid, lineage in lineages.items() if self._pid in lineage]
        reported = [used for used in held if used is not None]
        others = [pid for pid in lineages if not {os.getpid(), self._pid} & set(lineages[pid])]
        readings: dict[str, float] = {}
        if held:
            gpu.missing[MEMORY] = UNREPORTED if len(reported) < len(held) else ""
        else:  # before they use the GPU, and after their end
            gpu.missing.setdefault(MEMORY, UNREPORTED)
        if held and not gpu.missing[MEMORY]:
            readings["process_memory_megabytes"] = sum(reported) / 1e6
        if len(others) < len(lineages):
            gpu.missing[OTHERS] = ""
            self.others |= {pid: process_name(pid) for pid in others if pid not in self.others}
            readings[OTHERS] = float(len(others))
        else:
            gpu.missing.setdefault(OTHERS, NONE_OF_OURS)
        return readings

    def counters(self) -> dict[str, float]:
        """Return the joules so far, by counter."""
        counters = {package.name: package.joules() for package in self._packages}
        for gpu in self._gpus if self.device != CPU else ():
            if (joules := gpu.joules()) is not None:
                counters[gpu.key] = joules
        return counters

    def on_gpu(self) -> dict[int, int | None]:
        """Return the memory of every process that computes on a GPU.

        Returns:
            Bytes by process id, None if the driver does not report them.
        """
        return {pid: held for gpu in self._gpus for pid, held in gpu.processes().items()}


def _lineage(pid: int) -> tuple[int, ...]:
    """Return a process's id, those of its ancestors, and that of its session.

    Empty if there is no such process.
    """
    try:
        parents = psutil.Process(pid).parents()
        return (pid, *(parent.pid for parent in parents), os.getsid(pid))
    except (psutil.Error, OSError):
        return ()


class Sampler(threading.Thread):
    """Thread that samples at a period, at its start and at its end."""

    def __init__(
        self, sensors: Sensors, period_seconds: float, on_sample: Callable[[Sample], None]
    ) -> None:
        super().__init__(name="sensors", daemon=True)
        self.sensors = sensors
        self._period_seconds = period_seconds
        self._on_sample = on_sample
        self._stop_now = threading.Event()
        self.samples: list[Sample] = []
        self.trouble = ""

    @property
    def missing(self) -> dict[str, str]:
        return {**self.sensors.missing, **({"sensors": self.trouble} if self.trouble else {})}

    def run(self) -> None:
        try:
            self._sample()
            while not self._stop_now.wait(self._period_seconds):
                self._sample()
            self._sample()
        except Exception as error:  # a driver's fault ends its readings, not the campaign
            self.trouble = f"stopped after {len(self.samples)} samples: {error}"

    def _sample(self) -> None:
        sample = self.sensors.read()
        self.samples.append(sample)
        self._on_sample(sample)

    def stop(self) -> None:
        self._stop_now.set()
        self.join()

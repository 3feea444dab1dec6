"""Everything that this machine has, read at one moment, and again and again in a thread of the parent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import psutil

from tracking import clock
from tracking.sensors import nvml, rapl
from tracking.sensors.host import Host

# Reading of a GPU: how many processes of others compute on it.
OTHERS = "other_processes"


@dataclass(frozen=True)
class Sample:
    """What all sensors said at one moment; `counters_joules` rise until they wrap around."""

    time_seconds: float
    values: dict[str, float]
    counters_joules: dict[str, float]


class Sensors:
    """Sensors of the machine, of one process and of the GPUs in use.

    Attributes:
        device: whose energy is counted; that of the processor's packages always, that of GPUs on `cuda` only.
        gpus: the prefixes of the GPUs' keys, such as `gpu_0`; empty if there is none.
        others: process id -> name of every other process that was seen to compute on the GPUs in use.
        ranges_joules: where a counter wraps around.
    """

    def __init__(
        self, pid: int | None = None, device: str = "cpu", gpus: Sequence[str] = ()
    ) -> None:
        """Open the sensors.

        Args:
            gpus: UUIDs of the GPUs that the process uses; if none is named, the first that CUDA sees is read.
        """
        self._pid, self.device = pid, device
        self._host = Host(pid)
        self._missing: dict[str, str] = {}
        self._gpus = self._open_gpus(gpus)
        self.others = dict[int, str]()
        self.gpus = tuple(gpu.key for gpu in self._gpus)
        self._packages, reason = rapl.find()
        if reason:
            self._missing["cpu_energy"] = reason
        self.ranges_joules = {package.name: package.range_joules for package in self._packages}

    @property
    def missing(self) -> dict[str, str]:
        """Sensor -> why it is not there."""
        of_gpus = {
            f"{gpu.key}_{name}": why
            for gpu in self._gpus
            for name, why in gpu.missing.items()
            if why
        }
        return {**self._missing, **self._host.missing, **of_gpus}

    def follow(self, ranks: Mapping[int, int]) -> None:
        """Reads these processes as well, as `rank_N_process_…`. ranks: rank -> process id."""
        self._host.follow(ranks)

    def read(self) -> Sample:
        now = clock.now()
        counters = self.counters()
        return Sample(
            now, {f"system/{key}": value for key, value in self.values().items()}, counters
        )

    def values(self) -> dict[str, float]:
        """Everything but the counters, by MLflow's names without their `system/`."""
        found = self._host.read()
        for gpu in self._gpus:
            holders = gpu.processes() if self.device == "cuda" else {}
            read = gpu.read(holders, self._pid if self.device == "cuda" else None) | self._others(
                gpu, holders
            )
            found |= {f"{gpu.key}_{name}": value for name, value in read.items()}
        return found

    def _others(self, gpu: nvml.Gpu, holders: Collection[int]) -> dict[str, float]:
        """Return how many processes of others compute on a GPU, while one of ours does.

        Numbers of processes are those of the driver's namespace: where it is not this one, ours are not among them,
        and nothing is said of others.
        """
        if not self._pid or self.device != "cuda":
            return {}
        are_ours = {pid: is_ours for pid in holders if (is_ours := self._is_ours(pid)) is not None}
        if not any(are_ours.values()):
            gpu.missing.setdefault(
                OTHERS,
                "the driver lists no process of ours, so that it is not known who else computes",
            )
            return {}
        gpu.missing[OTHERS] = ""
        self.others |= {
            pid: _name(pid)
            for pid, is_ours in are_ours.items()
            if not is_ours and pid not in self.others
        }
        return {OTHERS: float(sum(not is_ours for is_ours in are_ours.values()))}

    def _is_ours(self, pid: int) -> bool | None:
        """Return whether this process started another, by way of whomever; None if there is none of this number."""
        try:
            parents = [parent.pid for parent in psutil.Process(pid).parents()]
            return os.getpid() in (pid, *parents) or os.getsid(pid) == self._pid
        except (psutil.Error, OSError):
            return None

    def counters(self) -> dict[str, float]:
        """Joules so far, by counter."""
        found = {package.name: package.joules() for package in self._packages}
        for gpu in self._gpus if self.device == "cuda" else ():
            if (joules := gpu.joules()) is not None:
                found[gpu.key] = joules
        return found

    def on_gpu(self) -> dict[int, int | None]:
        """GPU memory in bytes by process."""
        return {pid: held for gpu in self._gpus for pid, held in gpu.processes().items()}

    def _open_gpus(self, uuids: Sequence[str]) -> list[nvml.Gpu]:
        try:
            return nvml.opened(uuids)
        except (
            Exception
        ) as error:  # NVML raises a class of its own for every way of not being there
            self._missing["gpu"] = f"no NVIDIA device: {error}"
            return []


def _name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "a process"


class Sampler(threading.Thread):
    """Samples at a stated period from its start to its end, both included; the measured process does nothing for it."""

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
        """Sensor -> why it is not there, or no longer."""
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

"""Use of the processors by this program with all that it started, and by all others.

Counters are read at two moments, and not in between, so that reading costs the measured work
nothing.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tracking.cpus import parse_list, text
from tracking.records import OTHERS_CPU, OVERSUBSCRIBED

# The kernel counts in steps of 10 ms: over less time, one step of another program is more than
# 2 % of two CPUs.
SHORTEST_SECONDS = 0.2
NAME_CHARACTERS = 40
# Of a CPU: what the parent and helper threads use besides the threads that compute.
SLACK_THREADS = 0.1

# Number and start of a process, since numbers are used again.
Process = tuple[int, float]


@dataclass(frozen=True)
class CpuSnapshot:
    """Counters since the machine started, in seconds, of the CPUs that this process may run on.

    Attributes:
        cpus: Number of these CPUs.
        counted: Their time, idle or not.
        busy: CPU time in use, with what a virtual machine's host took away (`stolen`).
        ours: Use by this program and all that it started, ended processes included.
        others: Use by each other process.
    """

    at: float
    cpus: int
    counted: float
    busy: float
    stolen: float
    ours: float
    others: Mapping[Process, float]


def take_snapshot() -> CpuSnapshot:
    processes = {
        process.pid: process.info
        for process in psutil.process_iter(["ppid", "cpu_times", "create_time"])
    }
    ours = _started_by(os.getpid(), {pid: info["ppid"] for pid, info in processes.items()})
    readable = {pid: info for pid, info in processes.items() if info["cpu_times"]}
    times = psutil.cpu_times(percpu=True)
    affinity = os.sched_getaffinity(0)
    if len(times) > len(affinity):  # else a container shows its own, under other numbers
        online = sorted(parse_list(text(Path("/sys/devices/system/cpu/online"))))
        times = [cpu for number, cpu in zip(online, times, strict=False) if number in affinity]

    def total(*fields: str) -> float:
        return sum(getattr(cpu, field, 0.0) for cpu in times for field in fields)

    # guests are counted as user time already
    counted = sum(map(sum, times)) - total("guest", "guest_nice")
    return CpuSnapshot(
        at=time.monotonic(),
        cpus=len(times),
        counted=counted,
        busy=counted - total("idle", "iowait"),
        stolen=total("steal"),
        ours=sum(sum(info["cpu_times"][:4]) for pid, info in readable.items() if pid in ours),
        others={
            (pid, info["create_time"]): sum(info["cpu_times"][:2])
            for pid, info in readable.items()
            if pid not in ours
        },
    )


def _started_by(pid: int, parents: Mapping[int, int | None]) -> set[int]:
    """Return a process and its descendants, and orphans that stayed in their session."""
    sessions: dict[int, int] = {}
    for child in parents:
        with suppress(OSError):  # it has ended
            sessions[child] = os.getsid(child)
    family, generation = {pid}, {pid}
    while generation:
        generation = {
            child
            for child in parents
            if child not in family and {parents[child], sessions.get(child)} & family
        }
        family |= generation
    return family


@dataclass(frozen=True)
class Load:
    """Use of the processors between two moments, or in several such spans; see `CpuSnapshot`.

    Attributes:
        cpus: Number of CPUs that this process may run on.
        ours: Seconds that this program used.
        foreign: Seconds that others used.
        used: Seconds that each other process used.
    """

    seconds: float = 0.0
    cpus: int = 1
    counted: float = 0.0
    ours: float = 0.0
    foreign: float = 0.0
    stolen: float = 0.0
    used: Mapping[Process, float] = field(default_factory=dict)

    @property
    def trouble(self) -> str:
        """Reason for which the load is not known; empty if it is."""
        if self.seconds >= SHORTEST_SECONDS and self.counted >= self.seconds * self.cpus / 2:
            return ""
        return (
            f"the system's counters of CPU time moved by {self.counted:.1f} s in "
            f"{self.seconds:.2f} s of {self.cpus} CPUs; {SHORTEST_SECONDS} s are needed"
        )

    @property
    def others_percent(self) -> float:
        return self._percent(self.foreign)

    def metrics(self, threads: int = 0) -> dict[str, float]:
        """Return percentages of these CPUs over the spans; empty if the load is not known.

        Args:
            threads: Of the measured work; 0: as many as its use of the CPUs needs, at least one.
        """
        if self.trouble:
            return {}
        threads = threads or max(1, math.ceil(self.ours / self.seconds - SLACK_THREADS))
        needed = self.others_percent + 100 * min(threads, self.cpus) / self.cpus
        return {
            OTHERS_CPU: self.others_percent,
            OVERSUBSCRIBED: max(0.0, needed - 100),
            "machine/steal_percent": self._percent(self.stolen),
        }

    @property
    def missing(self) -> dict[str, str]:
        return {"machine_load": self.trouble} if self.trouble else {}

    def culprit(self) -> str:
        """Return the program and process that used more than half of what others used.

        Empty if there is none, or it has ended. Arguments are left out: they may be private.
        """
        for (pid, began), seconds in self.used.items():
            if not seconds > self.foreign / 2 > 0:
                continue
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                program = Path((process.cmdline() or [process.name()])[0]).name
                is_here = process.cpu_num() in os.sched_getaffinity(0)
                if program and is_here and process.create_time() == began:
                    return f"{program[:NAME_CHARACTERS]} ({pid})"
        return ""

    def _percent(self, seconds: float) -> float:
        return min(100.0, 100 * seconds / (self.seconds * self.cpus)) if self.seconds else 0.0


def load_between(first: CpuSnapshot, last: CpuSnapshot) -> Load:
    """Return the load between two moments. All use of a process that began meanwhile counts."""
    used = {process: time - first.others.get(process, 0.0) for process, time in last.others.items()}
    return Load(
        seconds=last.at - first.at,
        cpus=max(1, last.cpus),
        counted=last.counted - first.counted,
        ours=last.ours - first.ours,
        foreign=max(0.0, (last.busy - first.busy) - (last.ours - first.ours)),
        stolen=max(0.0, last.stolen - first.stolen),
        used={process: seconds for process, seconds in used.items() if seconds > 0},
    )


def combine_loads(loads: Iterable[Load]) -> Load:
    spans = list(loads)
    used: Counter[Process] = Counter()
    for load in spans:
        used.update(load.used)  # type: ignore[arg-type]  # a Counter takes any number
    return Load(
        seconds=sum(load.seconds for load in spans),
        cpus=max((load.cpus for load in spans), default=1),
        counted=sum(load.counted for load in spans),
        ours=sum(load.ours for load in spans),
        foreign=sum(load.foreign for load in spans),
        stolen=sum(load.stolen for load in spans),
        used=used,
    )

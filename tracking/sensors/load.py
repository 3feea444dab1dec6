"""Who uses the processors: this program with all that it started, and everyone else. Counters, read at two moments.

Nothing is read in between, so that looking costs the measured work nothing.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tracking import cpus
from tracking.records import OTHERS_CPU

# The kernel counts in steps of 10 ms: over less than this, one step of another program is more than 2 % of two CPUs.
SHORTEST_SECONDS = 0.2
NAME_CHARACTERS = 40
ROOT = Path("/")

# A process is known by its number and when it began: numbers are used again.
Process = tuple[int, float]


@dataclass(frozen=True)
class Moment:
    """Counters since the machine began, in seconds; None where the kernel keeps none.

    counted: CPU time of all CPUs, idle or not. busy: of anyone, with what a virtual machine's host took away (`stolen`).
    ours: of this program, what it started, and what of that has ended. others: own use of every other process.
    waited: time in which any process waited for a CPU. throttled: CPU time that the cgroup's quota held back.
    too_hot: how often a core was slowed for its temperature.
    """

    at: float
    counted: float
    busy: float
    stolen: float
    ours: float
    others: Mapping[Process, float]
    waited: float | None = None
    throttled: float | None = None
    too_hot: float | None = None


def look(root: Path = ROOT) -> Moment:
    """The counters now. root: of the file system that holds `proc` and `sys`."""
    everyone = {one.pid: one.info for one in psutil.process_iter(["ppid", "cpu_times", "create_time"])}
    own = _started_by(os.getpid(), {pid: info["ppid"] for pid, info in everyone.items()})
    known = {pid: info for pid, info in everyone.items() if info["cpu_times"]}
    times = psutil.cpu_times()
    waiting = getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted as user time already
    return Moment(
        at=time.monotonic(),
        counted=sum(times) - guests,
        busy=sum(times) - guests - times.idle - waiting,
        stolen=getattr(times, "steal", 0.0),
        ours=sum(sum(info["cpu_times"][:4]) for pid, info in known.items() if pid in own),
        others={(pid, info["create_time"]): sum(info["cpu_times"][:2]) for pid, info in known.items() if pid not in own},
        waited=_waited(root),
        throttled=_throttled(root),
        too_hot=_too_hot(root),
    )


def _started_by(pid: int, parents: Mapping[int, int | None]) -> set[int]:
    """A process and what it started; also what has lost its parent since, as long as it stayed in its session."""
    sessions = {one: _session(one) for one in parents}
    found, more = {pid}, {pid}
    while more:
        more = {one for one in parents if one not in found and (parents[one] in found or sessions[one] in found)}
        found |= more
    return found


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


@dataclass(frozen=True)
class Load:
    """What happened between two moments, or in several such spans together. Seconds; see `Moment`. cpus: of the machine."""

    seconds: float = 0.0
    cpus: int = 1
    counted: float = 0.0
    foreign: float = 0.0
    stolen: float = 0.0
    waited: float | None = None
    throttled: float | None = None
    too_hot: float | None = None
    used: Mapping[Process, float] = field(default_factory=dict)

    @property
    def trouble(self) -> str:
        """Why nothing can be said; empty where something can."""
        if self.seconds < SHORTEST_SECONDS:
            return f"the timed {self.seconds:.2f} s are too short for counters of 10 ms; {SHORTEST_SECONDS} s are needed"
        if self.counted < self.seconds * self.cpus / 2:
            return f"the system's counters of CPU time moved by {self.counted:.1f} s in {self.seconds:.1f} s of {self.cpus} CPUs"
        return ""

    @property
    def others_percent(self) -> float:
        """Of all CPUs, by others."""
        return self._percent(self.foreign)

    @property
    def metrics(self) -> dict[str, float]:
        """Percent of all CPUs over the spans; only what the kernel counts."""
        if self.trouble:
            return {}
        found = {
            OTHERS_CPU: self.others_percent,
            "machine/steal_percent": self._percent(self.stolen),
            "machine/pressure_percent": None if self.waited is None else min(100.0, 100 * self.waited / self.seconds),
            "machine/throttled_percent": None if self.throttled is None else self._percent(self.throttled),
            "machine/thermal_throttles": self.too_hot,
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def missing(self) -> dict[str, str]:
        """What cannot be said, and why."""
        if self.trouble:
            return {"machine_load": self.trouble}
        reasons = {
            "machine_pressure": (self.waited, "the kernel keeps no /proc/pressure/cpu"),
            "machine_throttled": (self.throttled, "no cgroup of this process has a cpu.stat that counts it"),
            "machine_thermal_throttles": (self.too_hot, "the kernel keeps no thermal_throttle counts"),
        }
        return {name: reason for name, (value, reason) in reasons.items() if value is None}

    def culprit(self) -> str:
        """The program that used more than half of what others used, with its process; empty where no process did, or it is gone.

        The program's name alone: arguments may hold what is nobody's business.
        """
        (pid, began), most = max(self.used.items(), key=lambda one: one[1], default=((0, 0.0), 0.0))
        if most <= self.foreign / 2 or not self.foreign:
            return ""
        try:
            process = psutil.Process(pid)
            program = Path((process.cmdline() or [process.name()])[0]).name
            return f"{program[:NAME_CHARACTERS]} ({pid})" if program and process.create_time() == began else ""
        except psutil.Error:
            return ""

    def _percent(self, seconds: float) -> float:
        return min(100.0, 100 * seconds / (self.seconds * self.cpus)) if self.seconds else 0.0


def between(first: Moment, last: Moment) -> Load:
    """What happened meanwhile. A process that was not there at first began in between, and all of its use counts."""
    others = {one: used - first.others.get(one, 0.0) for one, used in last.others.items()}
    return Load(
        seconds=last.at - first.at,
        cpus=psutil.cpu_count() or 1,
        counted=last.counted - first.counted,
        foreign=max(0.0, (last.busy - first.busy) - (last.ours - first.ours)),
        stolen=max(0.0, last.stolen - first.stolen),
        waited=_rise(first.waited, last.waited),
        throttled=_rise(first.throttled, last.throttled),
        too_hot=_rise(first.too_hot, last.too_hot),
        used={one: used for one, used in others.items() if used > 0},
    )


def together(loads: Iterable[Load]) -> Load:
    """Several spans as one."""
    found = list(loads)
    if not found:
        return Load()
    used: Counter[Process] = Counter()
    for one in found:
        used.update(one.used)  # type: ignore[arg-type]  # a Counter takes any number
    return Load(
        seconds=sum(one.seconds for one in found),
        cpus=found[0].cpus,
        counted=sum(one.counted for one in found),
        foreign=sum(one.foreign for one in found),
        stolen=sum(one.stolen for one in found),
        waited=_sum(one.waited for one in found),
        throttled=_sum(one.throttled for one in found),
        too_hot=_sum(one.too_hot for one in found),
        used=used,
    )


def _rise(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None else max(0.0, last - first)


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [one for one in found if one is not None]
    return sum(known) if len(known) == len(found) else None


def _waited(root: Path) -> float | None:
    """Pressure stall information: `some` of the CPU, kept in microseconds."""
    for line in cpus.text(root / "proc/pressure/cpu").splitlines():
        kind, *fields = line.split()
        if kind == "some":
            return next((int(one.removeprefix("total=")) / 1e6 for one in fields if one.startswith("total=")), None)
    return None


def _throttled(root: Path) -> float | None:
    """The most that this process's cgroup or one above it was held back: version 2 counts in µs, version 1 in ns."""
    counters = {"throttled_usec": 1e6, "throttled_time": 1e9}
    found = []
    for folder in cpus.groups(root):
        for line in cpus.text(folder / "cpu.stat").splitlines():
            name, _, value = line.partition(" ")
            if name in counters and value.isdigit():
                found.append(int(value) / counters[name])
    return max(found, default=None)


def _too_hot(root: Path) -> float | None:
    counts = [
        cpus.text(one).strip() for one in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    ]
    known = [int(one) for one in counts if one.isdigit()]
    return float(sum(known)) if known else None

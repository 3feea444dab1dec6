"""Use of the processors by this program with all that it started, and by everyone else.

Counters are read at two moments. Nothing is read in between, so that looking costs the measured
work nothing.
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
# Counters that not every kernel keeps, and what is said where it does not.
REASONS = {
    "pressure": "the kernel keeps no /proc/pressure/cpu",
    "throttled": "no cgroup of this process has a cpu.stat that counts it",
    "thermal_throttles": "the kernel keeps no thermal_throttle counts",
}

# A process is known by its number and when it began: numbers are used again.
Process = tuple[int, float]


@dataclass(frozen=True)
class Moment:
    """Counters since the machine began, in seconds.

    Attributes:
        counted: CPU time of all CPUs, idle or not.
        busy: Of anyone, with what a virtual machine's host took away (`stolen`).
        ours: Of this program, what it started, and what of that has ended.
        others: Use of every other process.
        kept: Those of `REASONS` that the kernel keeps: time in which any process waited for a CPU,
            CPU time that the cgroup's quota held back, how often a core was slowed for its heat.
    """

    at: float
    counted: float
    busy: float
    stolen: float
    ours: float
    others: Mapping[Process, float]
    kept: Mapping[str, float] = field(default_factory=dict)


def look(root: Path = ROOT) -> Moment:
    """Return the counters now. root: of the file system that holds `proc` and `sys`."""
    everyone = {
        one.pid: one.info for one in psutil.process_iter(["ppid", "cpu_times", "create_time"])
    }
    own = _started_by(os.getpid(), {pid: info["ppid"] for pid, info in everyone.items()})
    known = {pid: info for pid, info in everyone.items() if info["cpu_times"]}
    times = psutil.cpu_times()
    waiting = getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(
        times, "guest_nice", 0.0
    )  # counted as user time already
    kept = {
        "pressure": _waited(root),
        "throttled": _throttled(root),
        "thermal_throttles": _too_hot(root),
    }
    return Moment(
        at=time.monotonic(),
        counted=sum(times) - guests,
        busy=sum(times) - guests - times.idle - waiting,
        stolen=getattr(times, "steal", 0.0),
        ours=sum(sum(info["cpu_times"][:4]) for pid, info in known.items() if pid in own),
        others={
            (pid, info["create_time"]): sum(info["cpu_times"][:2])
            for pid, info in known.items()
            if pid not in own
        },
        kept={name: value for name, value in kept.items() if value is not None},
    )


def _started_by(pid: int, parents: Mapping[int, int | None]) -> set[int]:
    """Return a process and what it started; also what lost its parent since and stayed in its session."""
    sessions = {child: _session(child) for child in parents}
    found, more = {pid}, {pid}
    while more:
        more = {
            child
            for child in parents
            if child not in found and {parents[child], sessions[child]} & found
        }
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
    kept: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[Process, float] = field(default_factory=dict)

    @property
    def trouble(self) -> str:
        """Why nothing can be said; empty if something can."""
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
        }
        if "pressure" in self.kept:
            found["machine/pressure_percent"] = min(
                100.0, 100 * self.kept["pressure"] / self.seconds
            )
        if "throttled" in self.kept:
            found["machine/throttled_percent"] = self._percent(self.kept["throttled"])
        if "thermal_throttles" in self.kept:
            found["machine/thermal_throttles"] = self.kept["thermal_throttles"]
        return found

    @property
    def missing(self) -> dict[str, str]:
        """What cannot be said, and why."""
        if self.trouble:
            return {"machine_load": self.trouble}
        return {
            f"machine_{name}": reason for name, reason in REASONS.items() if name not in self.kept
        }

    def culprit(self) -> str:
        """Return the program that used more than half of what others used, with its process; empty if none did, or it is gone.

        The program's name alone: arguments may be private.
        """
        (pid, began), most = max(
            self.used.items(), key=lambda item: item[1], default=((0, 0.0), 0.0)
        )
        if most <= self.foreign / 2 or not self.foreign:
            return ""
        try:
            process = psutil.Process(pid)
            program = Path((process.cmdline() or [process.name()])[0]).name
            return (
                f"{program[:NAME_CHARACTERS]} ({pid})"
                if program and process.create_time() == began
                else ""
            )
        except psutil.Error:
            return ""

    def _percent(self, seconds: float) -> float:
        return min(100.0, 100 * seconds / (self.seconds * self.cpus)) if self.seconds else 0.0


def between(first: Moment, last: Moment) -> Load:
    """Return what happened meanwhile. Of a process that began in between all use counts."""
    others = {
        process: used - first.others.get(process, 0.0) for process, used in last.others.items()
    }
    return Load(
        seconds=last.at - first.at,
        cpus=psutil.cpu_count() or 1,
        counted=last.counted - first.counted,
        foreign=max(0.0, (last.busy - first.busy) - (last.ours - first.ours)),
        stolen=max(0.0, last.stolen - first.stolen),
        kept={
            name: max(0.0, last.kept[name] - first.kept[name])
            for name in first.kept.keys() & last.kept.keys()
        },
        used={process: used for process, used in others.items() if used > 0},
    )


def together(loads: Iterable[Load]) -> Load:
    """Return several spans as one."""
    found = list(loads)
    if not found:
        return Load()
    used: Counter[Process] = Counter()
    for load in found:
        used.update(load.used)  # type: ignore[arg-type]  # a Counter takes any number
    everywhere = set.intersection(*(set(load.kept) for load in found))
    return Load(
        seconds=sum(load.seconds for load in found),
        cpus=found[0].cpus,
        counted=sum(load.counted for load in found),
        foreign=sum(load.foreign for load in found),
        stolen=sum(load.stolen for load in found),
        kept={name: sum(load.kept[name] for load in found) for name in everywhere},
        used=used,
    )


def _waited(root: Path) -> float | None:
    """Return the pressure stall information: `some` of the CPU, kept in microseconds."""
    for line in cpus.text(root / "proc/pressure/cpu").splitlines():
        kind, *fields = line.split()
        if kind == "some":
            return next(
                (
                    int(text.removeprefix("total=")) / 1e6
                    for text in fields
                    if text.startswith("total=")
                ),
                None,
            )
    return None


def _throttled(root: Path) -> float | None:
    """Return the most that this process's cgroup or one above it was held back: version 2 counts in µs, version 1 in ns."""
    counters = {"throttled_usec": 1e6, "throttled_time": 1e9}
    found = []
    for folder in cpus.groups(root):
        for line in cpus.text(folder / "cpu.stat").splitlines():
            name, _, value = line.partition(" ")
            if name in counters and value.isdigit():
                found.append(int(value) / counters[name])
    return max(found, default=None)


def _too_hot(root: Path) -> float | None:
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    known = [int(text) for text in (cpus.text(file).strip() for file in files) if text.isdigit()]
    return float(sum(known)) if known else None

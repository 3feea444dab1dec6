"""How many CPUs this process may use: those of its affinity, and no more than the quota of its cgroup."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Where the kernel's documentation mounts the controllers: version 2, then version 1 alone or with cpuacct.
VERSION_2, VERSION_1 = (
    ("sys/fs/cgroup", "sys/fs/cgroup/unified"),
    ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"),
)


@dataclass(frozen=True)
class Cpus:
    """cores: of the machine. affinity: those that the process may run on. quota: CPU seconds a second; None: no limit."""

    cores: int
    affinity: int
    quota: float | None

    @property
    def usable(self) -> int:
        """Threads that can compute at a time; of half a CPU nothing, since a thread that is stopped holds up the others."""
        return max(
            1, self.affinity if self.quota is None else min(self.affinity, math.floor(self.quota))
        )


def cpus(root: Path = Path("/")) -> Cpus:
    """root: of the file system that holds `proc` and `sys`."""
    cores = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return Cpus(cores, affinity, quota(root))


def cores(numbers: Iterable[int], root: Path = Path("/")) -> list[tuple[int, ...]]:
    """CPUs by the physical core that they are threads of, as far as the kernel tells: in order, each among `numbers`."""
    wanted, found = set(numbers), dict[int, tuple[int, ...]]()
    for number in sorted(wanted):
        folder = root / "sys/devices/system/cpu" / f"cpu{number}" / "topology"
        siblings = _numbers(text(folder / "thread_siblings_list")) & wanted
        found[number] = tuple(sorted(siblings | {number}))
    return list(dict.fromkeys(found.values()))


def _numbers(listed: str) -> set[int]:
    """The numbers of a list as the kernel writes it: `0,4-6`."""
    parts = [part.partition("-") for part in listed.strip().split(",") if part]
    return {
        number
        for low, dash, high in parts
        for number in range(int(low), int(high if dash else low) + 1)
    }


def quota(root: Path = Path("/")) -> float | None:
    """The smallest quota of this process's cgroup and those above it, CPU seconds a second; None where there is none."""
    found = [_version_2(one / "cpu.max") for one in _groups(root, "", VERSION_2)]
    found += [_version_1(one) for one in _groups(root, "cpu", VERSION_1)]
    return min((one for one in found if one is not None), default=None)


def groups(root: Path = Path("/")) -> Iterator[Path]:
    """The folders of the CPU controller, of this process's cgroup and of those above it, of both versions."""
    yield from _groups(root, "", VERSION_2)
    yield from _groups(root, "cpu", VERSION_1)


def _groups(root: Path, controller: str, mounts: tuple[str, ...]) -> Iterator[Path]:
    """The folders of a process's cgroup and of those above it. controller: empty in version 2.

    In a container the path may be that of the host, which is not mounted here: what is not there is passed over.
    """
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        inside = Path(path.lstrip("/"))
        for mount in mounts:
            yield from (root / mount / one for one in (inside, *inside.parents))


def _version_2(path: Path) -> float | None:
    limit, _, period = text(path).strip().partition(" ")
    return (
        int(limit) / int(period) if limit.isdigit() and period.isdigit() and int(period) else None
    )


def _version_1(folder: Path) -> float | None:
    limit, period = (text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    return (
        int(limit) / int(period) if limit.isdigit() and period.isdigit() and int(period) else None
    )  # -1: no limit


def text(path: Path) -> str:
    """What a file of the kernel's holds; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""

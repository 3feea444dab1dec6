"""CPUs that this process may use: those of its affinity, within the quota of its cgroup."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CGROUPS = "sys/fs/cgroup"


@dataclass(frozen=True)
class Cpus:
    """CPUs of a process.

    Attributes:
        cores: CPUs of the machine.
        affinity: CPUs that the process may run on.
        quota: CPU seconds per second, or None if there is no limit.
    """

    cores: int
    affinity: int
    quota: float | None

    @property
    def usable(self) -> int:
        """Threads that can compute at a time.

        A fraction of a CPU counts as none: a thread that is held back delays the others.
        """
        whole = self.affinity if self.quota is None else math.floor(self.quota)
        return max(1, min(self.affinity, whole))


def cpus(root: Path = Path("/")) -> Cpus:
    """Return the CPUs of this process. `root`: of the file system with `proc` and `sys`."""
    cores = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return Cpus(cores, affinity, quota(root))


def cores(numbers: Iterable[int], root: Path = Path("/")) -> list[tuple[int, ...]]:
    """Return CPUs grouped by the physical core whose threads they are.

    Args:
        numbers: The CPUs that are grouped; other threads of their cores are left out.
    """
    selected, groups = set(numbers), dict[tuple[int, ...], None]()
    for number in sorted(selected):
        folder = root / "sys/devices/system/cpu" / f"cpu{number}" / "topology"
        siblings = parse_list(text(folder / "thread_siblings_list")) & selected
        groups[tuple(sorted(siblings | {number}))] = None
    return list(groups)


def parse_list(text: str) -> set[int]:
    """Return the numbers of a list as the kernel writes it: `0,4-6`."""
    numbers = set[int]()
    for part in filter(None, text.strip().split(",")):
        low, dash, high = part.partition("-")
        numbers.update(range(int(low), int(high if dash else low) + 1))
    return numbers


def quota(root: Path = Path("/")) -> float | None:
    """Return the smallest CPU quota of this process's cgroup and those above it.

    In a container the path may be that of the host, which is not mounted: it is passed over.
    """
    quotas = []
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        # version 1 names controllers
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            place = root / CGROUPS / controllers / folder
            limit, _, period = " ".join(text(place / name).strip() for name in files).partition(" ")
            if limit.isdigit() and period.isdigit() and int(period):
                quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def text(path: Path) -> str:
    """Return the content of a file of the kernel's; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""

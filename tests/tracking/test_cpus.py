"""CPUs that a process may use: files of the kernel, and its affinity."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tracking.cpus import Cpus, cpus, quota

UNLIMITED = {"sys/fs/cgroup/cpu.max": "max 100000"}
IN_A_CONTAINER = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}
SLICE = "sys/fs/cgroup/user.slice"
IN_A_SLICE = {
    "proc/self/cgroup": "0::/user.slice/job.scope\n",
    **UNLIMITED,
    f"{SLICE}/cpu.max": "200000 100000\n",
    f"{SLICE}/job.scope/cpu.max": "max 100000\n",
}
TIGHTER_BELOW = {**IN_A_SLICE, f"{SLICE}/job.scope/cpu.max": "50000 100000\n"}
OF_THE_HOST = {
    "proc/self/cgroup": "0::/kubepods/pod1/c1\n",
    "sys/fs/cgroup/cpu.max": "300000 100000\n",
}
V1 = "sys/fs/cgroup/cpu,cpuacct"
OF_VERSION_1 = {
    "proc/self/cgroup": "4:cpu,cpuacct:/docker/a\n1:cpuset:/\n",
    f"{V1}/cpu.cfs_quota_us": "-1\n",
    f"{V1}/cpu.cfs_period_us": "100000\n",
    f"{V1}/docker/a/cpu.cfs_quota_us": "250000\n",
    f"{V1}/docker/a/cpu.cfs_period_us": "100000\n",
}
LINES = "9:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n1:cpuset:/\n0::/\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", **UNLIMITED}, None),
        (IN_A_CONTAINER, 1.5),
        (IN_A_SLICE, 2.0),
        (TIGHTER_BELOW, 0.5),
        (OF_THE_HOST, 3.0),
        (OF_VERSION_1, 2.5),
        ({"proc/self/cgroup": LINES}, None),
        ({**IN_A_CONTAINER, "sys/fs/cgroup/cpu.max": "what\n"}, None),
    ],
)
def test_quota_is_the_smallest_on_the_way_up(
    files: dict[str, str], expected: float | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert quota(tmp_path) == expected


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        (Cpus(64, 8, None), 8),
        (Cpus(64, 8, 4.0), 4),
        (Cpus(64, 8, 2.5), 2),
        (Cpus(64, 2, 16.0), 2),
        (Cpus(64, 8, 0.5), 1),
    ],
)
def test_whole_cpus_are_usable(cpus: Cpus, expected: int) -> None:
    assert cpus.usable == expected


def test_process_bound_to_a_cpu_uses_it() -> None:
    bind = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    script = f"import os; {bind}; from tracking.cpus import cpus; print(cpus())"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(Cpus(os.cpu_count() or 1, 1, cpus().quota))

"""Who uses the CPUs: counters against psutil's own and `os.times`, made-up ones by hand, and files as kernels write them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from tests import neighbours
from tests.conftest import ROOT
from tracking.records import OTHERS_CPU
from tracking.sensors.load import CpuSnapshot, Load, between, look, together

BURN = "import time\nuntil = time.process_time() + {}\nwhile time.process_time() < until: pass\n"
# Burns in a process whose own parent has ended, but inside the session of the process that is asked to.
STEP_SECONDS = 0.01  # of the kernel's counters


# In a process of its own: what else a test's process has started, such as servers, would be its own too.
OTHERS_SHARE = """
import json, os, time
import psutil
from tracking.sensors.load import between, look
first, before, ours = look(), psutil.cpu_times(), sum(os.times()[:4])
until = time.monotonic() + 0.8
while time.monotonic() < until:  # this process computes as well, which is no other's work
    sum(range(1_000))
mine, after, last = sum(os.times()[:4]) - ours, psutil.cpu_times(), look()
found = between(first, last)
idle = sum(getattr(after, name) - getattr(before, name) for name in ("idle", "iowait"))
counted = sum(after) - sum(before)
print(json.dumps([found.foreign, found.seconds, found.metrics, [pid for pid, _ in found.used], counted, counted - idle - mine]))
"""


def test_others_share_is_what_psutil_counts_without_this_process() -> None:
    with neighbours.busy(1) as (pid,):
        told = subprocess.run(
            [sys.executable, "-c", OTHERS_SHARE], cwd=ROOT, stdout=subprocess.PIPE, check=True
        ).stdout
    foreign, seconds, metrics, used, counted, others = json.loads(told)
    cpus = os.cpu_count() or 1
    # `look` reads for some 0.02 s at either end, longer where it has to wait for a CPU, in which others compute
    looking = seconds - counted / cpus
    assert foreign == pytest.approx(others, abs=cpus * (abs(looking) + 5 * STEP_SECONDS))
    assert metrics[OTHERS_CPU] == pytest.approx(100 * foreign / (cpus * seconds), abs=1e-6)
    assert pid in used


def test_what_this_process_starts_is_its_own_also_when_it_has_ended() -> None:
    first, ours = look(), sum(os.times()[:4])
    subprocess.run([sys.executable, "-c", BURN.format(0.3)], check=True)
    rise = sum(os.times()[:4]) - ours
    assert look().ours - first.ours >= rise - 5 * STEP_SECONDS > 0.25


MOMENT = CpuSnapshot(at=0.0, counted=0.0, busy=0.0, stolen=0.0, ours=0.0, others={})


def of(seconds: float, cpus: int = 4, **more: object) -> Load:
    found = between(MOMENT, replace(MOMENT, at=seconds, counted=seconds * cpus, **more))  # type: ignore[arg-type]
    return replace(found, cpus=cpus)


def test_shares_are_of_all_cpus_over_all_windows_together() -> None:
    """4 CPUs for 10 s and 30 s: 160 s of CPU time, of which 90 were used, 50 by us, 8 of the others' 40 by the host."""
    first = of(10.0, busy=30.0, ours=20.0, stolen=8.0)
    second = of(30.0, busy=60.0, ours=30.0)
    both = together([first, second])
    assert both.metrics == {
        OTHERS_CPU: pytest.approx(100 * 40 / 160),
        "machine/steal_percent": pytest.approx(100 * 8 / 160),
    }
    assert both.missing == {}
    assert (
        of(1.0, busy=1.0, ours=1.5).metrics[OTHERS_CPU] == 0
    )  # the kernel counts a process finer than a CPU


def test_what_cannot_be_told_is_said_and_is_no_zero() -> None:
    assert of(0.1, busy=0.4).metrics == {}
    assert of(0.1).missing == {
        "machine_load": "the timed 0.10 s are too short for counters of 10 ms; 0.2 s are needed"
    }
    still = replace(of(2.0), counted=0.0)
    assert still.metrics == {}
    assert (
        still.missing["machine_load"]
        == "the system's counters of CPU time moved by 0.0 s in 2.0 s of 4 CPUs"
    )
    assert together([]).metrics == {}


def test_a_culprit_is_named_by_its_program_where_it_used_more_than_half_and_is_still_there() -> (
    None
):
    sleeper = subprocess.Popen(["sleep", "60", "--secret=x"][:2])
    began = psutil.Process(sleeper.pid).create_time()
    most = {(sleeper.pid, began): 0.6, (1, 0.0): 0.4}
    assert Load(1.0, 2, 2.0, foreign=1.0, used=most).culprit() == f"sleep ({sleeper.pid})"
    assert Load(1.0, 2, 2.0, foreign=1.2, used=most).culprit() == ""  # exactly half
    assert (
        Load(1.0, 2, 2.0, foreign=1.0, used={(sleeper.pid, began - 9): 0.6}).culprit() == ""
    )  # its number was another's
    assert Load(1.0, 2, 2.0, foreign=0.0, used={}).culprit() == ""
    sleeper.kill()
    sleeper.wait()
    assert Load(1.0, 2, 2.0, foreign=1.0, used=most).culprit() == ""

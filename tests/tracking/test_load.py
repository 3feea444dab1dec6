"""Use of the CPUs: counters against those of psutil and `os.times`, and made-up ones."""

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
from tracking.records import OTHERS_CPU, OVERSUBSCRIBED
from tracking.sensors.load import CpuSnapshot, Load, combine_loads, load_between, take_snapshot

BURN = "import time\nuntil = time.process_time() + {}\nwhile time.process_time() < until: pass\n"
STEP_SECONDS = 0.01  # of the kernel's counters
# Runs in a separate process: servers that the test's process has started would be its own.
OTHERS_SHARE = """
import json, os, time
import psutil
from tracking.sensors.load import load_between, take_snapshot
first, before, ours = take_snapshot(), psutil.cpu_times(), sum(os.times()[:4])
until = time.monotonic() + 0.8
while time.monotonic() < until:  # this process computes as well, which is no other's work
    sum(range(1_000))
mine, after, last = sum(os.times()[:4]) - ours, psutil.cpu_times(), take_snapshot()
load = load_between(first, last)
idle = sum(getattr(after, name) - getattr(before, name) for name in ("idle", "iowait"))
counted = sum(after) - sum(before)
pids = [pid for pid, _ in load.used]
counted = [counted, counted - idle - mine]
print(json.dumps([load.foreign, load.seconds, load.metrics(), pids, *counted]))
"""


def test_others_share_is_what_psutil_counts_without_this_process() -> None:
    with neighbours.busy(1) as (pid,):
        command = [sys.executable, "-c", OTHERS_SHARE]
        output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    foreign, seconds, metrics, used, counted, others = json.loads(output)
    cpus = os.cpu_count() or 1
    # `take_snapshot` reads for some 0.02 s at either end, longer where it has to wait for a CPU
    looking = seconds - counted / cpus
    assert foreign == pytest.approx(others, abs=cpus * (abs(looking) + 5 * STEP_SECONDS))
    assert metrics[OTHERS_CPU] == pytest.approx(100 * foreign / (cpus * seconds), abs=1e-6)
    assert pid in used


def test_ended_children_count_as_ours() -> None:
    first, ours = take_snapshot(), sum(os.times()[:4])
    subprocess.run([sys.executable, "-c", BURN.format(0.3)], check=True)
    rise = sum(os.times()[:4]) - ours
    assert take_snapshot().ours - first.ours >= rise - 5 * STEP_SECONDS > 0.25


MOMENT = CpuSnapshot(at=0.0, cpus=4, counted=0.0, busy=0.0, stolen=0.0, ours=0.0, others={})


def load_of(seconds: float, **counters: object) -> Load:
    last = replace(MOMENT, at=seconds, counted=seconds * 4, **counters)  # type: ignore[arg-type]
    return load_between(MOMENT, last)


def test_shares_are_of_all_cpus_over_all_windows_together() -> None:
    """Use 90 s of 160 s of CPU time: 50 s by us, 8 of the others' 40 s by the host."""
    first = load_of(10.0, busy=30.0, ours=20.0, stolen=8.0)
    both = combine_loads([first, load_of(30.0, busy=60.0, ours=30.0)])
    assert both.metrics(threads=1) == {
        OTHERS_CPU: pytest.approx(100 * 40 / 160),
        OVERSUBSCRIBED: 0.0,
        "machine/steal_percent": pytest.approx(100 * 8 / 160),
    }
    assert both.missing == {}
    # the kernel counts a process finer than a CPU
    assert load_of(1.0, busy=1.0, ours=1.5).metrics()[OTHERS_CPU] == 0


def test_load_that_is_not_known_is_no_zero() -> None:
    for load in (load_of(0.1, busy=0.4), replace(load_of(2.0), counted=0.0), combine_loads([])):
        assert load.metrics() == {}
        assert list(load.missing) == ["machine_load"]


@pytest.mark.parametrize(
    ("threads", "ours", "others", "percent"),
    [
        (4, 3.0, 0.4, 10.0),
        (3, 3.0, 1.0, 0.0),  # a neighbour on the fourth CPU
        (8, 4.0, 0.4, 10.0),  # more threads than CPUs are no other's work
        (0, 1.05, 3.0, 0.0),  # a command of one thread
        (0, 1.5, 2.5, 12.5),  # of two
        (0, 0.0, 3.6, 15.0),  # it has one thread, though that has hardly run
    ],
)
def test_threads_and_others_need_more_than_all_cpus(
    threads: int, ours: float, others: float, percent: float
) -> None:
    load = load_of(10.0, busy=10 * (ours + others), ours=10 * ours)
    assert load.metrics(threads)[OVERSUBSCRIBED] == pytest.approx(percent)


ON_ONE_CPU = """
import json, os, sys, time
cpu = max(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cpu})
from tracking.sensors.load import load_between, take_snapshot
first = take_snapshot()
time.sleep(0.8)
load = load_between(first, take_snapshot())
print(json.dumps([load.cpus, load.trouble, load.others_percent]))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it needs two CPUs")
def test_load_counts_on_the_cpus_that_the_process_may_use() -> None:
    """A neighbour on the last CPU takes all of that one."""
    pinned = f"import os; os.sched_setaffinity(0, {{{max(os.sched_getaffinity(0))}}})\n"
    with neighbours.busy(1, pinned + neighbours.WITHOUT_END):
        command = [sys.executable, "-c", ON_ONE_CPU]
        output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    cpus, trouble, percent = json.loads(output)
    assert (cpus, trouble) == (1, "")
    assert percent > 85  # of the whole machine it is at most a half


def test_culprit_used_more_than_half_and_still_runs() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    process = (sleeper.pid, psutil.Process(sleeper.pid).create_time())
    used = {process: 0.6, (1, 0.0): 0.4}
    load = Load(1.0, 2, 2.0, foreign=1.0, used=used)
    assert load.culprit() == f"sleep ({sleeper.pid})"
    assert replace(load, foreign=1.2).culprit() == ""  # exactly half
    assert replace(load, used={(sleeper.pid, process[1] - 9): 0.6}).culprit() == ""  # reused number
    assert replace(load, foreign=0.0, used={}).culprit() == ""
    sleeper.kill()
    sleeper.wait()
    assert load.culprit() == ""

"""Busy processes that are no children of the test: neighbours of what is measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Its parent ends at once and leaves it in a session of its own.
_START = """
import os, subprocess, sys
os.nice(int(sys.argv[1]))
command = [sys.executable, "-c", sys.argv[2]]
print(subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True).pid)
"""


WITHOUT_END = "while True: pass"
A_TENTH = """
import time
while True:
    until = time.perf_counter() + 0.005
    while time.perf_counter() < until:
        pass
    time.sleep(0.045)
"""


@contextmanager
def busy(count: int, work: str = WITHOUT_END, *, yielding: bool = False) -> Iterator[list[int]]:
    """Run processes that compute, and yield their numbers.

    Args:
        count: Number of processes.
        work: Program of each.
        yielding: Whether they compute only while the CPU is free.
    """
    started: list[int] = []
    try:
        for _ in range(count):
            done = subprocess.run(
                [sys.executable, "-c", _START, str(19 * yielding), work],
                check=True,
                stdout=subprocess.PIPE,
            )
            started.append(int(done.stdout))
        yield started
    finally:
        for pid in started:
            os.kill(pid, signal.SIGKILL)

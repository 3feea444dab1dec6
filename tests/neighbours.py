"""Busy processes that no process of the test has started, so that their work counts as others'."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Its parent ends at once and leaves it in a separate session.
_START = """
import os, subprocess, sys
command = [sys.executable, "-c", sys.argv[1]]
print(subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True).pid)
"""
WITHOUT_END = "while True: pass"
BURSTS = """
import random, time
while True:
    until = time.monotonic() + random.expovariate(1 / 2)
    while time.monotonic() < until:
        pass
    time.sleep(random.expovariate(1 / 6))
"""


@contextmanager
def busy(count: int, work: str = WITHOUT_END) -> Iterator[list[int]]:
    """Run processes that compute, and yield their ids."""
    pids: list[int] = []
    try:
        for _ in range(count):
            command = [sys.executable, "-c", _START, work]
            pids.append(int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

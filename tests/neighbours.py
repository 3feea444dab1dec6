"""Real neighbours: busy processes that no process of the test has started, so that nobody takes their work for its own."""

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
one = subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdout=subprocess.DEVNULL, start_new_session=True)
print(one.pid)
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
    """So many processes that compute; their numbers. yielding: only while nobody else wants the CPU."""
    started: list[int] = []
    try:
        for _ in range(count):
            told = subprocess.run(
                [sys.executable, "-c", _START, str(19 * yielding), work],
                check=True,
                stdout=subprocess.PIPE,
            )
            started.append(int(told.stdout))
        yield started
    finally:
        for pid in started:
            os.kill(pid, signal.SIGKILL)

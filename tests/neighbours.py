"""Real neighbours: busy processes that no process of the test has started, so that nobody takes their work for its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# In a session of its own, with a parent that has ended: it prints its number, then never stops working.
_START = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'while True: pass'], stdout=-3, start_new_session=True).pid)"


@contextmanager
def busy(count: int) -> Iterator[list[int]]:
    """So many processes that compute without end; their numbers."""
    started: list[int] = []
    try:
        for _ in range(count):
            told = subprocess.run([sys.executable, "-c", _START], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            started.append(int(told.stdout))
        yield started
    finally:
        for pid in started:
            os.kill(pid, signal.SIGKILL)

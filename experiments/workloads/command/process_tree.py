"""Processes of a command: their memory, their CPU time and their end."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36
PROC = Path("/proc")
FIRST_SAMPLE_SECONDS, SAMPLE_SECONDS = 0.005, 0.05
# A sample of large processes takes long: samples use at most this share of one processor.
SAMPLING_SHARE = 0.02
POLL_SECONDS = 0.02
# Variable of every process of a command: the path of a file in its cell's folder.
METRICS_VARIABLE = "EVENHAND_METRICS"
GRACE_SECONDS = 2.0
MAX_NAMES = 5


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent ends: prctl(2)."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> list[int]:
    """Return the ids of all processes that descend from this one, zombies included."""
    pid = os.getpid()
    if (PROC / f"{pid}/task/{pid}/children").exists():
        return list(_children(pid))
    # a kernel without CONFIG_PROC_CHILDREN
    return [process.pid for process in psutil.Process().children(recursive=True)]


def _children(pid: int) -> Iterator[int]:
    texts = list[str]()
    with suppress(OSError):  # it has just ended
        for thread in (PROC / f"{pid}/task").iterdir():
            texts.append((thread / "children").read_text())
    for child in map(int, " ".join(texts).split()):
        yield child
        yield from _children(child)


class MemorySampler(threading.Thread):
    """Thread that samples the memory of all descendants together.

    Memory that processes share is counted once where the kernel reports proportional shares (PSS).

    Attributes:
        peak_bytes: Greatest sum so far, at least the peak of the largest single process.
        method: `pss` or, where the kernel does not report it, `rss`.
    """

    def __init__(self) -> None:
        super().__init__(name="memory of the process tree", daemon=True)
        self.peak_bytes, self.method = 0, "pss"
        self._is_over = threading.Event()
        # a child has the peak of the process that it was forked from: only a greater one is its own
        self._inherited_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024

    def run(self) -> None:
        wait = FIRST_SAMPLE_SECONDS
        while not self._is_over.wait(wait):
            began = time.thread_time()  # waiting for a processor costs the command nothing
            self._sample()
            took = time.thread_time() - began
            wait = max(min(2 * wait, SAMPLE_SECONDS), took / SAMPLING_SHARE)

    def stop(self) -> int:
        """Return the peak in bytes, after the descendants have been waited for."""
        self._is_over.set()
        self.join()
        of_single = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1_024
        if of_single > self._inherited_bytes:
            self.peak_bytes = max(self.peak_bytes, of_single)
        return self.peak_bytes

    def _sample(self) -> None:
        total = 0
        for pid in descendants():
            with suppress(OSError, ValueError):  # it has just ended
                self.peak_bytes = max(self.peak_bytes, _kilobytes(pid, "status", "VmHWM:"))
                total += self._bytes(pid)
        self.peak_bytes = max(self.peak_bytes, total)

    def _bytes(self, pid: int) -> int:
        if self.method == "pss":
            try:
                return _kilobytes(pid, "smaps_rollup", "Pss:")
            except (FileNotFoundError, PermissionError):
                if (PROC / f"{pid}").exists():
                    self.method = "rss"
        return _kilobytes(pid, "status", "VmRSS:")


def _kilobytes(pid: int, file: str, name: str) -> int:
    """Return an entry of a process in bytes; 0 if it has none, as a zombie."""
    with (PROC / f"{pid}/{file}").open() as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0) * 1_024


def running_descendants() -> list[int]:
    """Wait for the descendants that have ended, and return the ids of all others."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return descendants()


def marked(folder: Path) -> list[int]:
    """Return the ids of processes of commands whose cells are in a folder.

    They may have any parent. Processes that have cleared or overwritten their environment, and
    those of other users, are not recognized.
    """
    pids = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            path = process.environ().get(METRICS_VARIABLE, "")
            if path and Path(path).is_relative_to(folder):
                pids.append(process.pid)
    return pids


def names(pids: Iterable[int]) -> list[str]:
    """Return the names of processes that still run, with their ids."""
    texts = []
    for pid in pids:
        with suppress(psutil.Error):
            texts.append(f"{psutil.Process(pid).name()} ({pid})")
    return texts


def wait_for_rest(seconds: float) -> list[str]:
    """Wait for all descendants to end.

    Args:
        seconds: The longest wait.

    Returns:
        Names of those that still run, with their ids.
    """
    deadline = time.monotonic() + seconds
    while (rest := running_descendants()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return names(rest)


def end(find: Callable[[], Sequence[int]] = running_descendants) -> None:
    """End processes: they are asked first, and killed after some time.

    Args:
        find: Returns the ids of those that still run; by default of all descendants.
    """
    for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, 1.0)):
        deadline = time.monotonic() + seconds
        is_first = True
        while rest := find():
            if is_first or number == signal.SIGKILL:  # new ones may have been started
                for pid in rest:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
                        os.kill(pid, signal.SIGCONT)
            is_first = False
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)


def end_leftovers(folder: Path) -> str:
    """End the processes of commands whose cells are in a folder and run no more.

    Args:
        folder: Absolute path, of a cell or of a campaign.

    Returns:
        Their number and names; empty if there is none.
    """
    find = partial(marked, folder)
    texts = names(find())
    end(find)
    return describe(texts) if texts else ""


def describe(texts: Sequence[str]) -> str:
    """Return the number and the first names of processes that outlived their command."""
    count = f"{len(texts)} process{'es' * (len(texts) != 1)}"
    return f"{count} outlived the command: {', '.join(texts[:MAX_NAMES])}"

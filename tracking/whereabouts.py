"""Process of a run, and whether it still works on it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping

from tracking.records import StoredRun

HEARTBEAT, STARTED = "heartbeat", "pid_started"
WHEREABOUTS = ("host", "pid", STARTED, HEARTBEAT)
HEARTBEAT_SECONDS = 15
# Another process may send the heartbeats of a run: a dead process proves nothing.
STALE_SECONDS = 600
STALE_SECONDS_OF_DEAD = 8 * HEARTBEAT_SECONDS
# Tolerance of start times: the kernel's ticks, and a boot time that moves with clock corrections.
SAME_SECONDS = 2.0


def process_tags() -> dict[str, str]:
    """Return the tags of a run that name this process: host, pid, time of its start."""
    import psutil

    started = psutil.Process().create_time()
    return {
        "host": platform.node(),
        "pid": str(os.getpid()),
        STARTED: f"{started:.2f}",
        HEARTBEAT: str(int(time.time())),
    }


def is_fresh(run: StoredRun) -> bool:
    """Return whether a process still works on a run: it runs here, or its heartbeat is recent."""
    alive = is_alive(run.tags)
    last_seconds = _seconds(run.tags.get(HEARTBEAT, "")) or run.start_ms / 1_000
    silent_seconds = time.time() - last_seconds
    limit = STALE_SECONDS if alive is None else STALE_SECONDS_OF_DEAD
    return bool(alive) or silent_seconds < limit


def is_alive(tags: Mapping[str, str]) -> bool | None:
    """Return whether the process in the tags runs; None if that is not known from this machine."""
    import psutil

    pid = tags.get("pid", "")
    if tags.get("host") != platform.node() or not (pid.isascii() and pid.isdigit()):
        return None
    try:
        process = psutil.Process(int(pid))
        created, status = process.create_time(), process.status()
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return None
    if status == psutil.STATUS_ZOMBIE:
        return False
    return abs(created - _seconds(tags.get(STARTED, ""))) < SAME_SECONDS


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0

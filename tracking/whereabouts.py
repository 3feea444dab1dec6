"""Which process a run belongs to, and whether that process still works on it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping

HEARTBEAT, STARTED = "heartbeat", "pid_started"
WHEREABOUTS = ("host", "pid", STARTED, HEARTBEAT)
HEARTBEAT_SECONDS = 15
# Heartbeats of a run may come from another process than its own: a dead process alone proves nothing.
STALE_SECONDS = 600
STALE_SECONDS_OF_DEAD = 8 * HEARTBEAT_SECONDS
SAME_SECONDS = (
    2.0  # the kernel's clock ticks, and a boot time that moves with corrections of the clock
)


def here() -> dict[str, str]:
    """Tags of a run that name this process: host, pid, time of its start."""
    import psutil

    started = psutil.Process().create_time()
    return {
        "host": platform.node(),
        "pid": str(os.getpid()),
        STARTED: f"{started:.2f}",
        HEARTBEAT: str(int(time.time())),
    }


def is_fresh(tags: Mapping[str, str], start_seconds: float) -> bool:
    """Whether somebody still works on a run: its process runs on this machine, or its last heartbeat is recent.

    start_seconds: when the run began, for one without a heartbeat.
    """
    alive = is_alive(tags)
    silent_seconds = time.time() - (_seconds(tags.get(HEARTBEAT, "")) or start_seconds)
    return bool(alive) or silent_seconds < (
        STALE_SECONDS if alive is None else STALE_SECONDS_OF_DEAD
    )


def is_alive(tags: Mapping[str, str]) -> bool | None:
    """Whether the process that the tags name runs; None where that cannot be known from here."""
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

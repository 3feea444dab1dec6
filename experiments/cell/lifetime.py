"""Lifetime of a process: no longer than that of its parent."""

from __future__ import annotations

import ctypes
import os


def die_with_parent(with_signal: int) -> None:
    """Ask Linux to send this process a signal when its parent ends."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(1, with_signal)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), with_signal)

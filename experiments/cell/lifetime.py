"""How long a process lives: no longer than the one that started it."""

from __future__ import annotations

import ctypes
import os


def die_with_parent(with_signal: int) -> None:
    """Linux: this process gets a signal when its parent dies, however that happens."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(1, with_signal)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), with_signal)

"""A cell's memory: its bound, what becomes of what is freed, and every way in which running out of it shows."""

from __future__ import annotations

import ctypes
import math
import os
import re
import resource
from collections.abc import Callable
from pathlib import Path

from tracking import plain
from tracking.errors import WrongCall

# What oneDNN says when it cannot allocate, and for other reasons too.
UNCLEAR = "could not create a primitive"
# What cuDNN's users say where no algorithm's workspace can be allocated, and where none is written for the operation.
UNCLEAR_ON_GPU = ("unable to find an engine", "no algorithm worked")
# They are put down to memory if less than this share of the device's is free.
NEARLY_FULL = 0.1
# A crash with more than this share of the bound taken is put down to it: the next large array would not have fitted.
NEAR = 0.5
MAX_BYTES = 2**63
# Options of mallopt(3) with their values: M_TRIM_THRESHOLD, M_MMAP_MAX.
NEVER_TRIM, NEVER_MAP = (-1, -1), (-4, 0)
UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
SIGNS = (
    *("out of memory", "resource_exhausted", "resourceexhausted", "bad_alloc", "memoryerror"),
    *("out_of_memory", "cublas_status_alloc_failed", "cudnn_status_alloc_failed"),
    *(
        "can't allocate memory",
        "cannot allocate memory",
        "unable to allocate",
        "pthread_create failed",
    ),
)


def size(text: str) -> int:
    """Bytes of `2GiB`, `500MB`, `1.5 GiB`; 0 of `none`. Raises WrongCall."""
    if text == "none":
        return 0
    matched = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]i?B)?\s*", text, flags=re.IGNORECASE)
    found = float(matched[1]) * UNITS[(matched[2] or "").upper()] if matched else math.nan
    if not 1 <= found < MAX_BYTES:
        raise WrongCall(
            f"memory_limit={plain.short(text)} is not a size; write 2GiB, 500MB or none"
        )
    return int(found)


def require(needed_bytes: int, what: str) -> None:
    """Raises WrongCall where this machine has less memory than that; asked before anything is allocated."""
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed_bytes > have:
        needed, there = (f"{number / 1e9:,.1f} GB" for number in (needed_bytes, have))
        raise WrongCall(
            f"{what} take {needed} of memory, and this machine has {there}; choose fewer or smaller ones"
        )


def bound(limit_bytes: int) -> None:
    """Bounds what this process can allocate from here on; 0 does not. By RLIMIT_DATA: CUDA reserves addresses without end."""
    if limit_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def keep_freed() -> None:
    """Freed memory stays with this process from here on, in all its threads. Raises WrongCall where the C library is another.

    glibc gives large blocks back to the kernel and maps them anew, page by page. Whether a process does so in every step or
    never depends on the order of its first allocations (mallopt(3): M_MMAP_THRESHOLD is adjusted, M_TRIM_THRESHOLD follows).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        raise WrongCall(
            "malloc=keep needs the GNU C library (glibc), which this Python does not use; take system"
        ) from None
    if not all(mallopt(*option) for option in (NEVER_TRIM, NEVER_MAP)):
        raise WrongCall("malloc=keep: the C library refuses it; take system")


def page_faults() -> int:
    """Pages that this process has had mapped so far without reading a disk; a step that gets its memory anew has thousands."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def allocated(pid: int) -> int:
    """Bytes that count against the bound: private writable memory, touched or not. 0 of a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(
            (int(line.split()[1]) * 1_024 for line in lines if line.startswith("VmData")), 0
        )
    except OSError:
        return 0


def ran_out(text: str) -> str:
    """The line of an error or a log that tells of exhausted memory, the last one; empty if none does."""
    lines = [
        line.strip() for line in text.splitlines() if any(sign in line.lower() for sign in SIGNS)
    ]
    return lines[-1][:300] if lines else ""


def device_ran_out(text: str, free_share: Callable[[], float | None]) -> bool:
    """Return whether an error that has several causes is one of a device's memory.

    Args:
        text: the error.
        free_share: asks the driver which share of the device's memory is free; None if it does not
            report that. Asked only for such errors.
    """
    if not any(sign in text.lower() for sign in UNCLEAR_ON_GPU):
        return False
    share = free_share()
    return share is not None and share < NEARLY_FULL


def kernel_kills() -> int:
    """How many processes the kernel has killed for memory, here and in this container; it says so nowhere else."""
    found = 0
    for path in (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events")):
        try:
            found += sum(
                int(line.split()[1])
                for line in path.read_text().splitlines()
                if line.startswith("oom_kill ")
            )
        except OSError:
            continue
    return found

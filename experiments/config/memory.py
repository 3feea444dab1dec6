"""Memory of a cell: its limit, the use of freed memory, and the signs of exhaustion."""

from __future__ import annotations

import ctypes
import math
import os
import re
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tracking import plain
from tracking.errors import ErrorCode, UsageError

# Message of oneDNN when it cannot allocate, and in other cases.
UNCLEAR = "could not create a primitive"
# Messages of cuDNN's users without memory for a workspace, and without a suitable algorithm.
UNCLEAR_ON_GPU = ("unable to find an engine", "no algorithm worked")
# They mean memory if less than this share of the device's is free.
NEARLY_FULL = 0.1
# A crash with more than this share of the limit in use is exhaustion: the next large array would
# not have fitted.
NEAR = 0.5
MAX_BYTES = 2**63
# Options of mallopt(3) with their values: M_TRIM_THRESHOLD, M_MMAP_MAX.
NEVER_TRIM, NEVER_MAP = (-1, -1), (-4, 0)
UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
SIGNS = (
    "out of memory",
    "out_of_memory",
    "resource_exhausted",
    "resourceexhausted",
    "bad_alloc",
    "memoryerror",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "can't allocate memory",
    "cannot allocate memory",
    "unable to allocate",
    "pthread_create failed",
)


def size(text: str) -> int:
    """Return the bytes of `2GiB`, `500MB` or `1.5 GiB`; 0 for `none`."""
    if text == "none":
        return 0
    matched = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]i?B)?\s*", text, flags=re.IGNORECASE)
    count = float(matched[1]) * UNITS[(matched[2] or "").upper()] if matched else math.nan
    if not 1 <= count < MAX_BYTES:
        raise UsageError(
            ErrorCode.INVALID_VALUE,
            f"memory_limit={plain.short(text)} is not a size; write 2GiB, 500MB or none",
        )
    return int(count)


def require(needed_bytes: int, what: str) -> None:
    """Raise UsageError if this machine has less memory than that, before it is allocated."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed_bytes > total:
        raise UsageError(
            ErrorCode.TOO_LARGE,
            f"{what} take {needed_bytes / 1e9:,.1f} GB of memory, and this machine has "
            f"{total / 1e9:,.1f} GB; choose fewer or smaller ones",
        )


def bound(limit_bytes: int) -> None:
    """Limit the memory that this process can allocate, within earlier limits; 0: no limit.

    By RLIMIT_DATA: CUDA reserves far more addresses than memory.
    """
    if limit_bytes:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        least = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (least, least))


def keep_freed() -> None:
    """Keep freed memory in this process from now on, in all its threads.

    glibc returns large blocks to the kernel and maps them again, page by page. Whether a process
    does so in every step or never depends on the order of its first allocations (mallopt(3):
    M_MMAP_THRESHOLD is adjusted, M_TRIM_THRESHOLD follows).

    Raises:
        UsageError: if the C library is not glibc, or refuses.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
        is_set = all(mallopt(*option) for option in (NEVER_TRIM, NEVER_MAP))
    except (AttributeError, OSError, TypeError):
        is_set = False
    if not is_set:
        raise UsageError(
            ErrorCode.UNSUPPORTED, "malloc=keep needs the GNU C library (glibc); take system"
        )


def allocated(pid: int) -> int:
    """Return the bytes that count against the limit: private writable memory, used or not."""
    try:
        return _sum_of_lines(Path(f"/proc/{pid}/status"), "VmData") * 1_024
    except OSError:  # the process has ended
        return 0


def ran_out(text: str) -> str:
    """Return the last line of an error or a log about exhausted memory, or an empty text."""
    lines = [line.strip() for line in text.splitlines()]
    matches = [line for line in lines if any(sign in line.lower() for sign in SIGNS)]
    return matches[-1][:300] if matches else ""


def device_ran_out(text: str, free_share: Callable[[], float | None]) -> bool:
    """Return whether an error that has several causes is one of a device's memory.

    Args:
        text: The error.
        free_share: Returns the free share of the device's memory, or None if the driver does not
            report it. Called only for such errors.
    """
    if not any(sign in text.lower() for sign in UNCLEAR_ON_GPU):
        return False
    share = free_share()
    return share is not None and share < NEARLY_FULL


def kernel_kills() -> int:
    """Return the number of processes that the kernel has killed for memory, here or in a container.

    The kernel reports no process by name.
    """
    total = 0
    for path in (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events")):
        with suppress(OSError):
            total += _sum_of_lines(path, "oom_kill ")
    return total


def _sum_of_lines(path: Path, prefix: str) -> int:
    lines = path.read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(prefix))

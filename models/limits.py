"""Limits of a machine: FLOP/s of the fastest products of matrices, bytes/s of its memory.

A framework's products are those of `models.products`, by the path of its inference.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from models.contract import Framework
from models.devices import CPU
from models.products import LAYERS

WIDTHS = (512, 1_024, 2_048, 4_096, 8_192, 16_384)
# No wider matrices where their products would take longer.
MAX_SECONDS = 0.2
# What is timed is repeated for so long: a busy neighbour slows most of the repetitions, not all.
SECONDS, REPETITIONS, TRIES = 0.3, 4, 5
# Of each array whose sum is timed, which no cache holds.
ARRAY_BYTES = 2**27


@contextmanager
def computing(folder: Path) -> Iterator[Callable[[], None]]:
    """Count as a process that computes, until the end of the context.

    Yields:
        Function that waits until no other process of the folder computes, and keeps them waiting.
    """
    with (folder / "computing.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield partial(fcntl.flock, file, fcntl.LOCK_EX)


def peak_flops(framework: Framework, enough: float = 0.0) -> float:
    """Return FLOP/s of the fastest products of square matrices by the framework's own kernels.

    Args:
        framework: With the threads, the device and the precision of cells.
        enough: FLOP/s below which they are measured again, up to `TRIES` times: a busy machine
            slows them for seconds.

    Returns:
        0 for a framework of others, in which the products are not written.
    """
    file = Path(__file__).with_name("products") / f"{framework.architecture}.py"
    if not file.is_file():
        return 0.0
    best = _peak(framework)
    for _ in range(TRIES - 1):
        if best < enough:
            best = max(best, _peak(framework))
    return best


def _peak(framework: Framework) -> float:
    best, seconds = 0.0, 0.0
    for width in WIDTHS:
        if 8 * seconds > MAX_SECONDS:
            break
        network = framework.build("products", width)
        inputs = framework.place_inputs((np.ones((width, width), np.float32),))
        framework.infer(network, inputs)
        seconds = _shortest(lambda: framework.infer(network, inputs))  # noqa: B023
        best = max(best, 2 * (LAYERS * width**3 + width**2) / seconds)
    return best


def bandwidth(framework: Framework, threads: int) -> float:
    """Return bytes/s of a sum, which reads two arrays and writes one; 0 if it is not known.

    Args:
        framework: On a GPU it is measured with PyTorch only.
        threads: That compute it on the CPU.
    """
    values = ARRAY_BYTES // 4
    if framework.device == CPU:
        a, b, c = (np.ones(values, np.float32) for _ in range(3))
        cuts = np.linspace(0, values, threads + 1, dtype=int)
        parts = [slice(*cuts[at : at + 2]) for at in range(threads)]
        with ThreadPoolExecutor(threads) as pool:  # NumPy computes without Python's lock

            def add() -> None:
                list(pool.map(lambda part: np.add(b[part], c[part], out=a[part]), parts))

            return 3 * ARRAY_BYTES / _shortest(add)
    if framework.architecture != "pytorch":
        return 0.0
    import torch

    x, y, z = (torch.ones(values, device=framework.device) for _ in range(3))

    def add_on_device() -> None:
        torch.add(x, y, out=z)
        framework.synchronise()

    add_on_device()
    return 3 * ARRAY_BYTES / _shortest(add_on_device)


def _shortest(work: Callable[[], object]) -> float:
    seconds = list[float]()
    while len(seconds) < REPETITIONS or sum(seconds) < SECONDS:
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)

"""Program that burns a CPU at random seconds, until it is killed.

`python -m tests.benchmarks.neighbour SEED CPU`
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

from experiments.cell.lifetime import die_with_parent

# Running and asleep, each time: longer than a turn of a cell, and shorter than a block.
SECONDS = (0.5, 3.0)


def main(seed: int, cpu: int) -> None:
    die_with_parent(signal.SIGKILL)
    os.sched_setaffinity(0, {cpu})
    rng = random.Random(seed)
    while True:
        until = time.monotonic() + rng.uniform(*SECONDS)
        while time.monotonic() < until:
            pass
        time.sleep(rng.uniform(*SECONDS))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

"""A worker that is not the cell's process: told what to do, it trains along with the others and ends.

It is told on standard input. One whose partners have failed ends as well; where the first does not, being frozen, it is
killed, so that the cell ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cell import peak_memory
from experiments.cell.__main__ import opened
from experiments.cell.contract import CellSpec
from experiments.cell.lifetime import die_with_parent
from experiments.workloads.distributed import meeting, training
from experiments.workloads.distributed.training import Place
from models.contract import Framework
from tracking.errors import EvenhandError

GRACE_SECONDS = 10.0


def main() -> int:
    first = os.getppid()
    told = json.loads(sys.stdin.readline())
    if told["elsewhere"]:
        die_with_input()
    else:
        die_with_parent(signal.SIGKILL)
    os.dup2(2, 1)  # srun keeps two streams in no order
    try:
        work(CellSpec.of(told["spec"]), told)
    except EvenhandError as error:
        print(f"\n\n{error}", file=sys.stderr)  # the last words of a log are told
        return 1
    except Exception:
        traceback.print_exc()
        if told["rank"] and not told["elsewhere"] and not told.get("weights"):
            time.sleep(GRACE_SECONDS)  # the first says why, and this process dies with it
            os.kill(first, signal.SIGKILL)
        return 1
    return 0


def die_with_input() -> None:
    """On another node than the first this process lives until its standard input ends, and until Slurm kills it.

    The job hears of its end, and ends the cell in order; it passes its signals to all of its processes.
    """
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)

    def wait() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def work(spec: CellSpec, told: Mapping[str, Any]) -> None:
    """Opens the framework, meets the others, trains."""
    framework = opened(spec)
    place = Place(told["rank"], meeting.join(told["meeting"], spec.framework, told["rank"]), told.get("replicas", 1))
    if told.get("weights"):
        prove(framework, place, spec.settings, told["steps"], Path(told["weights"]))
    else:
        train(framework, place, spec)


def train(framework: Framework, place: Place, spec: CellSpec) -> None:
    """The steps that the first worker times, and what it asks of the others after them."""
    settings = spec.settings
    group, batch = training.joined(framework, place, settings), training.part(framework, place, settings)
    group.gathered([os.getpid()])
    steps = settings["warmup_steps"] + settings["steps"]
    seconds, losses = training.timed(group, batch, steps)
    weights = training.fingerprint(framework.weights(group.network))
    alone = training.timed_alone(group, batch, steps, float(np.median(seconds)))
    group.gathered([weights, peak_memory.rss_bytes(), np.mean(losses), *seconds, *alone])
    group.close()


def prove(framework: Any, place: Place, settings: dict[str, Any], steps: int, path: Path) -> None:
    """So many steps, and the weights after them in a file; what a lossy hook is judged by with those of one worker."""
    group, batch = training.joined(framework, place, settings), training.part(framework, place, settings)
    framework.drop_nothing(group.network)
    lossy, moved = settings["hook"] != "none", list[float]()
    if lossy and place.workers == 1:
        moved = training.moves(framework, group, batch, steps)
    else:
        training.timed(group, batch, steps - lossy)
    if lossy and place.workers > 1:
        group.settle()
        training.timed(group, batch, 1)
    if place.rank == 0:
        kept: dict[str, Any] = {**framework.weights(group.network), training.MOVED: np.array(moved)}
        np.savez(path, **kept)
    group.gathered([0.0])  # nobody leaves before all are there
    group.close()


if __name__ == "__main__":
    sys.exit(main())

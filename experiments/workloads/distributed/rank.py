"""Worker that is not the cell's process: it trains along with the others and ends.

It reads its task on standard input. One whose partners have failed ends as well; where the first
does not, being frozen, it is killed, so that the cell ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from experiments.cell.__main__ import opened
from experiments.cell.lifetime import die_with_parent
from experiments.contract import CellSpec
from experiments.workloads.distributed import group, training
from experiments.workloads.distributed.training import Place
from models.contract import Framework
from tracking.errors import EvenhandError

GRACE_SECONDS = 10.0


def main() -> int:
    first = os.getppid()
    task = json.loads(sys.stdin.readline())
    if task["elsewhere"]:
        for number in (signal.SIGTERM, signal.SIGUSR2):  # the job's, which ends the cell in order
            signal.signal(number, signal.SIG_IGN)
    else:
        die_with_parent(signal.SIGKILL)
    parent = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        work(CellSpec.from_values(task["spec"]), task, parent)
    except EvenhandError as error:
        print(f"\n\n{error}", file=sys.stderr)  # the last paragraph of a log is reported
        return 1
    except Exception:
        traceback.print_exc()
        if task["rank"] and not task["elsewhere"] and not task.get("weights"):
            time.sleep(GRACE_SECONDS)  # the first reports why, and this process dies with it
            os.kill(first, signal.SIGKILL)
        return 1
    return 0


def work(spec: CellSpec, task: Mapping[str, Any], parent: TextIO) -> None:
    """Open the framework, join the others, and train."""
    check_versions(task["versions"], group.versions(spec.framework), task["node"])
    place = Place(task["rank"], task["addresses"])
    if place.rank:
        check_reachable(task["probe"], spec.settings["patience_seconds"], task["node"])
    framework = opened(spec)
    print("ready", file=parent, flush=True)
    if not sys.stdin.readline():
        raise EvenhandError("the first has left before all were there")
    if task["elsewhere"]:  # no parent on another node is seen to die
        threading.Thread(target=die_with_input, daemon=True).start()
    worker = training.joined(framework, place, spec.settings)
    batch = training.part(framework, place, spec.settings)
    if task.get("weights"):
        prove(framework, worker, batch, place, task, spec.settings["hook"])
    else:
        worker.gathered([os.getpid()])
        steps = spec.settings["warmup_steps"] + spec.settings["steps"]
        seconds, losses = training.timed(worker, batch, steps)
        weights = training.fingerprint(framework.weights(worker.network))
        alone = training.timed_alone(worker, batch, steps, float(np.median(seconds)))
        training.gather_results(worker, weights, losses, seconds, alone)
    worker.close()


def die_with_input() -> None:
    """Kill this process when its standard input ends."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)


def check_versions(first: Mapping[str, str], local: Mapping[str, str], node: str) -> None:
    """Raise EvenhandError if this worker runs other versions than the first."""
    differences = [
        f"{package} {local.get(package) or 'missing'}, "
        f"{first.get(package) or 'missing'} on the first"
        for package in sorted({*first, *local})
        if (local.get(package) or "") != (first.get(package) or "")
    ]
    if differences:
        where = f" on {node}" if node else ""
        raise EvenhandError(
            f"runs different versions{where}: {'; '.join(differences)}; "
            "install the same on all nodes"
        )


def check_reachable(probe: str, seconds: float, node: str) -> None:
    """Raise EvenhandError if the first's machine is not reached.

    TensorFlow would wait for an hour.
    """
    host, _, port = probe.rpartition(":")
    try:
        socket.create_connection((host, int(port)), seconds).close()
    except OSError as error:
        why = str(error) if isinstance(error, TimeoutError) else error.strerror or str(error)
        where = f", from {node}" if node else ""
        raise EvenhandError(
            f"does not reach the first at {probe} (rendezvous=…), "
            f"{seconds:g} s at most: {why}{where}"
        ) from None


def prove(
    framework: Framework, worker: Any, batch: Any, place: Place, task: Mapping[str, Any], hook: str
) -> None:
    """Train, and write the weights and, with a lossy hook, the length of single steps."""
    steps, path = task["steps"], Path(task["weights"])
    framework.drop_nothing(worker.network)
    is_lossy, moved = hook != "none", list[float]()
    if is_lossy and place.workers == 1:
        moved = training.moves(framework, worker, batch, steps)
    elif is_lossy:
        training.timed(worker, batch, steps - 1)
        worker.settle()
        training.timed(worker, batch, 1)
    else:
        training.timed(worker, batch, steps)
    if place.rank == 0:
        arrays: dict[str, Any] = {**framework.weights(worker.network), training.MOVED: moved}
        np.savez(path, **arrays)
    worker.gathered([0.0])  # no worker leaves before all have finished


if __name__ == "__main__":
    sys.exit(main())

"""A worker that is not the cell's process: told what to do, it trains along with the others and ends.

It is told on standard input. One whose partners have failed ends as well; where the first does not, being frozen, it is
killed, so that the cell ends.
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

from experiments.cell import peak_memory
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
    told = json.loads(sys.stdin.readline())
    if told["elsewhere"]:
        for number in (signal.SIGTERM, signal.SIGUSR2):  # the job's, which ends the cell in order
            signal.signal(number, signal.SIG_IGN)
    else:
        die_with_parent(signal.SIGKILL)
    parent = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        work(CellSpec.of(told["spec"]), told, parent)
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
    """Kill this process when its standard input ends: on another node no parent is seen to die."""

    def wait() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def work(spec: CellSpec, told: Mapping[str, Any], parent: TextIO) -> None:
    """Opens the framework, meets the others, trains."""
    check_versions(told["versions"], group.versions(spec.framework), told["node"])
    place = Place(told["rank"], told["addresses"])
    if place.rank:
        check_reachable(told["probe"], spec.settings["patience_seconds"], told["node"])
    framework = opened(spec)
    print("ready", file=parent, flush=True)
    if not sys.stdin.readline():
        raise EvenhandError("the first has left before all were there")
    if told["elsewhere"]:
        die_with_input()
    if told.get("weights"):
        prove(framework, place, spec.settings, told["steps"], Path(told["weights"]))
    else:
        train(framework, place, spec)


def check_versions(first: Mapping[str, str], own: Mapping[str, str], node: str) -> None:
    """Raises EvenhandError where this worker runs other versions than the first."""
    apart = [
        f"{package} {own.get(package) or 'missing'}, {first.get(package) or 'missing'} on the first"
        for package in sorted({*first, *own})
        if (own.get(package) or "") != (first.get(package) or "")
    ]
    if apart:
        where = f" on {node}" if node else ""
        raise EvenhandError(
            f"runs different versions{where}: {'; '.join(apart)}; install the same on all nodes"
        )


def check_reachable(probe: str, seconds: float, node: str) -> None:
    """Raises EvenhandError where the first's machine is not reached: TensorFlow would wait an hour."""
    host, _, port = probe.rpartition(":")
    try:
        socket.create_connection((host, int(port)), seconds).close()
    except OSError as error:
        why = str(error) if isinstance(error, TimeoutError) else error.strerror or str(error)
        where = f", from {node}" if node else ""
        raise EvenhandError(
            f"does not reach the first at {probe} (rendezvous=…), {seconds:g} s at most: {why}{where}"
        ) from None


def train(framework: Framework, place: Place, spec: CellSpec) -> None:
    """The steps that the first worker times, and what it asks of the others after them."""
    settings = spec.settings
    joined, batch = (
        training.joined(framework, place, settings),
        training.part(framework, place, settings),
    )
    joined.gathered([os.getpid()])
    steps = settings["warmup_steps"] + settings["steps"]
    seconds, losses = training.timed(joined, batch, steps)
    weights = training.fingerprint(framework.weights(joined.network))
    alone = training.timed_alone(joined, batch, steps, float(np.median(seconds)))
    joined.gathered([weights, peak_memory.rss_bytes(), np.mean(losses), *seconds, *alone])
    joined.close()


def prove(framework: Any, place: Place, settings: dict[str, Any], steps: int, path: Path) -> None:
    """So many steps, and the weights after them in a file; what a lossy hook is judged by with those of one worker."""
    joined, batch = (
        training.joined(framework, place, settings),
        training.part(framework, place, settings),
    )
    framework.drop_nothing(joined.network)
    lossy, moved = settings["hook"] != "none", list[float]()
    if lossy and place.workers == 1:
        moved = training.moves(framework, joined, batch, steps)
    else:
        training.timed(joined, batch, steps - lossy)
    if lossy and place.workers > 1:
        joined.settle()
        training.timed(joined, batch, 1)
    if place.rank == 0:
        kept: dict[str, Any] = {
            **framework.weights(joined.network),
            training.MOVED: np.array(moved),
        }
        np.savez(path, **kept)
    joined.gathered([0.0])  # nobody leaves before all are there
    joined.close()


if __name__ == "__main__":
    sys.exit(main())

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
from typing import Any, TextIO

import numpy as np

from experiments.cell import peak_memory
from experiments.cell.lifetime import die_with_parent
from experiments.cell.opening import opened
from experiments.contract import CellSpec
from experiments.studies.distributed import Settings
from experiments.workloads.distributed import group, training
from models.contract import Framework
from tracking.errors import ErrorCode, EvenhandError

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
        work(CellSpec.from_values(task["spec"], Settings), task, parent)
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


def work(spec: CellSpec[Settings], task: Mapping[str, Any], parent: TextIO) -> None:
    """Open the framework, join the others, and train."""
    check_versions(task["versions"], group.versions(spec.framework), task["node"])
    rank, addresses = task["rank"], task["addresses"]
    if rank:
        check_reachable(task["probe"], spec.settings.patience_seconds, task["node"])
    framework = opened(spec)
    print("ready", file=parent, flush=True)
    if not sys.stdin.readline():
        raise EvenhandError(ErrorCode.INTERRUPTED, "the first worker ended before all were ready")
    if task["elsewhere"]:  # no parent on another node is seen to die
        threading.Thread(target=die_with_input, daemon=True).start()
    worker = training.joined(framework, rank, addresses, spec.settings)
    batch = training.part(framework, rank, len(addresses), spec.settings)
    if task.get("weights"):
        prove(framework, worker, batch, task, spec.settings.hook)
    else:
        worker.gathered([os.getpid()])
        steps = spec.settings.warmup_steps + spec.settings.steps
        seconds, losses = training.time_steps(worker, batch, steps)
        digest = training.digest(framework.weights(worker.network))
        training.time_without_exchange(worker, batch, steps, float(np.median(seconds)))
        worker.gathered([digest, peak_memory.rss_bytes(), np.mean(losses)])
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
            ErrorCode.CONFLICT,
            f"runs different versions{where}: {'; '.join(differences)}; "
            "install the same on all nodes",
        )


def check_reachable(probe: str, seconds: float, node: str) -> None:
    """Raise EvenhandError if the first's machine is not reached.

    TensorFlow would wait for an hour.
    """
    host, _, port = probe.rpartition(":")
    try:
        socket.create_connection((host, int(port)), seconds).close()
    except OSError as error:
        where = f", from {node}" if node else ""
        raise EvenhandError(
            ErrorCode.UNREACHABLE,
            f"does not reach the first at {probe} (rendezvous=…) within {seconds:g} s: "
            f"{error}{where}",
        ) from None


def prove(
    framework: Framework, worker: Any, batch: Any, task: Mapping[str, Any], hook: str
) -> None:
    """Train, and write the weights; a lossy hook adds in the last step what it has left out."""
    framework.drop_nothing(worker.network)
    training.time_steps(worker, batch, task["steps"] - 1)
    if hook != "none" and len(task["addresses"]) > 1:
        worker.settle()
    training.time_steps(worker, batch, 1)
    if task["rank"] == 0:
        arrays: dict[str, Any] = dict(framework.weights(worker.network))
        np.savez(task["weights"], **arrays)
    worker.gathered([0.0])  # no worker leaves before all have finished


if __name__ == "__main__":
    sys.exit(main())

"""A worker that is not the first: told what to do on standard input, it trains along with the others and ends.

One whose partners have failed ends as well; where the first does not, being frozen, it is killed, so that the cell ends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cell import peak_memory
from experiments.cell.contract import CellSpec
from experiments.cell.lifetime import die_with_parent
from experiments.workloads.distributed import training
from experiments.workloads.distributed.training import Place
from models import frameworks

GRACE_SECONDS = 10.0


def main() -> int:
    die_with_parent(signal.SIGKILL)
    first = os.getppid()
    told = json.loads(sys.stdin.read())
    spec = CellSpec(**{field.name: told["spec"][field.name] for field in dataclasses.fields(CellSpec)})
    place = Place(**told["place"])
    try:
        with frameworks.lean_import(spec.framework):
            framework = frameworks.open_framework(
                spec.framework,
                device=spec.device,
                threads=spec.threads,
                precision=spec.settings["precision"],
                seed=spec.settings["seed"] * 1_000 + spec.block,
                conv_algorithm=spec.settings["conv_algorithm"],
            )
        if told.get("weights"):
            prove(framework, place, spec.settings, told["steps"], Path(told["weights"]))
        else:
            train(framework, place, spec.settings)
    except Exception:
        traceback.print_exc()
        if place.rank and not told.get("weights"):
            time.sleep(GRACE_SECONDS)  # the first says why, and this process dies with it
            os.kill(first, signal.SIGKILL)
        return 1
    return 0


def train(framework: Any, place: Place, settings: dict[str, Any]) -> None:
    """The steps that the first worker times, and what it asks of the others after them."""
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

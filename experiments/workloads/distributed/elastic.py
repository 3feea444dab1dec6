"""A cell whose workers are all started again from their last checkpoint where one of them dies, by torchrun."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cell.contract import CellSpec, Output
from experiments.workloads.distributed import group
from experiments.workloads.distributed.training import Place
from models import frameworks
from models.contract import Framework
from models.weights import read_safetensors, write_safetensors
from tracking.errors import EvenhandError

CHECKPOINT = "workers.safetensors"
LOOK_SECONDS = 1.0


def run(spec: CellSpec, output: Output) -> None:
    """All workers are torchrun's: the first writes the cell's records itself. Raises EvenhandError where they end badly."""
    path = spec.path / "told.json"
    path.write_text(json.dumps({"spec": dataclasses.asdict(spec)}), encoding="utf-8")
    agent = group.Agent(spec, path, output)
    try:
        while not agent.wait(LOOK_SECONDS):
            if why := agent.trouble():
                raise EvenhandError(why)
    finally:
        agent.kill()
        (spec.path / CHECKPOINT).unlink(missing_ok=True)


def restarts() -> int:
    """How often torchrun has started the workers again; 0 where they are not torchrun's."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def tags() -> dict[str, str]:
    """What a run says of it: nothing where there was none."""
    return {"workers.restarts": str(restarts())} if restarts() else {}


def place() -> Place:
    """This worker's place in its group, as torchrun has told it; what it meets the others at is torchrun's."""
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    return Place(int(os.environ["RANK"]), [address] * int(os.environ["WORLD_SIZE"]))


def checkpoints(spec: CellSpec, framework: Framework, rank: int) -> Checkpoints | None:
    """Those of a cell whose workers may be started again; none of others."""
    if not spec.settings["max_restarts"]:
        return None
    return Checkpoints(framework, rank, spec.path / CHECKPOINT, spec.settings["checkpoint_steps"])


@dataclass(frozen=True)
class Checkpoints:
    """What restarted workers go on from: one file, which the first writes after so many steps of all. rank: of this one."""

    framework: Framework
    rank: int
    path: Path
    every: int

    def load(self, workers: Any) -> tuple[list[float], list[float]]:
        """Puts the last into this worker's network, optimizer and random state. Returns its seconds and losses so far."""
        if not self.path.exists():
            return [], []
        kept = read_safetensors(self.path)
        self.framework.load_weights(workers.network, _part(kept, "weights"))
        self.framework.load_optimizer_state(workers.optimizer, _part(kept, "optimizer"))
        frameworks.workers(self.framework.name).draw_from(kept["random"])
        seconds, losses = kept["table"][self.rank].reshape(2, -1)
        return seconds.tolist(), losses.tolist()

    def save(self, workers: Any, seconds: list[float], losses: list[float]) -> None:
        """Every worker's seconds and losses; of what is equal everywhere that of the first. A kill leaves the old or the new."""
        table = workers.gathered([*seconds, *losses])
        if self.rank:
            return
        optimizer = self.framework.optimizer_state(workers.optimizer)
        parts = {"weights": self.framework.weights(workers.network), "optimizer": optimizer}
        arrays = {f"{part}/{name}": array for part, found in parts.items() for name, array in found.items()}
        random = frameworks.workers(self.framework.name).random_state()
        new = self.path.with_suffix(".new")
        write_safetensors({**arrays, "random": random, "table": np.asarray(table)}, new)
        os.replace(new, self.path)


def _part(kept: Mapping[str, Any], part: str) -> dict[str, Any]:
    return {name.removeprefix(f"{part}/"): array for name, array in kept.items() if name.startswith(f"{part}/")}

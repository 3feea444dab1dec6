"""A training's state after its last whole epoch, so that an interrupted cell continues instead of starting again."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from experiments.cell.timing import Window
from models.contract import Framework, ModelError
from models.weights import read_safetensors, write_safetensors
from tracking.errors import EvenhandError


@dataclass
class TrainingState:
    """What a training has behind it: seconds of every step, when it ended, where processes began, metrics by epoch, totals.

    seconds, ended, starts: of the steps that were timed one by one; windows: of all others. on_device_seconds: of those by the
    device's own clock. held_up: whether anything waited for the device inside of a window. epoch_seconds: of training alone.
    input_seconds: waited for batches, where that is outside of the steps. page_faults: of every epoch.
    warmups: steps of each start that do not count.
    """

    seconds: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    on_device_seconds: list[float] = field(default_factory=list)
    held_up: bool = False
    by_epoch: list[dict[str, float]] = field(default_factory=list)
    epoch_seconds: list[float] = field(default_factory=list)
    total_seconds: float = 0.0
    validation_seconds: float = 0.0
    input_seconds: float = 0.0
    page_faults: list[int] = field(default_factory=list)
    warmups: list[int] = field(default_factory=list)
    peak_rss_bytes: float = 0.0

    @property
    def steps(self) -> int:
        return len(self.seconds) + sum(one.steps for one in self.windows)


class Checkpoint:
    """One folder, replaced as a whole: a kill at any moment leaves the old or the new state, never half of one."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._folder = folder
        self._settings = settings

    def save(
        self, framework: Framework, network: Any, optimizer: Any, state: TrainingState
    ) -> None:
        new, old = (
            self._folder.with_name("checkpoint.new"),
            self._folder.with_name("checkpoint.old"),
        )
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        write_safetensors(framework.weights(network), new / "weights.safetensors")
        write_safetensors(framework.optimizer_state(optimizer), new / "optimizer.safetensors")
        (new / "past.json").write_text(json.dumps({**asdict(state), "settings": self._settings}))
        shutil.rmtree(old, ignore_errors=True)
        if self._folder.exists():
            os.replace(self._folder, old)
        os.replace(new, self._folder)
        shutil.rmtree(old, ignore_errors=True)

    def load(self, framework: Framework, network: Any, optimizer: Any) -> TrainingState:
        """The state of the last whole epoch put into network and optimizer; nothing done yet if there is none."""
        folder = self._folder if self._folder.exists() else self._folder.with_name("checkpoint.old")
        if not folder.exists():
            return TrainingState()
        kept, state = _state(folder)
        if kept != json.loads(json.dumps(self._settings)):
            raise EvenhandError(
                f"the checkpoint in {folder} belongs to other settings; remove it to start this cell again"
            )
        try:
            framework.load_weights(network, read_safetensors(folder / "weights.safetensors"))
            framework.load_optimizer_state(
                optimizer, read_safetensors(folder / "optimizer.safetensors")
            )
        except (ModelError, OSError) as error:
            raise EvenhandError(
                f"the checkpoint in {folder} does not fit: {error}; remove it to start this cell again"
            ) from None
        return state


def _state(folder: Path) -> tuple[Any, TrainingState]:
    """The settings that a checkpoint belongs to, and what it has behind it."""
    try:
        kept = json.loads((folder / "past.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EvenhandError(
            f"the checkpoint in {folder} cannot be read: {error}; remove it to start this cell again"
        ) from None
    kinds = {name: type(value) for name, value in asdict(TrainingState()).items()} | {
        "settings": dict
    }
    if not isinstance(kept, dict) or {name: type(value) for name, value in kept.items()} != kinds:
        raise EvenhandError(
            f"the checkpoint in {folder} is damaged: past.json; remove it to start this cell again"
        )
    settings, windows = kept.pop("settings"), [Window(*one) for one in kept.pop("windows")]
    return settings, TrainingState(**kept, windows=windows)

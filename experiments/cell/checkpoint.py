"""State of a training after its last whole epoch, from which an interrupted cell continues."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cell.timing import Window
from models.contract import Framework, ModelError
from models.weights import read_safetensors, write_safetensors
from tracking.errors import ErrorCode, EvenhandError

DAMAGES = (
    AttributeError,
    KeyError,
    ModelError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass
class TrainingState:
    """Progress of a training, whose lists have an entry for each step, process or epoch.

    Attributes:
        seconds, end_times, starts: Of the steps that were timed one by one; `windows` has all
            others.
        held_up: Whether anything waited for the device inside of a window.
        epoch_seconds: Of training, without validation.
        input_seconds: Wait for batches outside of the steps.
        warmups: Steps of each start that do not count.
    """

    seconds: list[float] = field(default_factory=list)
    end_times: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    held_up: bool = False
    by_epoch: list[dict[str, float]] = field(default_factory=list)
    epoch_seconds: list[float] = field(default_factory=list)
    total_seconds: float = 0.0
    validation_seconds: float = 0.0
    input_seconds: float = 0.0
    warmups: list[int] = field(default_factory=list)
    peak_rss_bytes: float = 0.0

    @property
    def steps(self) -> int:
        return len(self.seconds) + sum(window.steps for window in self.windows)

    def summary(self, examples: int) -> dict[str, float]:
        """Return the first epoch, the median of the rest, validation, and the wait for batches.

        Throughput is total over total, without the first epoch where there are several.

        Args:
            examples: Examples of an epoch.
        """
        later = self.epoch_seconds[1:]
        counted = later or self.epoch_seconds
        metrics = {
            "train/first_epoch_seconds": self.epoch_seconds[0],
            "val/total_seconds": self.validation_seconds,
            "train/epoch_examples_per_second": len(counted) * examples / sum(counted),
        }
        if later:
            metrics["train/epoch_seconds"] = float(np.median(later))
        if self.input_seconds:
            metrics["input/seconds_mean"] = self.input_seconds / self.steps
            metrics["input/share_percent"] = 100 * self.input_seconds / self.total_seconds
        return metrics


class Checkpoint:
    """Folder that is replaced as a whole: a kill leaves the old or the new state."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._folder, self._settings = folder, settings

    def save(
        self, framework: Framework, network: Any, optimizer: Any, state: TrainingState
    ) -> None:
        new = self._folder.with_name("checkpoint.new")
        old = self._folder.with_name("checkpoint.old")
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
        """Load the last whole epoch into network and optimizer; an empty state if there is none."""
        folder = self._folder if self._folder.exists() else self._folder.with_name("checkpoint.old")
        if not folder.exists():
            return TrainingState()
        try:
            content = json.loads((folder / "past.json").read_text(encoding="utf-8"))
            if content.pop("settings") != json.loads(json.dumps(self._settings)):
                raise ValueError("it belongs to other settings")
            windows = [Window(*window) for window in content.pop("windows")]
            state = TrainingState(**content, windows=windows)
            framework.load_weights(network, read_safetensors(folder / "weights.safetensors"))
            framework.load_optimizer_state(
                optimizer, read_safetensors(folder / "optimizer.safetensors")
            )
        except DAMAGES as error:
            raise EvenhandError(
                ErrorCode.UNREADABLE,
                f"the checkpoint in {folder} cannot be used: {error}; "
                "remove it to start this cell again",
            ) from None
        return state

"""A training's state after its last whole epoch, so that an interrupted cell continues instead of starting again."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from models.contract import Framework, ModelError
from tracking.errors import EvenhandError


@dataclass
class Past:
    """What a training has behind it: seconds of every step, the steps at which processes began, metrics by epoch, totals.

    epoch_seconds: of training alone. input_seconds: waited for batches, where that is outside of the steps.
    """

    seconds: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    by_epoch: list[dict[str, float]] = field(default_factory=list)
    epoch_seconds: list[float] = field(default_factory=list)
    total_seconds: float = 0.0
    validation_seconds: float = 0.0
    input_seconds: float = 0.0
    peak_rss_bytes: float = 0.0


class Checkpoint:
    """One folder, replaced as a whole: a kill at any moment leaves the old or the new state, never half of one."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._folder = folder
        self._settings = settings

    def save(self, framework: Framework, network: Any, optimiser: Any, past: Past) -> None:
        new, old = self._folder.with_name("checkpoint.new"), self._folder.with_name("checkpoint.old")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        save_file(framework.weights(network), new / "weights.safetensors")
        save_file(framework.optimiser_state(optimiser), new / "optimiser.safetensors")
        (new / "past.json").write_text(json.dumps({**asdict(past), "settings": self._settings}))
        shutil.rmtree(old, ignore_errors=True)
        if self._folder.exists():
            os.replace(self._folder, old)
        os.replace(new, self._folder)
        shutil.rmtree(old, ignore_errors=True)

    def load(self, framework: Framework, network: Any, optimiser: Any) -> Past:
        """The state of the last whole epoch put into network and optimiser; nothing done yet if there is none."""
        folder = self._folder if self._folder.exists() else self._folder.with_name("checkpoint.old")
        if not folder.exists():
            return Past()
        kept = json.loads((folder / "past.json").read_text())
        if json.loads(json.dumps(kept.pop("settings"))) != json.loads(json.dumps(self._settings)):
            raise EvenhandError(f"the checkpoint in {folder} belongs to other settings; remove it to start this cell again")
        try:
            framework.load_weights(network, load_file(folder / "weights.safetensors"))
            framework.load_optimiser_state(optimiser, load_file(folder / "optimiser.safetensors"))
        except (ModelError, OSError) as error:
            raise EvenhandError(f"the checkpoint in {folder} does not fit: {error}") from None
        return Past(**kept)

"""Record of the settings, weights and batches that a process has received.

EVENHAND_TOY_SEEN: any text; then `Adapter.versions` has the record, and so has the run's
environment.json.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import resource
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from models.contract import Array, Batch, OptimizerConfig
from models.weights import digest

_TIMES, _BYTES = 3, 40_000_000


class Seen:
    """Record of the options with which the framework was opened, and of its calls."""

    def __init__(self, **options: Any) -> None:
        self.enabled = bool(os.environ.get("EVENHAND_TOY_SEEN"))
        self._values: dict[str, Any] = dict(options)
        self._calls: Counter[str] = Counter()

    def build(self, spec: Any) -> None:
        if self.enabled:
            self._values["spec"] = {
                name: str(value) for name, value in dataclasses.asdict(spec).items()
            }

    def weights(self, weights: Mapping[str, Array]) -> None:
        if self.enabled:
            self._values.setdefault("weights", digest(weights))

    def optimizer(self, config: OptimizerConfig) -> None:
        self._values["optimizer"] = dataclasses.asdict(config)

    def epoch(self) -> None:
        self._calls["epochs"] += 1

    def step(self, batch: Batch) -> None:
        if self.enabled:
            self._calls["steps"] += 1
            shapes = [list(np.shape(array)) for array in batch.inputs]
            pixels = np.ascontiguousarray(batch.inputs[0]).tobytes()
            self._values.setdefault(
                "inputs", {"shapes": shapes, "digest": hashlib.sha256(pixels).hexdigest()[:12]}
            )

    def evaluated(self, batch: Batch) -> None:
        self._calls["evaluated"] += int(np.count_nonzero(batch.weights))
        self._calls["evaluations"] += 1

    def answered(self, inputs: tuple[Array, ...], options: Mapping[str, int]) -> None:
        named = [f"{name}={options[name]}" for name in ("words", "beams") if name in options]
        self._calls[
            " ".join(["answers", *named, f"shape={'x'.join(map(str, inputs[0].shape))}"])
        ] += 1

    def as_text(self) -> str:
        return json.dumps(
            {
                **self._values,
                "calls": dict(self._calls),
                "affinity": sorted(os.sched_getaffinity(0)),
                "memory_limit": resource.getrlimit(resource.RLIMIT_DATA)[0],
                "faults": _faults(),
                "environment": {
                    name: text
                    for name, text in os.environ.items()
                    if name.startswith("EVENHAND_TOY_")
                },
            }
        )


def _faults() -> int:
    """Return the pages that are mapped anew when freed memory is allocated again."""
    bytes([1]) * _BYTES
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(_TIMES):
        bytes([1]) * _BYTES
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

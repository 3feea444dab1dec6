"""How long a training is at another batch size: the same examples an epoch, and enough steps to be measured. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from experiments.config.settings import CampaignSettings
from experiments.contract import Study

# What can be compared where one run trains more than the other: rates, and what a step, a request or the memory takes.
RATES = (
    *(
        "*_per_second",
        "*_per_example",
        "train/step_seconds*",
        "train/on_device_step_seconds*",
        "train/first_step_seconds",
    ),
    *("inference/*", "input/*"),
    *(
        "memory/*",
        "power/*",
        "*_percent_mean",
        "*_celsius_mean",
        "*_celsius_max",
        "*_megahertz_mean",
        "model/*",
    ),
)

# The settings that say how long a training is.
LENGTH = ("steps_per_epoch", "epochs")


@dataclass(frozen=True)
class Length:
    """How long the default settings train, and from that, how long other batch sizes do.

    examples: of an epoch. kept: settings that are searched themselves, and so never changed here.
    """

    batch_size: int
    examples: int
    epochs: int
    least_steps: int
    what: str
    kept: Collection[str] = ()

    def settings(self, batch_size: int) -> dict[str, int]:
        """`steps_per_epoch` and `epochs` at that batch size; none where it is the default's own."""
        if batch_size == self.batch_size or "steps_per_epoch" in self.kept:
            return {}
        steps = max(1, self.examples // batch_size)
        own = {
            "steps_per_epoch": steps,
            "epochs": max(self.epochs, math.ceil(self.least_steps / steps)),
        }
        return {name: value for name, value in own.items() if name not in self.kept}

    def steps(self, batch_size: int) -> int:
        """Steps of a whole training at that batch size."""
        own = self.settings(batch_size)
        return own.get("epochs", self.epochs) * own.get(
            "steps_per_epoch", self.examples // self.batch_size
        )

    def difference(self, batch_sizes: Iterable[int], margin: float) -> str:
        """How much the trainings at these batch sizes differ, in words; empty where that is within the margin."""
        least, most = self._extremes(batch_sizes)
        if most <= least * (1 + margin):
            return ""
        return (
            f"one training sees {least:,} {self.what}, another {most:,}: only rates can be compared"
        )

    def remedy(self, batch_sizes: Iterable[int], margin: float) -> str:
        """The epochs, if there are any, with which trainings at all these batch sizes do the same work."""
        sizes = list(batch_sizes)
        epochs = max(self.settings(size).get("epochs", self.epochs) for size in sizes)
        same = not dataclasses.replace(self, epochs=epochs).difference(sizes, margin)
        return (
            f"epochs={epochs}"
            if same
            else f"batch sizes that divide {self.examples:,}, and epochs={epochs}"
        )

    def _extremes(self, batch_sizes: Iterable[int]) -> tuple[int, int]:
        seen = [size * self.steps(size) for size in batch_sizes]
        return min(seen), max(seen)


def of(
    study: Study, settings: CampaignSettings, counts: Mapping[str, int], kept: Collection[str] = ()
) -> Length | None:
    """The length of a training with these settings; None where the study does not say how it scales. counts: of its data."""
    scaling = study.scaling
    if scaling is None:
        return None
    values: Any = settings
    steps = values.steps_per_epoch or counts[scaling.examples] // values.batch_size
    measured = min(scaling.measured_steps, steps * values.epochs - values.warmup_steps)
    what = scaling.examples.replace("_", " ")
    return Length(
        values.batch_size,
        steps * values.batch_size,
        values.epochs,
        values.warmup_steps + measured,
        what,
        kept,
    )


def is_rate(metric: str) -> bool:
    """Whether runs that train differently much can be compared by it."""
    return any(fnmatch(metric, one) for one in RATES)

"""Length of a training at another batch size: the same examples per epoch, and enough steps."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from experiments import metrics
from experiments.config.settings import CampaignSettings
from experiments.contract import Study

# Settings that determine how long a training is.
LENGTH = ("steps_per_epoch", "epochs")
# Metrics of requests, waiting and the machine, whatever they measure.
NEVER_TOTALS = ("inference/", "input/", "memory/", "power/", "model/")


@dataclass(frozen=True)
class Length:
    """Length of the training with the default settings, and from that with other batch sizes.

    Attributes:
        examples: Of an epoch.
        searched: Settings that are searched themselves, and so never changed here.
    """

    batch_size: int
    examples: int
    epochs: int
    least_steps: int
    what: str
    searched: Collection[str] = ()

    def settings(self, batch_size: int) -> dict[str, int]:
        """Return `steps_per_epoch` and `epochs` at a batch size; nothing at the default's."""
        if batch_size == self.batch_size or "steps_per_epoch" in self.searched:
            return {}
        steps = max(1, self.examples // batch_size)
        epochs = max(self.epochs, math.ceil(self.least_steps / steps))
        values = {"steps_per_epoch": steps, "epochs": epochs}
        return {name: value for name, value in values.items() if name not in self.searched}

    def steps(self, batch_size: int) -> int:
        """Return the steps of a whole training at a batch size."""
        values = self.settings(batch_size)
        steps = values.get("steps_per_epoch", self.examples // self.batch_size)
        return values.get("epochs", self.epochs) * steps

    def difference(self, batch_sizes: Iterable[int], margin: float) -> str:
        """Return how the trainings at these batch sizes differ; empty if within the margin."""
        examples = [size * self.steps(size) for size in batch_sizes]
        if max(examples) <= min(examples) * (1 + margin):
            return ""
        return rates_only(examples, self.what)


def of(
    study: Study,
    settings: CampaignSettings,
    counts: Mapping[str, int],
    searched: Collection[str] = (),
) -> Length | None:
    """Return the length of a training; None if the study has none. counts: of its data."""
    scaling = study.scaling
    if scaling is None:
        return None
    values: Any = settings
    steps = values.steps_per_epoch or counts[scaling.examples] // values.batch_size
    measured = min(scaling.measured_steps, steps * values.epochs - values.warmup_steps)
    return Length(
        values.batch_size,
        steps * values.batch_size,
        values.epochs,
        values.warmup_steps + measured,
        scaling.examples.replace("_", " "),
        searched,
    )


def rates_only(examples: Collection[int], noun: str) -> str:
    """Return the warning for trainings with these numbers of examples."""
    return (
        f"one training sees {min(examples):,} {noun}, another {max(examples):,}: "
        "only rates can be compared"
    )


def is_rate(metric: str) -> bool:
    """Return True if runs with different amounts of training can be compared by a metric."""
    name = metrics.without_batch(metric)
    return name.startswith(NEVER_TOTALS) or not metrics.outcome(name).total

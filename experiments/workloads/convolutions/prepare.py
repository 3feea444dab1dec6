"""In the parent: what can be wrong is what can be in training_speed, at every batch size."""

from __future__ import annotations

import dataclasses

from experiments.contract import DatasetInfo, Prepared, Progress
from experiments.studies.conv_algorithm import Settings
from experiments.workloads.training_speed import prepare as training_speed


def prepare(settings: Settings, progress: Progress) -> Prepared:
    """Raises WrongCall."""
    for rows in settings.batch_sizes:
        found = training_speed.prepare(dataclasses.replace(settings, batch_size=rows), progress)
    counts = {f"batch of {rows}": rows for rows in settings.batch_sizes}
    text = f"random inputs of {settings.size} size, {' and '.join(settings.shapes)} lengths, drawn from the seed"
    return Prepared(DatasetInfo(found.dataset.name, found.dataset.digest, text, counts, {}), {})

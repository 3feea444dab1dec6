"""Checks of the points of a grid."""

from __future__ import annotations

from experiments.contract import DatasetInfo, Prepared, Progress, Workload
from experiments.studies.grid import Settings
from experiments.workloads import networks, steps


def prepare(settings: Settings, _: Progress) -> Prepared:
    """Raise UsageError for models, images and windows that cannot be measured."""
    is_trained = "train" in settings.phases
    if is_trained:
        least = settings.least_steps
        steps.check_windows(settings, least, f"least_steps={least} of a training")
    rows = ("batch_sizes", min(settings.batch_sizes)) if is_trained else None
    for name in settings.models:
        spec = networks.of_images(name, settings.frameworks, "models").Spec(
            classes=settings.classes
        )
        for side in settings.image_sizes:
            networks.check_images(name, spec, ("image_sizes", side), rows)
    sizes = ", ".join(f"{side} × {side}" for side in settings.image_sizes)
    text = f"standard normal, {sizes}, drawn from the seed"
    counts = {f"batch of {rows}": rows for rows in settings.batch_sizes}
    return Prepared(DatasetInfo("random-images", f"{settings.seed:08x}", text, counts, {}), {})


WORKLOAD = Workload(prepare=prepare)

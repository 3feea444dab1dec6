"""Checks of the points of a grid."""

from __future__ import annotations

from experiments.contract import DatasetInfo, Prepared, Progress, Workload
from experiments.studies.grid import PointSettings
from experiments.workloads import networks, steps


def prepare(settings: PointSettings, _: Progress) -> Prepared:
    """Raise UsageError for models, images and windows that cannot be measured."""
    rows = None
    if "train" in settings.phases:
        least = settings.least_steps
        steps.check_windows(settings, least, f"least_steps={least} of a training")
        rows = ("batch_sizes", min(settings.batch_sizes))
    sides = set[int]()
    for name in settings.models:
        spec = networks.of_images(name, settings.frameworks, "models").Spec(
            classes=settings.classes
        )
        for side in settings.sides(name):
            networks.check_images(name, spec, (settings.side_setting, side), rows)
            sides.add(side)
    sizes = ", ".join(f"{side} × {side}" for side in sorted(sides))
    text = f"standard normal, {sizes}, drawn from the seed"
    counts = {f"batch of {size}": size for size in settings.batch_sizes}
    return Prepared(DatasetInfo("random-images", f"{settings.seed:08x}", text, counts, {}), {})


WORKLOAD = Workload(prepare=prepare)

"""In the parent: whether every point of the grid can be asked for at all."""

from __future__ import annotations

from experiments.contract import DatasetInfo, Prepared, Progress, Workload
from experiments.studies.grid import Settings
from experiments.workloads import networks, steps


def prepare(settings: Settings, _: Progress) -> Prepared:
    """Raises WrongCall for a model that is not there, has no sibling in a framework, or cannot take the images; for windows."""
    if "train" in settings.phases:
        steps.check_windows(
            settings, settings.least_steps, f"least_steps={settings.least_steps} of a training"
        )
    for name in settings.models:
        spec = networks.of_images(name, settings.frameworks, "models")
        for side in settings.image_sizes:
            rows = (
                ("batch_sizes", min(settings.batch_sizes)) if "train" in settings.phases else None
            )
            networks.check_images(
                name, spec.Spec(classes=settings.classes), ("image_sizes", side), rows
            )
    sizes = ", ".join(f"{side} × {side}" for side in settings.image_sizes)
    counts = {f"batch of {rows}": rows for rows in settings.batch_sizes}
    info = DatasetInfo(
        "random-images",
        f"{settings.seed:08x}",
        f"standard normal, {sizes}, drawn from the seed",
        counts,
        {},
    )
    return Prepared(info, {})


WORKLOAD = Workload(prepare=prepare)

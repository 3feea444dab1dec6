"""In the parent: whether every point of the grid can be asked for at all."""

from __future__ import annotations

from experiments.contract import DatasetInfo, Prepared, Progress, Workload
from experiments.studies.grid import Settings
from experiments.workloads import networks, steps
from models.layers.images import ImageSpec
from tracking.errors import WrongCall


def prepare(settings: Settings, _: Progress) -> Prepared:
    """Raises WrongCall for a model that is not there, has no sibling in a framework, or cannot take the images; for windows."""
    if "train" in settings.phases:
        steps.check_windows(settings, settings.least_steps, f"least_steps={settings.least_steps} of a training")
    for name in settings.models:
        spec = networks.of_images(name, settings.frameworks, "models")
        _check_sizes(name, spec.Spec(classes=settings.classes), settings)
    sizes = ", ".join(f"{side} × {side}" for side in settings.image_sizes)
    counts = {f"batch of {rows}": rows for rows in settings.batch_sizes}
    info = DatasetInfo("random-images", f"{settings.seed:08x}", f"standard normal, {sizes}, drawn from the seed", counts, {})
    return Prepared(info, {})


def _check_sizes(name: str, spec: ImageSpec, settings: Settings) -> None:
    for side in settings.image_sizes:
        if reason := spec.refuses(side):
            raise WrongCall(f"image_sizes={side}: {name} {reason}")
        rows = min(settings.batch_sizes)
        if "train" in settings.phases and rows < spec.least_rows(side):
            raise WrongCall(
                f"batch_sizes={rows}: {name} cannot train on {rows} image of {side} × {side}, its last BatchNorm would see one "
                f"value a channel; take batches of {spec.least_rows(side)}, larger images, or phases=inference"
            )


WORKLOAD = Workload(prepare=prepare)

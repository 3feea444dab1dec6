"""In the parent: whether every network can be trained by several workers at all."""

from __future__ import annotations

from experiments.cell.contract import DatasetInfo, Prepared, Progress
from experiments.studies.distributed import Settings, rows
from experiments.workloads import networks
from tracking.errors import WrongCall


def prepare(settings: Settings, _: Progress) -> Prepared:
    """Raises WrongCall for a network that is not there, has BatchNorm, or cannot take the images."""
    for name in settings.models:
        module = networks.of_images(name, settings.frameworks, "models")
        sizes = module.Spec(classes=settings.classes)
        if module.parameters(sizes)[1]:
            raise WrongCall(
                f"models={name}: its BatchNorm sees a worker's own images alone, so that several do not train as one does; "
                f"take lenet or vgg16"
            )
        if reason := sizes.refuses(sizes.only_side or settings.image_side):
            raise WrongCall(f"image_side={settings.image_side}: {name} {reason}")
    counts = {f"images of each of {count}": rows(settings.batch_size, settings.scaling, count) for count in settings.workers}
    info = DatasetInfo("random-images", f"{settings.seed:08x}", "standard normal, drawn from the seed", counts, {})
    return Prepared(info, {})


def after_extraction(_: Settings, __: Prepared) -> tuple[str, ...]:
    """Warnings after the extraction of features: none, this study extracts none."""
    return ()

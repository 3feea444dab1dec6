"""In the parent: whether every network, framework and batch size can be asked for at all."""

from __future__ import annotations

from experiments.contract import DatasetInfo, Prepared, Progress, Workload
from experiments.studies.overhead import Settings, side_of
from experiments.workloads import networks
from models import frameworks
from tracking.errors import WrongCall


def prepare(settings: Settings, _: Progress) -> Prepared:
    """Raises WrongCall for a framework without a plain loop, and for a network that cannot be trained on the images."""
    have = frameworks.having(lambda one: one.has_plain_loop)
    for name in settings.frameworks:
        if name not in have:
            raise WrongCall(f"frameworks={name}: it has no plain loop to compare with; have {', '.join(have)}")
    for name in settings.models:
        spec = networks.of_images(name, settings.frameworks, "models").Spec(classes=settings.classes)
        side = side_of(name, settings)
        if reason := spec.refuses(side):
            raise WrongCall(f"image_side={side}: {name} {reason}")
        if "train" in settings.phases and min(settings.batch_sizes) < spec.least_rows(side):
            raise WrongCall(
                f"batch_sizes={min(settings.batch_sizes)}: {name} trains on batches of {spec.least_rows(side)} or more of images "
                f"of {side} × {side}, for its BatchNorm; take larger ones, a larger image_side, or phases=inference"
            )
    counts = {f"batch of {rows}": rows for rows in settings.batch_sizes}
    info = DatasetInfo("random-images", f"{settings.seed:08x}", "standard normal, drawn from the seed", counts, {})
    return Prepared(info, {})


WORKLOAD = Workload(prepare=prepare)

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
            raise WrongCall(
                f"frameworks={name}: it has no plain loop to compare with; have {', '.join(have)}"
            )
    for name in settings.models:
        spec = networks.of_images(name, settings.frameworks, "models").Spec(
            classes=settings.classes
        )
        rows = ("batch_sizes", min(settings.batch_sizes)) if "train" in settings.phases else None
        networks.check_images(name, spec, ("image_side", side_of(name, settings)), rows)
    counts = {f"batch of {rows}": rows for rows in settings.batch_sizes}
    info = DatasetInfo(
        "random-images", f"{settings.seed:08x}", "standard normal, drawn from the seed", counts, {}
    )
    return Prepared(info, {})


WORKLOAD = Workload(prepare=prepare)

"""Checks of networks, frameworks and batch sizes of the overhead study."""

from __future__ import annotations

from experiments.contract import DatasetInfo, Prepared, Progress, Workload
from experiments.studies.overhead import Settings, side_of
from experiments.workloads import networks
from models import frameworks
from tracking.errors import UsageError


def prepare(settings: Settings, _: Progress) -> Prepared:
    """Raise UsageError for a framework without a plain loop, and for networks and images."""
    have = frameworks.having(lambda variant: variant.has_plain_loop)
    for name in settings.frameworks:
        if name not in have:
            raise UsageError(
                f"frameworks={name}: it has no plain loop to compare with; have {', '.join(have)}"
            )
    rows = ("batch_sizes", min(settings.batch_sizes)) if "train" in settings.phases else None
    for name in settings.models:
        module = networks.of_images(name, settings.frameworks, "models")
        spec = module.Spec(classes=settings.classes)
        networks.check_images(name, spec, ("image_side", side_of(name, settings)), rows)
    counts = {f"batch of {rows}": rows for rows in settings.batch_sizes}
    text = "standard normal, drawn from the seed"
    return Prepared(DatasetInfo("random-images", f"{settings.seed:08x}", text, counts, {}), {})


WORKLOAD = Workload(prepare=prepare)

"""In the parent: whether every network can be trained by several workers at all."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from experiments.contract import DatasetInfo, Prepared, Progress, Workload
from experiments.studies.distributed import Settings, rows
from experiments.workloads import networks
from tracking.errors import WrongCall

# What checks found, and what cells are told of it; also the name of the file.
PROOFS = "workers_parity"


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
    counts = {
        f"images of each of {count}": rows(settings.batch_size, settings.scaling, count)
        for count in settings.workers
    }
    info = DatasetInfo(
        "random-images", f"{settings.seed:08x}", "standard normal, drawn from the seed", counts, {}
    )
    return Prepared(info, {})


def after_checks(prepared: Prepared, found: Sequence[Mapping[str, str]]) -> Prepared:
    """With the proofs of all frameworks: for the cells, as a tag and as a file."""
    proofs = [proof for one in found for proof in json.loads(one.get(PROOFS, "[]"))]
    lossy = any(one["hook"] != "none" for one in proofs)
    return dataclasses.replace(
        prepared,
        inputs={**prepared.inputs, PROOFS: proofs},
        tags={**prepared.tags, PROOFS: "within what compression may lose" if lossy else "equal"},
        files={**prepared.files, f"{PROOFS}.json": json.dumps(proofs, indent=1)},
    )


WORKLOAD = Workload(prepare=prepare, after_checks=after_checks)

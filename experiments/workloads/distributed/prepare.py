"""Checks that every network can be trained by several workers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from experiments.contract import DatasetInfo, Prepared, Progress, Workload
from experiments.studies.distributed import Settings, rows
from experiments.workloads import networks
from tracking.errors import ErrorCode, UsageError

# Results of the checks, for the cells; also the name of the file.
PROOFS = "workers_parity"


def prepare(settings: Settings, _: Progress) -> Prepared:
    """Raise UsageError for a network that does not exist, has BatchNorm or refuses the images."""
    for name in settings.models:
        module = networks.of_images(name, settings.frameworks, "models")
        sizes = module.Spec(classes=settings.classes)
        if module.parameters(sizes)[1]:
            raise UsageError(
                ErrorCode.UNSUPPORTED,
                f"models={name}: its BatchNorm sees only the images of one worker, so several "
                "workers do not train as one does; take lenet or vgg16",
            )
        side = sizes.only_side or settings.image_side
        networks.check_images(name, sizes, ("image_side", side))
    counts = {
        f"images of each of {count}": rows(settings.batch_size, settings.scaling, count)
        for count in settings.workers
    }
    text = "standard normal, drawn from the seed"
    return Prepared(DatasetInfo("random-images", f"{settings.seed:08x}", text, counts, {}), {})


def after_checks(prepared: Prepared, results: Sequence[Mapping[str, str]]) -> Prepared:
    """Add the proofs of all frameworks for the cells, as a tag and as a file."""
    proofs = [proof for tags in results for proof in json.loads(tags.get(PROOFS, "[]"))]
    is_lossy = any(proof["hook"] != "none" for proof in proofs)
    verdict = "within what compression may lose" if is_lossy else "equal"
    return dataclasses.replace(
        prepared,
        inputs={**prepared.inputs, PROOFS: proofs},
        tags={**prepared.tags, PROOFS: verdict},
        files={**prepared.files, f"{PROOFS}.json": json.dumps(proofs, indent=1)},
    )


WORKLOAD = Workload(prepare=prepare, after_checks=after_checks)

"""Images of one size, and checks of the network, the frameworks and the settings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from experiments.contract import DatasetInfo, Prepared, Progress, Workload
from experiments.datasets import labelled, marked_modules
from experiments.datasets.labelled.data import Labelled
from experiments.datasets.labelled.data import prepare as prepare_data
from experiments.studies.classification import Settings
from experiments.workloads import networks, steps
from models import frameworks, named
from models.contract import OptimizerConfig
from tracking.errors import ErrorCode, UsageError

LEFT_OUT = "left_out.json"


def prepare(settings: Settings, progress: Progress) -> Prepared:
    """Prepare the images.

    Raises:
        UsageError: For data, a network, a size or a schedule that cannot be used.
    """
    module = networks.of_images(settings.model, settings.frameworks, "model")
    OptimizerConfig(  # raises UsageError
        settings.optimizer, settings.learning_rate, settings.momentum, settings.weight_decay
    )
    have = frameworks.having(lambda variant: variant.has_pipeline)
    for name in settings.frameworks:
        if "native" in settings.input and name not in have:
            raise UsageError(
                ErrorCode.UNSUPPORTED,
                f"input=native: {name} has no input pipeline; have {', '.join(have)}",
            )
    if not settings.data:
        raise UsageError(
            ErrorCode.MISSING_VALUE,
            f"preset={settings.preset} needs its data: data=FOLDER, "
            "or data=digits, which is embedded",
        )
    side = module.Spec.only_side or settings.image_size
    networks.check_images(settings.model, module.Spec(), ("image_size", side))
    data = prepare_data(
        settings.data,
        side=side,
        channels=module.Spec.channels,
        cache=Path(settings.cache).resolve(),
        progress=progress,
    )
    steps.check(settings, len(data.training), "training images", data.name)
    rows = ("batch_size", settings.batch_size)
    spec = module.Spec(classes=len(data.classes))
    networks.check_images(settings.model, spec, ("image_size", data.side), rows)
    if settings.augmentation == "crop+mirror" and data.name in marked_modules(
        labelled.__name__, "NUMERALS"
    ):
        raise UsageError(
            ErrorCode.CONFLICT,
            f"augmentation=crop+mirror: a mirrored numeral of {data.name} is no numeral; "
            "take augmentation=crop",
        )
    counts = {
        "training images": len(data.training),
        "validation images": len(data.validation),
        "classes": len(data.classes),
    }
    columns = dict.fromkeys(("image", "label"), "string")
    left_out = (*data.folders_left_out, *data.left_out)
    return Prepared(
        DatasetInfo(data.name, data.digest, data.source, counts, columns),
        {"data": str(data.folder)},
        warnings=(*named.notes([settings.model]), *_warnings(settings, data)),
        files={LEFT_OUT: json.dumps(left_out, indent=1)} if left_out else {},
        left_out=left_out,
    )


def _warnings(settings: Settings, data: Labelled) -> list[str]:
    warnings = []
    if data.left_out:
        warnings.append(
            f"{len(data.left_out)} pictures cannot be read and were left out ({LEFT_OUT}), "
            f"the first {data.left_out[0]}"
        )
    if data.folders_left_out:
        warnings.append(
            f"class folders left out ({LEFT_OUT}): {len(data.folders_left_out)}, "
            f"the first {data.folders_left_out[0]}"
        )
    others = np.count_nonzero(data.files[data.training] == b"")
    if "native" in settings.input and data.in_files and others:
        warnings.append(
            f"input=native: {others} of {len(data.training)} training images are no plain JPEG "
            "or PNG; the frameworks do not decode these but read them from the cache"
        )
    return warnings


def measured_in_a_row(settings: Settings, prepared: Prepared) -> int:
    return steps.measured_in_a_row(settings, prepared.dataset.counts["training images"])


WORKLOAD = Workload(prepare=prepare, measured_in_a_row=measured_in_a_row)

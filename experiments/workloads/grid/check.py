"""Check of a runtime: the networks of a grid are exported, and their files compute the same."""

from __future__ import annotations

from itertools import product

import models
from experiments.contract import NOT_EXPORTED, CellSpec, Output
from experiments.studies.grid import Settings, network_label
from experiments.workloads.grid.measure import arrays, deploy, is_trained
from experiments.workloads.networks import refusal
from models.contract import Framework
from tracking.errors import ErrorCode, EvenhandError
from tracking.records import Tags


def run(spec: CellSpec[Settings], framework: Framework, output: Output) -> None:
    """Export every network, of every size of the images; a refusal is a result of the check."""
    settings = spec.settings
    if is_trained(spec):
        return
    for model, side in product(settings.models, settings.image_sizes):
        sizes = models.spec(model).Spec(classes=settings.classes)
        if refusal(model, sizes, side):
            continue
        output.progress(f"export {model}", 0, None)
        network = framework.build(model, sizes)
        framework.load_weights(network, arrays(settings, model, sizes))
        try:
            deploy(spec, framework, network, model, side)
        except EvenhandError as error:
            if error.code is not ErrorCode.NOT_EXPORTED:
                raise
            key = f"{NOT_EXPORTED}{spec.framework} · {network_label(model, side)}"
            output.record(Tags(spec.run, {key: str(error)}))

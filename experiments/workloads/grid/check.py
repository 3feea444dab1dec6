"""Check of a runtime: the networks of a grid are exported, and their files compute the same."""

from __future__ import annotations

import models
from experiments.contract import NOT_EXPORTED, CellSpec, Output
from experiments.studies import transformers
from experiments.studies.grid import Settings, network_label
from experiments.workloads.grid.measure import arrays, deploy, is_trained, sizes_of
from experiments.workloads.grid.prepare import longest
from experiments.workloads.networks import refusal
from models import named
from models.contract import Framework
from tracking.errors import ErrorCode, EvenhandError
from tracking.records import Tags


def run(
    spec: CellSpec[Settings] | CellSpec[transformers.Settings], framework: Framework, output: Output
) -> None:
    """Export every network; a refusal is a result of the check.

    Of images every size is exported, of sequences one file for all lengths.
    """
    if is_trained(spec):
        return
    settings = spec.settings
    if isinstance(settings, transformers.Settings):
        points = [(model, longest(settings, model), f"{model} · ") for model in settings.models]
    else:
        points = [
            (model, extent, network_label(model, extent))
            for model in settings.models
            for extent in settings.image_sizes
        ]
    for model, extent, label in points:
        key = f"{NOT_EXPORTED}{spec.framework} · {label}"
        sizes = sizes_of(settings, models.spec(model))
        if named.is_causal(model):
            output.record(Tags(spec.run, {key: f"{spec.framework} does not generate tokens"}))
            continue
        if not extent or (isinstance(settings, Settings) and refusal(model, sizes, extent)):
            continue
        output.progress(f"export {model}", 0, None)
        network = framework.build(model, sizes)
        framework.load_weights(network, arrays(settings, model, sizes))
        try:
            deploy(spec, framework, network, model, extent)
        except EvenhandError as error:
            if error.code is not ErrorCode.NOT_EXPORTED:
                raise
            output.record(Tags(spec.run, {key: str(error)}))

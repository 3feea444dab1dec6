"""Before any minute of compute: the framework opens, and its workers together make the same steps as one alone."""

from __future__ import annotations

import dataclasses
import json

from experiments.contract import CellSpec, Output
from experiments.studies import distributed
from experiments.workloads import opens
from experiments.workloads.distributed import proof
from experiments.workloads.distributed.prepare import PROOFS
from experiments.workloads.distributed.proof import Proof
from models.contract import Framework
from tracking.errors import EvenhandError
from tracking.records import Tags


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    opens.run(spec, framework, output)
    groups = distributed.groups(
        spec.settings["workers"], spec.settings["compression"], spec.framework
    )
    found = []
    for model in spec.settings["models"]:
        for level, (count, hook) in groups.items():
            if count > 1:
                found.append(proven(proof.of(spec, model, level, count, hook)))
    output.record(Tags(spec.run, {PROOFS: json.dumps([dataclasses.asdict(one) for one in found])}))


def proven(one: Proof) -> Proof:
    """The same. Raises EvenhandError where the weights differ by more than they may."""
    if not one.holds:
        how = "" if one.hook == "none" else f" with compression={one.hook}"
        raise EvenhandError(
            f"{one.workers} workers of {one.model}{how} do not train as one does: weights differ by {one.error:.1e} of the "
            f"{one.measure} after {one.steps} steps in float64, at most {one.limit:.1e} are allowed"
        )
    return one

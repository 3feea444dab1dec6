"""Check that several workers make the same steps as one, before any cell."""

from __future__ import annotations

import dataclasses
import json

from experiments.contract import CellSpec, Output
from experiments.studies import distributed
from experiments.workloads.distributed import proof
from experiments.workloads.distributed.prepare import PROOFS
from experiments.workloads.distributed.proof import Proof
from models.contract import Framework
from tracking.errors import EvenhandError
from tracking.records import Tags


def run(spec: CellSpec, _: Framework, output: Output) -> None:
    groups = distributed.groups(
        spec.settings["workers"], spec.settings["compression"], spec.framework
    )
    proofs = [
        proven(proof.run_proof(spec, model, level, count, hook))
        for model in spec.settings["models"]
        for level, (count, hook) in groups.items()
        if count > 1
    ]
    texts = json.dumps([dataclasses.asdict(proof) for proof in proofs])
    output.record(Tags(spec.run, {PROOFS: texts}))


def proven(proof: Proof) -> Proof:
    """Return the proof, or raise EvenhandError if the weights differ by more than the limit."""
    if proof.error > proof.limit:
        how = "" if proof.hook == "none" else f" with compression={proof.hook}"
        raise EvenhandError(
            f"{proof.workers} workers of {proof.model}{how} do not train as one does: weights "
            f"differ by {proof.error:.1e} of the {proof.measure} after {proof.steps} steps in "
            f"float64, at most {proof.limit:.1e} are allowed"
        )
    return proof

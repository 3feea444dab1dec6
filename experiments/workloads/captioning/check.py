"""Check that the weights fit the network, before any cell."""

from __future__ import annotations

from experiments.contract import CellSpec, Output
from experiments.workloads.captioning.features import encoder
from models.contract import Framework


def run(spec: CellSpec, framework: Framework, _: Output) -> None:
    source = spec.inputs.get("weights", "")
    if source not in ("", "random"):
        encoder(framework, source, spec.settings["seed"])

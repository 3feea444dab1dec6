"""Before any minute of compute: the framework opens on the device, and the weights fit the network."""

from __future__ import annotations

from experiments.contract import CellSpec, Output
from experiments.workloads import opens
from experiments.workloads.captioning.extract import encoder
from models.contract import Framework


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    opens.run(spec, framework, output)
    source = spec.inputs.get("weights", "")
    if source not in ("", "random"):
        encoder(framework, source, spec.settings["seed"])

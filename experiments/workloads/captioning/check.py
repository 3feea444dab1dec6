"""Before any minute of compute: the framework opens on the device, and the weights fit the network."""

from __future__ import annotations

import json

from experiments.cell.contract import CellSpec, Output
from experiments.workloads.captioning.extract import encoder
from models.contract import Framework


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    source = spec.inputs.get("weights", "")
    output.progress("check", 0, None)
    if source not in ("", "random"):
        encoder(framework, source, spec.settings["seed"])
    spec.path.mkdir(parents=True, exist_ok=True)
    (spec.path / "environment.json").write_text(json.dumps(framework.versions(), indent=1))

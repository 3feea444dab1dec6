"""Before any minute of compute: the framework opens on the device."""

from __future__ import annotations

import json

from experiments.contract import CellSpec, Output
from models.contract import Framework


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    output.progress("check", 0, None)
    spec.path.mkdir(parents=True, exist_ok=True)
    (spec.path / "environment.json").write_text(json.dumps(framework.versions(), indent=1))

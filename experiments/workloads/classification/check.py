"""Check of how long a step and a request take on a GPU, before any cell."""

from __future__ import annotations

from experiments.cell.trial import time_trial
from experiments.contract import CellSpec, Output
from experiments.studies.classification import Settings
from experiments.workloads.classification.train import Classification
from models.contract import Framework
from models.devices import CPU


def run(spec: CellSpec[Settings], framework: Framework, output: Output) -> None:
    if spec.settings.phase_seconds and framework.device != CPU:
        time_trial(Classification(spec), spec, framework, output)

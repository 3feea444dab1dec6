"""Check that the weights fit the network, and how long a step takes, before any cell."""

from __future__ import annotations

from experiments.cell.trial import time_trial
from experiments.contract import CellSpec, Output
from experiments.studies.captioning import Settings
from experiments.workloads.captioning.features import encoder
from experiments.workloads.captioning.train import Captioning
from models.contract import Framework
from models.devices import CPU


def run(spec: CellSpec[Settings], framework: Framework, output: Output) -> None:
    source, settings = spec.inputs.get("weights", ""), spec.settings
    if source not in ("", "random"):
        encoder(framework, source, settings.seed)
    is_short = settings.phase_seconds and framework.device != CPU
    if settings.training_seconds or is_short:
        time_trial(Captioning(spec, drawn=True), spec, framework, output)

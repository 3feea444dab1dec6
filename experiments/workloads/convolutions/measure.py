"""By training_speed: how convolutions are chosen is the framework's to be told when it is opened."""

from __future__ import annotations

from experiments.workloads.training_speed.measure import run

__all__ = ["run"]

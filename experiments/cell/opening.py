"""Opening of the framework of a cell, set up by its settings."""

from __future__ import annotations

import os

from experiments.config import memory
from experiments.config.settings import TrainingSettings
from experiments.contract import AnyCell
from models import frameworks
from models.contract import Framework
from tracking.errors import ErrorCode, EvenhandError


def opened(spec: AnyCell) -> Framework:
    """Return the framework, set up by the settings of a cell."""
    assert isinstance(spec.settings, TrainingSettings)
    if spec.settings.malloc == "keep":
        memory.keep_freed()
    with frameworks.lean_import(spec.framework):
        framework = frameworks.open_framework(
            spec.framework,
            device=spec.device,
            threads=spec.threads,
            precision=spec.settings.precision,
            seed=spec.settings.seed * 1_000 + spec.block,
            conv_algorithm=spec.settings.conv_algorithm,
        )
    framework.compile_anew()
    for name, text in spec.environment.items():
        if text is not None and text not in os.environ.get(name, ""):
            raise EvenhandError(
                ErrorCode.ENVIRONMENT,
                f"env.{name}: {spec.framework} sets it to {os.environ.get(name)!r} itself, "
                f"not to {text!r}",
            )
    return framework

"""Whether a model takes images, and every framework that is asked for has it."""

from __future__ import annotations

from collections.abc import Sequence

import models
from models import frameworks
from models.definition import ModelDefinition
from models.errors import choices
from tracking import plain
from tracking.errors import WrongCall


def of_images(name: str, asked: Sequence[str], setting: str) -> ModelDefinition:
    """The model's `spec` module. asked: frameworks; setting: what the user calls the model by. Raises WrongCall, ModelError."""
    if name not in models.available():
        raise WrongCall(f"{setting}={plain.short(name)}: no such model of images; {choices(name, _of_images())}")
    module = models.spec(name)
    if not module.takes_images:
        raise WrongCall(f"{setting}={name}: it takes no images; have {', '.join(_of_images())}")
    check_siblings(name, asked, setting)
    return module


def check_siblings(name: str, asked: Sequence[str], setting: str) -> None:
    """Raise WrongCall for a framework in which the model is not written."""
    written = models.available()[name]
    for framework in asked:
        if (architecture := frameworks.described(framework).architecture) not in written:
            raise WrongCall(f"{setting}={name}: it has no sibling for {framework} ({architecture}.py); have {', '.join(written)}")


def _of_images() -> list[str]:
    return [name for name in models.available() if models.spec(name).takes_images]

"""Whether a model takes images, and every framework that is asked for has it."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import models
from models import frameworks
from models.layers.images import ImageSpec
from tracking.errors import WrongCall


def of_images(name: str, asked: Sequence[str], setting: str) -> ModuleType:
    """The model's `spec` module. asked: frameworks; setting: what the user calls the model by. Raises WrongCall, ModelError."""
    module = models.spec(name)
    if not takes_images(module):
        have = [one for one in models.available() if takes_images(models.spec(one))]
        raise WrongCall(f"{setting}={name}: it takes no images; have {', '.join(have)}")
    written = models.available()[name]
    for framework in asked:
        if (architecture := frameworks.described(framework).architecture) not in written:
            raise WrongCall(f"{setting}={name}: it has no sibling for {framework} ({architecture}.py); have {', '.join(written)}")
    return module


def takes_images(module: ModuleType) -> bool:
    """module: a model's `spec`."""
    return hasattr(module, "Spec") and issubclass(module.Spec, ImageSpec)

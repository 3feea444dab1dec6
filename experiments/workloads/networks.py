"""Whether a model takes images, and every framework that is asked for has it."""

from __future__ import annotations

from collections.abc import Sequence

import models
from models import frameworks
from models.definition import ModelDefinition
from models.errors import choices
from models.layers.images import ImageSpec
from tracking import plain
from tracking.errors import WrongCall


def of_images(name: str, asked: Sequence[str], setting: str) -> ModelDefinition:
    """The model's `spec` module. asked: frameworks; setting: what the user calls the model by. Raises WrongCall, ModelError."""
    if name not in models.available():
        raise WrongCall(
            f"{setting}={plain.short(name)}: no such model of images; {choices(name, _of_images())}"
        )
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
            raise WrongCall(
                f"{setting}={name}: it has no sibling for {framework} ({architecture}.py); have {', '.join(written)}"
            )


def _of_images() -> list[str]:
    return [name for name in models.available() if models.spec(name).takes_images]


def check_images(
    name: str, spec: ImageSpec, side: tuple[str, int], rows: tuple[str, int] | None = None
) -> None:
    """Raise WrongCall for images that a model cannot take, or cannot be trained on.

    Args:
        name: of the model.
        spec: its sizes.
        side: the setting of the images' side, and its value in pixels.
        rows: the setting of the batch size, and its value; None: it is not trained.
    """
    if reason := spec.refuses(side[1]):
        raise WrongCall(f"{side[0]}={side[1]}: {name} {reason}")
    if rows and rows[1] < (least := spec.least_rows(side[1])):
        raise WrongCall(
            f"{rows[0]}={rows[1]}: {name} cannot train on fewer than {least} images of {side[1]} × {side[1]}: its last "
            f"BatchNorm would see one value a channel; take at least {least}, or larger images"
        )

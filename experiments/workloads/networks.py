"""Checks that a model takes images, and that each framework has it."""

from __future__ import annotations

from collections.abc import Sequence

import models
from models import frameworks, named
from models.definition import ModelDefinition
from models.errors import suggestion
from models.layers.images import ImageSpec
from tracking import plain
from tracking.errors import ErrorCode, UsageError


def of_images(name: str, framework_names: Sequence[str], setting: str) -> ModelDefinition:
    """Return the `spec` module of a model of images.

    Raises:
        UsageError: If there is no such model, or it is missing in a framework; with the setting
            that names the model.
    """
    names = [model for model in models.available() if models.spec(model).takes_images]
    if name not in names:
        raise UsageError(
            ErrorCode.UNKNOWN_NAME,
            f"{setting}={plain.short(name)}: no such model of images{suggestion(name, names)}",
        )
    check_siblings(name, framework_names, setting)
    return models.spec(name)


def check_siblings(
    name: str, framework_names: Sequence[str], setting: str, size: str = named.FULL
) -> None:
    """Raise UsageError for a framework in which the model is not written.

    Of a network of another library the counterpart is converted, which takes seconds the first
    time.

    Args:
        name: Name of the model.
        framework_names: Frameworks that are compared.
        setting: Setting that names the model.
        size: Version of a network of another library.
    """
    written = models.available()[name]
    for framework in framework_names:
        if (architecture := frameworks.described(framework).architecture) not in written:
            reason = named.why_not(name, architecture)
            raise UsageError(
                ErrorCode.UNSUPPORTED,
                f"{setting}={name}: it has no sibling for {framework} ({architecture}.py); "
                f"have {', '.join(written)}" + f": {reason}" * bool(reason),
            )
        if architecture == "keras":
            named.convert(name, size)


def check_images(
    name: str, spec: ImageSpec, side: tuple[str, int], rows: tuple[str, int] | None = None
) -> None:
    """Raise UsageError for images that a model cannot take, or cannot be trained on.

    Args:
        name: Name of the model.
        spec: Its sizes.
        side: Setting of the images' side, and its value in pixels.
        rows: Setting of the batch size, and its value; None: the model is not trained.
    """
    if reason := refusal(name, spec, side[1]):
        raise UsageError(ErrorCode.INVALID_VALUE, f"{side[0]}={side[1]}: {reason}")
    if rows and (reason := refusal(name, spec, side[1], rows[1])):
        raise UsageError(ErrorCode.TOO_FEW, f"{rows[0]}={rows[1]}: {reason}")


def refusal(name: str, spec: ImageSpec, side: int, rows: int | None = None) -> str:
    """Return why a model cannot take images, or cannot be trained on a batch of them, or ""."""
    if reason := spec.refuses(side):
        return f"{name} {reason}"
    if rows is None or rows >= (least := spec.least_rows(side)):
        return ""
    return (
        f"{name} cannot train on fewer than {least} images of {side} × {side}: its last "
        "BatchNorm would see one value a channel"
    )

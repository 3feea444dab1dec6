"""ResNet-152 in Keras, on any of its backends."""

from __future__ import annotations

import keras

from models.resnet152.spec import Spec
from models.resnets.keras import build as build_resnet


def build(spec: Spec) -> keras.Model:
    """call(images (n, height, width, 3), normalised) -> (n, classes)."""
    return build_resnet(spec, "resnet152")

"""EfficientNet-B4 in Keras, on any of its backends: the mirror of torchvision's."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from models.efficientnet_b4.spec import STAGES, Spec, Unit
from models.layers.keras import convolution, depthwise, dropout, images, linear, network, norm
from models.transfer import layer_name


def build(spec: Spec) -> keras.Model:
    """call(images (n, height, width, 3), normalised) -> (n, classes)."""
    inputs = images()
    x = convolution(inputs, spec.stem, 3, "features.0.0", strides=2, padding=1)
    x = _silu(norm(x, "features.0.1"))
    for unit in spec.units():
        x = _unit(x, unit)
    last = f"features.{len(STAGES) + 1}"
    x = _silu(norm(convolution(x, spec.last, 1, f"{last}.0"), f"{last}.1"))
    x = layers.GlobalAveragePooling2D()(x)
    x = dropout(x, spec.dropout, "classifier.0")
    return network(inputs, linear(x, spec.classes, "classifier.1"), "efficientnet_b4")


def _unit(x: Any, unit: Unit) -> Any:
    shortcut, path, part = x, f"{unit.path}.block", unit.depthwise
    if part:
        x = _silu(norm(convolution(x, unit.hidden, 1, f"{path}.0.0"), f"{path}.0.1"))
    x = _silu(
        norm(
            depthwise(x, unit.kernel, f"{path}.{part}.0", strides=unit.strides), f"{path}.{part}.1"
        )
    )
    x = _excited(x, unit, f"{path}.{part + 1}")
    x = norm(convolution(x, unit.outputs, 1, f"{path}.{part + 2}.0"), f"{path}.{part + 2}.1")
    if unit.strides > 1 or unit.inputs != unit.outputs:
        return x
    if unit.drop:  # whole images: stochastic depth
        x = layers.Dropout(
            unit.drop, noise_shape=(None, 1, 1, 1), name=layer_name(f"{unit.path}.stochastic_depth")
        )(x)
    return layers.Add()([x, shortcut])


def _excited(x: Any, unit: Unit, path: str) -> Any:
    """Every channel times a share that its mean over the image decides."""
    share = layers.GlobalAveragePooling2D(keepdims=True)(x)
    share = _silu(convolution(share, unit.squeezed, 1, f"{path}.fc1", bias=True))
    share = layers.Activation("sigmoid")(
        convolution(share, unit.hidden, 1, f"{path}.fc2", bias=True)
    )
    return layers.Multiply()([x, share])


def _silu(x: Any) -> Any:
    return layers.Activation("silu")(x)

"""DenseNet-201 in Keras, on any of its backends: the mirror of torchvision's."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from models.densenet201.spec import Spec
from models.layers.keras import average_pool, convolution, images, linear, max_pool, network, norm


def build(spec: Spec) -> keras.Model:
    """call(images (n, height, width, 3), normalised) -> (n, classes), or pooled features (n, 1920) without classes."""
    inputs = images()
    x = convolution(inputs, spec.stem, 7, "features.conv0", strides=2, padding=3)
    x = max_pool(_norm_relu(x, "features.norm0"), 3, strides=2, padding=1)
    for block, count in enumerate(spec.blocks, 1):
        for layer in range(1, count + 1):
            x = _dense_layer(x, spec, f"features.denseblock{block}.denselayer{layer}")
        if block < len(spec.blocks):
            x = _transition(x, f"features.transition{block}")
    x = layers.GlobalAveragePooling2D()(_norm_relu(x, "features.norm5"))
    if spec.classes is not None:
        x = linear(x, spec.classes, "classifier")
    return network(inputs, x, "densenet201")


def _dense_layer(x: Any, spec: Spec, path: str) -> Any:
    new = convolution(
        _norm_relu(x, f"{path}.norm1"), spec.bottleneck * spec.growth, 1, f"{path}.conv1"
    )
    new = convolution(_norm_relu(new, f"{path}.norm2"), spec.growth, 3, f"{path}.conv2", padding=1)
    return layers.Concatenate()([x, new])


def _transition(x: Any, path: str) -> Any:
    x = convolution(_norm_relu(x, f"{path}.norm"), x.shape[-1] // 2, 1, f"{path}.conv")
    return average_pool(x, 2, strides=2)


def _norm_relu(x: Any, path: str) -> Any:
    return layers.ReLU()(norm(x, path))

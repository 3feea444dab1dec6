"""DenseNet-201 in Keras, on any of its backends: the mirror of torchvision's, layers named by its module paths."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from models.densenet201.spec import DenseNet201Spec
from models.transfer import layer_name


def build(spec: DenseNet201Spec) -> keras.Model:
    """call(images (n, height, width, 3), normalised) -> (n, classes), or pooled features (n, 1920) without classes."""
    images = keras.Input((None, None, 3))
    x = layers.ZeroPadding2D(3)(images)
    x = _convolution(x, spec.stem, 7, "features.conv0", strides=2, padding="valid")
    x = _norm_relu(x, "features.norm0")
    x = layers.ZeroPadding2D(1)(x)  # after a ReLU, as good as torch's padding with -inf
    x = layers.MaxPooling2D(3, strides=2)(x)
    for block, count in enumerate(spec.blocks, 1):
        for layer in range(1, count + 1):
            x = _dense_layer(x, spec, f"features.denseblock{block}.denselayer{layer}")
        if block < len(spec.blocks):
            x = _transition(x, f"features.transition{block}")
    x = _norm_relu(x, "features.norm5")
    x = layers.GlobalAveragePooling2D()(x)
    if spec.classes is not None:
        x = layers.Dense(spec.classes, name="classifier")(x)
    return keras.Model(images, x, name="densenet201")


def _dense_layer(x: Any, spec: DenseNet201Spec, path: str) -> Any:
    new = _norm_relu(x, f"{path}.norm1")
    new = _convolution(new, spec.bottleneck * spec.growth, 1, f"{path}.conv1")
    new = _norm_relu(new, f"{path}.norm2")
    new = _convolution(new, spec.growth, 3, f"{path}.conv2")
    return layers.Concatenate()([x, new])


def _transition(x: Any, path: str) -> Any:
    x = _norm_relu(x, f"{path}.norm")
    x = _convolution(x, x.shape[-1] // 2, 1, f"{path}.conv")
    return layers.AveragePooling2D(2)(x)


def _norm_relu(x: Any, path: str) -> Any:
    x = layers.BatchNormalization(epsilon=1e-5, momentum=0.9, name=layer_name(path))(x)  # torch: momentum 0.1 of the new value
    return layers.ReLU()(x)


def _convolution(x: Any, filters: int, size: int, path: str, strides: int = 1, padding: str = "same") -> Any:
    return layers.Conv2D(filters, size, strides, padding, use_bias=False, name=layer_name(path))(x)

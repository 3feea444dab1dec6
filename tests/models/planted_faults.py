"""Sides of the gate with faults: `python -m tests.models.planted_faults FRAMEWORK FOLDER`.

On PyTorch it writes an .npz for each model, on Keras one for each fault.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import models
from models import parity

FRAMEWORK = "keras-torch"  # eager, so the quickest to start
Change = Callable[[Any], Any]


def rebuilt(model: str, change: Change) -> AbstractContextManager[Any]:
    """Call `change(network)` as soon as it is built."""
    module = models.load(model, "keras")
    build = module.build

    def faulty(spec: Any) -> Any:
        network = build(spec)
        change(network)
        return network

    return patch.object(module, "build", faulty)


def altered(model: str, layer: str, **attributes: Any) -> AbstractContextManager[Any]:
    """Set attributes of one layer."""

    def change(network: Any) -> None:
        for name, value in attributes.items():
            setattr(network.get_layer(layer), name, value)

    return rebuilt(model, change)


def replaced(name: str, faulty: Callable[..., Any]) -> AbstractContextManager[Any]:
    """Call `faulty(right, …)` in place of a function of the Keras layers."""
    from models.layers import keras

    right = getattr(keras, name)
    return patch.object(keras, name, lambda *args, **named: faulty(right, *args, **named))


def same_padding() -> AbstractContextManager[Any]:
    """Keras' own `same` for a convolution that strides: one pixel more on one side."""
    from keras import layers

    from models.transfer import layer_name

    def faulty(
        right: Any, x: Any, filters: int, size: int, path: str, *, strides: int = 1, **others: Any
    ) -> Any:
        if strides == 1:
            return right(x, filters, size, path, **others)
        return layers.Conv2D(filters, size, strides, "same", use_bias=False, name=layer_name(path))(
            x
        )

    return replaced("convolution", faulty)


def gate_order() -> AbstractContextManager[Any]:
    """LSTM gates i g f o for i f g o."""
    from models import transfer

    def exchanged(array: Any) -> Any:
        i, f, g, o = np.split(array, 4, axis=-1)
        return np.concatenate([i, g, f, o], axis=-1)

    swapped = transfer.Layout(exchanged, lambda array, _: exchanged(array))
    arrays = transfer._arrays

    def faulty(layer: Any) -> Any:
        for name, variables, layout in arrays(layer):
            yield name, variables, swapped if name.endswith("bias_ih_l0") else layout

    return patch.object(transfer, "_arrays", faulty)


def optimized(name: str, create: Callable[[Any], Any]) -> AbstractContextManager[Any]:
    """Replace optimizers of that name by `create(config)`."""
    from models.frameworks.keras.adapter import Adapter

    right = Adapter.optimizer

    def faulty(self: Any, network: Any, config: Any) -> Any:
        if config.name != name:
            return right(self, network, config)
        optimizer = create(config)
        optimizer.build(network.trainable_variables)
        network.compile(optimizer=optimizer, loss=self._loss)
        return optimizer

    return patch.object(Adapter, "optimizer", faulty)


def stock_adam() -> AbstractContextManager[Any]:
    import keras

    return optimized("adam", lambda config: keras.optimizers.Adam(config.learning_rate))


def momentum_with_the_rate_in_it() -> AbstractContextManager[Any]:
    """Keras' own, the same until the rate falls; the decay as it should be."""
    import keras

    from models.frameworks.keras.optimizers import TorchSGD

    class Folded(keras.optimizers.SGD):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            super().update_step(gradient + self.decay * variable, variable, learning_rate)

    def create(config: Any) -> Any:
        if not config.momentum:
            return TorchSGD(config.learning_rate, config.momentum, config.weight_decay)
        optimizer = Folded(config.learning_rate, config.momentum)
        optimizer.decay = config.weight_decay
        return optimizer

    return optimized("sgd", create)


def rate_that_stays() -> AbstractContextManager[Any]:
    from models.frameworks.keras.adapter import Adapter

    return patch.object(Adapter, "set_learning_rate", lambda *_: None)


def attention_mask() -> AbstractContextManager[Any]:
    """Padding is seen like words."""
    from models.bert.keras import Bert

    right = Bert._attend

    def faulty(self: Any, path: str, x: Any, seen: Any, training: bool) -> Any:
        return right(self, path, x, seen | ~seen, training)

    return patch.object(Bert, "_attend", faulty)


def key_bias_at_the_values() -> AbstractContextManager[Any]:
    """Add the keys' bias to the values, where its gradient is not zero."""
    from models.bert.keras import Bert

    right = Bert._attend

    def faulty(self: Any, path: str, x: Any, seen: Any, training: bool) -> Any:
        return right(self, path, x, seen, training) + self.parts[f"{path}.key"].bias

    return patch.object(Bert, "_attend", faulty)


def fused_activation() -> AbstractContextManager[Any]:
    """A ReLU inside of a linear layer, which is right; behind the next a wrong activation."""
    from keras import layers, ops

    from models.transfer import layer_name

    def faulty(right: Any, x: Any, outputs: int, path: str) -> Any:
        if path == "linear1":
            return layers.Dense(outputs, "relu", name=layer_name(path))(x)
        y = right(x, outputs, path)
        return ops.abs(y) if path == "linear2" else y

    return replaced("linear", faulty)


# Faults, each with its model.
FAULTS: dict[str, tuple[str, Callable[[], AbstractContextManager[Any]]]] = {
    "nothing": ("lenet", lambda: rebuilt("lenet", lambda _: None)),
    "same_padding": ("densenet201", same_padding),
    # Keras' defaults, of one BatchNormalization of thirteen and of six
    "epsilon": ("densenet201", lambda: altered("densenet201", "features-norm0", epsilon=1e-3)),
    "momentum": ("vgg16_cifar", lambda: altered("vgg16_cifar", "norm2_1", momentum=0.99)),
    "dropout_rate": ("vgg16_cifar", lambda: altered("vgg16_cifar", "hidden_drop", rate=0.25)),
    # the right rate, of single values instead of whole images
    "stochastic_depth_of_pixels": (
        "efficientnet_b4",
        lambda: altered("efficientnet_b4", "features-5-1-stochastic_depth", noise_shape=None),
    ),
    "gate_order": ("caption_decoder", gate_order),
    "stock_adam": ("caption_decoder", stock_adam),
    "momentum_with_the_rate_in_it": ("lenet", momentum_with_the_rate_in_it),
    "rate_that_stays": ("lenet", rate_that_stays),
    "attention_mask": ("bert", attention_mask),
    "key_bias_at_the_values": ("bert", key_bias_at_the_values),
    "fused_activation": ("lenet", fused_activation),
}


def request(model: str) -> parity.ParityRequest:
    """Return a request with each rule for LeNet, the smallest model."""
    sgd = parity.RULES["sgd"] if model == "lenet" else ()
    return parity.ParityRequest(model, (*parity.RULES["adam"], *sgd))


def main(framework: str, folder: str) -> None:
    if framework == "pytorch":
        for model in sorted({model for model, _ in FAULTS.values()}):
            np.savez(Path(folder) / f"{model}.npz", **parity.compute(request(model), framework))
        return
    # imports Keras on its backend before a fault is planted
    parity.compute(parity.ParityRequest("lenet"), framework)
    for name, (model, fault) in FAULTS.items():
        with fault():
            np.savez(Path(folder) / f"{name}.npz", **parity.compute(request(model), framework))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Computes one side of the gate with a fault planted: `python -m tests.models.planted_faults FOLDER` writes one .npz a fault."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import models
from models import parity

FRAMEWORK = "keras-torch"  # eager, so the quickest to start


@contextmanager
def epsilon() -> Iterator[None]:
    """One BatchNormalization of thirteen with Keras' default epsilon."""
    module = models.load("densenet201", "keras")
    build = module.build

    def faulty(spec: Any) -> Any:
        network = build(spec)
        network.get_layer("features-norm0").epsilon = 1e-3
        return network

    with patch.object(module, "build", faulty):
        yield


@contextmanager
def same_padding() -> Iterator[None]:
    """Keras' own `same` for a convolution that strides: one pixel more on one side."""
    from keras import layers

    from models.transfer import layer_name

    module = models.load("densenet201", "keras")
    right = module.convolution

    def faulty(x: Any, filters: int, size: int, path: str, *, strides: int = 1, **others: Any) -> Any:
        if strides == 1:
            return right(x, filters, size, path, **others)
        return layers.Conv2D(filters, size, strides, "same", use_bias=False, name=layer_name(path))(x)

    with patch.object(module, "convolution", faulty):
        yield


@contextmanager
def transposed_kernel() -> Iterator[None]:
    """Height and width of convolutions exchanged on the way in and out."""
    from models import transfer

    swapped = transfer.Layout(lambda kernel: kernel.transpose(3, 2, 1, 0), lambda kernel, _: kernel.transpose(3, 2, 1, 0))
    with patch.object(transfer, "CONVOLUTION", swapped):
        yield


@contextmanager
def gate_order() -> Iterator[None]:
    """LSTM gates i g f o for i f g o."""
    from models import transfer

    def exchanged(array: Any) -> Any:
        i, f, g, o = np.split(array, 4, axis=-1)
        return np.concatenate([i, g, f, o], axis=-1)

    swapped = transfer.Layout(lambda array: exchanged(array), lambda array, shape: exchanged(array.reshape(shape)))
    arrays = transfer._arrays

    def faulty(layer: Any) -> Any:
        for suffix, variable, layout in arrays(layer):
            yield suffix, variable, swapped if suffix == "bias_ih_l0" else layout

    with patch.object(transfer, "_arrays", faulty):
        yield


@contextmanager
def stock_adam() -> Iterator[None]:
    from models.frameworks.keras.adapter import Adapter

    optimizer = Adapter.optimizer
    with patch.object(Adapter, "optimizer", lambda self, network, _: optimizer(self, network, parity.OPTIMIZERS["adam-stock"])):
        yield


FAULTS = {
    "epsilon": ("densenet201", epsilon),
    "same_padding": ("densenet201", same_padding),
    "transposed_kernel": ("densenet201", transposed_kernel),
    "gate_order": ("caption_decoder", gate_order),
    "stock_adam": ("caption_decoder", stock_adam),
}


def main(folder: str) -> None:
    parity.compute(parity.ParityRequest("caption_decoder"), FRAMEWORK)  # imports Keras on its backend before a fault touches it
    for name, (model, fault) in FAULTS.items():
        with fault():
            computed: dict[str, Any] = dict(parity.compute(parity.ParityRequest(model), FRAMEWORK))
        np.savez(Path(folder) / f"{name}.npz", **computed)


if __name__ == "__main__":
    main(*sys.argv[1:])

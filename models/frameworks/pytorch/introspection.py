"""Inputs and outputs of layers, observed with hooks: for the parity gate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import _default_to_fused_or_foreach
from torch.utils._pytree import tree_leaves

from models.contract import Array, DropoutProbe
from models.layer_values import fingerprint

# Receives the path, the layer, a copy of its first input and its first output.
Observer = Callable[[str, nn.Module, Tensor | None, Tensor | None], None]


def droppers(network: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that drop: those with a rate `p`, as in PyTorch and torchvision."""
    return {
        path: layer
        for path, layer in network.named_modules()
        if "p" in vars(layer) and not any(layer.children())
    }


def drop_nothing(network: nn.Module) -> None:
    for layer in droppers(network).values():
        layer.p = 0.0


def dropping(network: nn.Module, inputs: tuple[Tensor, ...], draws: int) -> dict[str, DropoutProbe]:
    layers, received = droppers(network), defaultdict[str, list[Any]](list)
    rates = {path: layer.p for path, layer in layers.items()}

    def observe(path: str, layer: nn.Module, values: Tensor | None, _: object) -> None:
        if path in layers and layer.training:
            received[path].append(values)

    drop_nothing(network)
    _observe(network, inputs, observe, training=True)
    for path, layer in layers.items():
        layer.p = rates[path]
    return {
        path: DropoutProbe(
            np.concatenate([_channels_last(tensor).ravel() for tensor in tensors]),
            _draw(layers[path], tensors[0], draws),
        )
        for path, tensors in received.items()
    }


def unbiased(network: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, int]:
    counts: dict[str, int] = {}

    def observe(path: str, layer: nn.Module, values: Tensor | None, _: object) -> None:
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training:
            assert values is not None
            counts[path] = values.numel() // values.shape[1]

    _observe(network, inputs, observe, training=True)
    return counts


def layer_values(network: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Array]:
    """Return fingerprints; recurrent layers return other steps than Keras' and are left out."""
    calls = defaultdict[str, list[Array]](list)

    def observe(path: str, layer: nn.Module, _: object, outputs: Tensor | None) -> None:
        if outputs is not None and not isinstance(layer, nn.RNNBase):
            calls[path].append(fingerprint(outputs.numpy(force=True)))

    _observe(network, inputs, observe, training=False)
    return {path: np.stack(arrays) for path, arrays in calls.items()}


def _observe(
    network: nn.Module, inputs: tuple[Tensor, ...], observer: Observer, *, training: bool
) -> None:
    """Make one pass and call the observer after each call of a layer."""
    paths = {layer: path for path, layer in network.named_modules() if path}
    received: list[Tensor | None] = []  # of the calls that have not returned

    def before(_: nn.Module, arguments: Any, named: Any) -> None:
        tensor = _first_tensor((arguments, named))
        # some layers work in place
        received.append(None if tensor is None else tensor.clone())

    def after(layer: nn.Module, _: Any, outputs: Any) -> None:
        observer(paths[layer], layer, received.pop(), _first_tensor(outputs))

    hooks = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in paths]
    hooks += [layer.register_forward_hook(after) for layer in paths]
    network.train(training)
    with torch.no_grad():
        network(*inputs)
    for hook in hooks:
        hook.remove()


def _first_tensor(values: Any) -> Tensor | None:
    return next((leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)), None)


def _draw(layer: nn.Module, like: Tensor, draws: int) -> Array:
    sizes = [min(size, 2) for size in like.shape[1:]]
    ones = torch.ones((draws // prod(sizes), *sizes), dtype=like.dtype, device=like.device)
    return _channels_last(layer(ones))


def _channels_last(tensor: Tensor) -> Array:
    array: Array = tensor.numpy(force=True)
    return np.moveaxis(array, 1, -1) if array.ndim > 3 else array


def optimizer_kernels(optimizer: torch.optim.Optimizer) -> str:
    """Return the kernels that an optimizer's step calls: fused, foreach or of single tensors."""
    group = optimizer.param_groups[0]
    if group["fused"]:
        return "fused"
    is_foreach = group["foreach"]
    if is_foreach is None:  # PyTorch's own choice, by the type and device of the weights
        _, is_foreach = _default_to_fused_or_foreach(group["params"], differentiable=False)
    return "foreach" if is_foreach else "one tensor after another"

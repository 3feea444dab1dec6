"""Calls of PyTorch's layers, observed with hooks, and the kernels of its optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import _default_to_fused_or_foreach
from torch.utils._pytree import tree_leaves

from models.contract import Array
from models.frameworks.introspection import Call

RATE = "p"


def droppers(network: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that drop: those with a rate `p`, as in PyTorch and torchvision."""
    return {
        path: layer
        for path, layer in network.named_modules()
        if RATE in vars(layer) and not any(layer.children())
    }


def observe(
    network: nn.Module,
    inputs: tuple[Tensor, ...],
    observer: Callable[[Call], None],
    *,
    training: bool,
) -> None:
    paths = {layer: path for path, layer in network.named_modules() if path}
    received: list[Tensor | None] = []  # of the calls that have not returned

    def before(_: nn.Module, arguments: Any, named: Any) -> None:
        tensor = _first_tensor((arguments, named))
        # some layers work in place
        received.append(None if tensor is None else tensor.clone())

    def after(layer: nn.Module, _: Any, outputs: Any) -> None:
        tensor = _first_tensor(outputs)
        observer(Call(paths[layer], layer, received.pop(), tensor, layer.training))

    hooks = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in paths]
    hooks += [layer.register_forward_hook(after) for layer in paths]
    network.train(training)
    with torch.no_grad():
        network(*inputs)
    for hook in hooks:
        hook.remove()


def _first_tensor(values: Any) -> Tensor | None:
    return next((leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)), None)


def draw(layer: nn.Module, shape: tuple[int, ...], like: Tensor) -> Array:
    """Return the outputs of a layer for ones.

    Args:
        layer: Layer that drops.
        shape: Of the ones.
        like: Tensor of their type and device.
    """
    return to_numpy(layer(torch.ones(shape, dtype=like.dtype, device=like.device)))


def to_numpy(tensor: Tensor) -> Array:
    """Copy a tensor to host memory.

    Returns:
        An array; images have their channels last.
    """
    array: Array = tensor.numpy(force=True)
    return np.moveaxis(array, 1, -1) if array.ndim > 3 else array


def comparable_output(call: Call) -> Array | None:
    """Return the output, None for recurrent layers, which return other steps than Keras'."""
    if call.outputs is None or isinstance(call.layer, nn.RNNBase):
        return None
    return call.outputs.numpy(force=True)


def unbiased(network: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, int]:
    """Return the values a channel of each BatchNorm, by path."""
    counts: dict[str, int] = {}

    def record(call: Call) -> None:
        if isinstance(call.layer, nn.modules.batchnorm._BatchNorm) and call.is_training:
            counts[call.path] = call.inputs.numel() // call.inputs.shape[1]

    observe(network, inputs, record, training=True)
    return counts


def optimizer_kernels(optimizer: torch.optim.Optimizer) -> str:
    """Return the kernels that an optimizer's step calls: fused, foreach or of single tensors."""
    group = optimizer.param_groups[0]
    if group["fused"]:
        return "fused"
    is_foreach = group["foreach"]
    if is_foreach is None:  # PyTorch's own choice, by the type and device of the weights
        _, is_foreach = _default_to_fused_or_foreach(group["params"], differentiable=False)
    return "foreach" if is_foreach else "one tensor after another"

"""Sizes of PyTorch's networks, calls of their layers, and the kernels of optimizers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import _default_to_fused_or_foreach
from torch.utils._pytree import tree_leaves

from models.contract import Array, ErrorCode, ModelError
from models.frameworks.introspection import Call

RATE = "p"
# Heights and widths of images, and numbers of classes, that a network is tried with.
SIDES = (8, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 150, 160, 192, 224, 256, 299, 384)
CLASSES = (11, 12)


@dataclass(frozen=True)
class NetworkDescription:
    """Sizes of a network of images, for its `spec.py`.

    Attributes:
        channels: Channels of an image.
        least_side: Smallest height and width of an image, in pixels.
        only_side: The only height and width of an image, None if there are several.
        classes: Number of classes, by default if there are several.
        argument: Name of the argument that sets the number of classes; empty if there is none.
        shapes: Shape of each weight by name; None for the number of classes.
    """

    channels: int
    least_side: int
    only_side: int | None
    classes: int
    argument: str
    shapes: dict[str, tuple[int | None, ...]]


def describe(make: Callable[..., nn.Module]) -> NetworkDescription:
    """Return the sizes of a network, from its weights and from trials.

    Args:
        make: Returns the network: forward(images (n, channels, height, width)) -> (n, classes).

    Raises:
        ModelError: for another kind of network.
    """
    argument, (network, other) = _of_several_classes(make)
    shapes = dict[str, tuple[int | None, ...]]()
    for (name, tensor), resized in zip(state(network).items(), state(other).values(), strict=True):
        if not tensor.is_floating_point():
            raise ModelError(
                ErrorCode.UNSUPPORTED, f"{name} has {tensor.dtype}, not numbers to train"
            )
        pairs = list(zip(tensor.shape, resized.shape, strict=True))
        if any(size != after and (size, after) != CLASSES for size, after in pairs):
            text = f"the shape of {name} depends on {argument} in more than one number"
            raise ModelError(ErrorCode.UNSUPPORTED, text)
        shapes[name] = tuple(size if size == after else None for size, after in pairs)
    kernels = [tensor.shape[1] for tensor in network.parameters() if tensor.ndim == 4]
    network.eval()
    for channels in kernels[:1] or (3, 1):
        sides = (side for side in SIDES if _logits(network, 1, channels, side) is not None)
        if first_sides := list(islice(sides, 2)):
            break
    else:
        text = f"no images of {SIDES[0]} to {SIDES[-1]} pixels a side go through it to (n, classes)"
        raise ModelError(ErrorCode.UNSUPPORTED, text)
    logits = _logits(network.train(), 2, channels, first_sides[0])
    if logits is None or (argument and logits.shape[1] != CLASSES[0]):
        text = "in training it does not return logits (n, classes) alone"
        raise ModelError(ErrorCode.UNSUPPORTED, text)
    classes = logits.shape[1]
    if argument:
        default = inspect.signature(make).parameters.get(argument)
        classes = default.default if default and isinstance(default.default, int) else 1_000
    only_side = first_sides[0] if len(first_sides) == 1 else None
    return NetworkDescription(channels, first_sides[0], only_side, classes, argument, shapes)


def _of_several_classes(make: Callable[..., nn.Module]) -> tuple[str, list[nn.Module]]:
    """Return the argument for the number of classes, if there is one, and two networks."""
    for argument in ("num_classes", "classes"):
        with suppress(TypeError):
            return argument, [make(**{argument: classes}) for classes in CLASSES]
    return "", [make()] * 2


def _logits(network: nn.Module, rows: int, channels: int, side: int) -> Tensor | None:
    """Return the outputs for images of zeros; None if the network does not take them."""
    try:
        with torch.no_grad():
            outputs = network(torch.zeros(rows, channels, side, side))
    except Exception:
        return None
    return outputs if isinstance(outputs, Tensor) and outputs.ndim == 2 else None


def state(network: nn.Module) -> dict[str, Tensor]:
    """Return the state_dict without BatchNorm's step counters, which no kernel reads.

    A parameter of several layers is there once.
    """
    names = {name for name, _ in network.named_parameters()}
    tied = {name for name, _ in network.named_parameters(remove_duplicate=False)} - names
    return {
        name: tensor
        for name, tensor in network.state_dict().items()
        if not name.endswith("num_batches_tracked") and name not in tied
    }


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

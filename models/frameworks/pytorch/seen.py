"""What layers do in training mode, seen from outside: for the parity gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from models.contract import Array, Dropping
from models.layer_values import UNKNOWN, Recorder, fingerprint

See = Callable[[str, nn.Module, Tensor], None]


def droppers(network: nn.Module) -> dict[str, nn.Module]:
    """By path: PyTorch's layers that drop and torchvision's have their rate as `p`, and no parts."""
    return {
        path: layer
        for path, layer in network.named_modules()
        if "p" in vars(layer) and not any(layer.children())
    }


def drop_nothing(layers: Iterable[nn.Module]) -> None:
    for layer in layers:
        layer.p = 0.0


def dropping(network: nn.Module, inputs: tuple[Tensor, ...], draws: int) -> dict[str, Dropping]:
    layers, given = droppers(network), dict[str, list[Tensor]]()
    rates = {path: layer.p for path, layer in layers.items()}

    def see(path: str, _: nn.Module, given_now: Tensor) -> None:
        given.setdefault(path, []).append(given_now.clone())

    drop_nothing(layers.values())
    _watched(network, inputs, layers, see)
    for path, layer in layers.items():
        layer.p = rates[path]
    return {
        path: Dropping(_flat(tensors), _drawn(layers[path], tensors[0], draws))
        for path, tensors in given.items()
    }


def unbiased(network: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, int]:
    found: dict[str, int] = {}

    def see(path: str, _: nn.Module, given: Tensor) -> None:
        found[path] = given.numel() // given.shape[1]

    norms = {
        path: layer
        for path, layer in network.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm)
    }
    _watched(network, inputs, norms, see)
    return found


def layer_values(network: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Array]:
    recorder, taken = Recorder(), dict[nn.Module, list[Array]]()
    paths = {layer: path for path, layer in network.named_modules() if path}

    def before(layer: nn.Module, arguments: Any, named: Any) -> None:  # some layers work in place
        taken.setdefault(layer, []).append(_fingerprint((arguments, named)))

    def after(layer: nn.Module, _: Any, outputs: Any) -> None:
        recorder.add(paths[layer], taken[layer].pop(), _fingerprint(outputs))

    hooks = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in paths]
    hooks += [layer.register_forward_hook(after) for layer in paths]
    network.eval()
    with torch.no_grad():
        network(*inputs)
    for hook in hooks:
        hook.remove()
    return recorder.values()


def _fingerprint(values: Any) -> Array:
    """Of the first tensor among arguments or outputs."""
    tensor = next(_tensors(values), None)
    return UNKNOWN if tensor is None else fingerprint(_numpy(tensor))


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (tuple, list, dict)):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _tensors(value)


def _watched(
    network: nn.Module, inputs: tuple[Tensor, ...], layers: dict[str, nn.Module], see: See
) -> None:
    """One pass in training mode; `see(path, layer, what it is given)` before each call of a layer in training mode."""

    def watch(path: str) -> Callable[..., None]:
        return lambda layer, arguments: see(path, layer, arguments[0]) if layer.training else None

    hooks = [layer.register_forward_pre_hook(watch(path)) for path, layer in layers.items()]
    network.train()
    with torch.no_grad():
        network(*inputs)
    for hook in hooks:
        hook.remove()


def _drawn(layer: nn.Module, like: Tensor, draws: int) -> Array:
    sizes = [min(size, 2) for size in like.shape[1:]]
    ones = torch.ones((draws // prod(sizes), *sizes), dtype=like.dtype, device=like.device)
    return _numpy(_channels_last(layer(ones)))


def _flat(tensors: list[Tensor]) -> Array:
    return np.concatenate([_numpy(_channels_last(tensor)).ravel() for tensor in tensors])


def _numpy(tensor: Tensor) -> Array:
    array: Array = tensor.numpy(force=True)
    return array


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.movedim(1, -1) if tensor.dim() > 3 else tensor


class _CalledOperators(TorchDispatchMode):  # type: ignore[misc]
    """Names of the operators that are called within it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.add(operator.overloadpacket.__name__)
        return operator(*args, **kwargs or {})


def optimizer_kernels(optimizer: torch.optim.Optimizer) -> str:
    """Return which kernels an optimizer's step calls: fused, foreach, or those of single tensors.

    Observed in a step of its class, with its options, on a tensor of one value for each weight: type,
    device and dtype of the weights decide.
    """
    groups = []
    for group in optimizer.param_groups:
        weights = [nn.Parameter(weight.detach().new_zeros(1)) for weight in group["params"]]
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        options = {name: value for name, value in group.items() if name in optimizer.defaults}
        groups.append({**options, "params": weights})
    probe = type(optimizer)(groups)
    with _CalledOperators() as called:
        probe.step()
    for kernels in ("fused", "foreach"):
        if any(name.startswith(f"_{kernels}_") for name in called.names):
            return kernels
    return "one tensor after another"

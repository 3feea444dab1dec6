"""Inputs and outputs of a network's layers in one pass, for the parity gate.

Each framework's own module `introspection` has `RATE`, the attribute of a layer that drops, and the
functions `droppers`, `observe` (one pass, with a call of the observer after each call of a layer),
`draw` (the outputs of a layer for ones), `to_numpy` (channels last) and `comparable_output`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from models.contract import Array, DropoutProbe


class Call(NamedTuple):
    """Call of a layer: its path, the layer, its first input and output, its mode."""

    path: str
    layer: Any
    inputs: Any
    outputs: Any
    is_training: bool


def drop_nothing(backend: Any, network: Any) -> None:
    """Set the rate of each layer that drops to 0.

    Args:
        backend: The framework's own module `introspection`.
        network: Its network.
    """
    for layer in backend.droppers(network).values():
        setattr(layer, backend.RATE, 0.0)


def observe_dropouts(
    backend: Any, network: Any, inputs: Any, draws: int
) -> dict[str, DropoutProbe]:
    """Return the layers that drop, as `Framework.dropping` does."""
    layers, received = backend.droppers(network), defaultdict[str, list[Any]](list)
    rates = {path: getattr(layer, backend.RATE) for path, layer in layers.items()}

    def observe(call: Call) -> None:
        if call.path in layers and call.is_training:
            received[call.path].append(call.inputs)

    drop_nothing(backend, network)
    backend.observe(network, inputs, observe, training=True)
    probes = {}
    for path, layer in layers.items():
        setattr(layer, backend.RATE, rates[path])
        if tensors := received[path]:
            sizes = [min(size, 2) for size in tensors[0].shape[1:]]
            mask = backend.draw(layer, (draws // prod(sizes), *sizes), tensors[0])
            flat = [backend.to_numpy(tensor).ravel() for tensor in tensors]
            probes[path] = DropoutProbe(np.concatenate(flat), mask)
    return probes


def layer_values(backend: Any, network: Any, inputs: Any) -> dict[str, Array]:
    """Return fingerprints of the outputs of each layer's calls, by path, dropout off."""
    calls = defaultdict[str, list[Array]](list)

    def observe(call: Call) -> None:
        output = backend.comparable_output(call)
        if output is not None:
            calls[call.path].append(fingerprint(output))

    backend.observe(network, inputs, observe, training=False)
    return {path: np.stack(arrays) for path, arrays in calls.items()}


def fingerprint(array: Array) -> Array:
    """Return figures that are the same for all orders of the values.

    Returns:
        Size, sum and sum of squares of the finite values, (3,).
    """
    values = np.where(np.isfinite(array), array, 0).astype(np.float64)
    return np.array([values.size, values.sum(), np.square(values).sum()])


def first_difference(
    reference: Mapping[str, Array], other: Mapping[str, Array], limit: float
) -> tuple[str, str]:
    """Return (layer, behind): the first layer whose output differs, and the last equal one.

    In the reference's order; `inputs` and `outputs` are the network's. Layers are compared that
    both sides have and call as often; without any, both names are empty.

    Args:
        reference: by path, fingerprints of the calls, (calls, 3).
        other: the same of the other side.
        limit: of the difference of a sum, relative to its largest possible value.
    """
    common = [path for path in reference if path in other]
    paths = [path for path in common if reference[path].shape == other[path].shape]
    behind = "inputs"
    for path in paths:
        size, _, squares = reference[path].T
        # a sum is at most the root of size times squares (Cauchy-Schwarz)
        largest = np.stack([size * 0, np.sqrt(size * squares), squares], axis=1)
        if (np.abs(reference[path] - other[path]) > limit * largest).any():
            return path, behind
        behind = path
    return ("outputs", behind) if paths else ("", "")

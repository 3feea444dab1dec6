"""FLOPs of networks, counted on their PyTorch siblings.

`python -m models.flops` reads a list of `Network` as JSON, and writes one of `Counts`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np

import models
from models.contract import Array, Batch

# FLOPs are a polynomial of the second degree in the length of a sequence: attention is a product of
# all pairs. It is known from three lengths up to this one, in which strides and frames fit.
SUPPORT = 72


@dataclass(frozen=True)
class Network:
    """Network, and the shapes of the batches that it computed.

    sizes: fields of its spec. batches: shape and type of each input. lengths: of the sequences in
    each batch; empty for images. answer_length: of a request; 0 for one forward pass of an input.
    """

    model: str
    sizes: Mapping[str, Any]
    batches: Sequence[Sequence[tuple[Sequence[int], str]]]
    lengths: Sequence[Sequence[int]] = ()
    answer_length: int = 0

    @classmethod
    def computed(
        cls, model: str, sizes: Any, batches: Sequence[Batch], answer_length: int = 0
    ) -> Network:
        """Return the network that has computed batches.

        Args:
            model: Its name.
            sizes: Its spec.
            batches: Of as many rows each.
            answer_length: Steps of an answer.
        """
        shapes = [[(array.shape, str(array.dtype)) for array in each.inputs] for each in batches]
        at = models.spec(model).LENGTHS_AT
        arrays = [batch.inputs[at] for batch in batches] if at is not None else []
        lengths = [each if each.ndim == 1 else (each != 0).sum(1) for each in arrays]
        return cls(model, asdict(sizes), shapes, [each.tolist() for each in lengths], answer_length)


@dataclass(frozen=True)
class Counts:
    """FLOPs of an example without its padding, and what a step moves at least.

    A multiplication with an addition counts as 2. Elementwise work, the loss and the optimizer do
    not count.

    training: forward and backward. answer: of a request. padding_percent: of the FLOPs of a forward
    pass, at the lengths of the batches. tokens: of an example; 0 for images. bytes_in_and_out: of
    an example.
    """

    forward: float
    training: float
    answer: float
    padding_percent: float
    tokens: float
    bytes_in_and_out: float


@dataclass(frozen=True)
class Counter:
    """Counter of a network's FLOPs by its shapes alone: on the device `meta` nothing is computed.

    network: in training mode, on that device.
    """

    network: Any

    @classmethod
    def of(cls, model: str, sizes: Any) -> Counter:
        """Return the counter of a model with these sizes."""
        import torch

        with torch.device("meta"):
            return cls(models.load(model, "pytorch").build(sizes).train())

    def count(self, inputs: Sequence[Array]) -> tuple[float, float, float]:
        """Return FLOPs of a forward pass, of it and the backward pass, and bytes of the outputs.

        All are means over the examples.
        """
        from unittest.mock import patch

        import torch
        from torch import nn
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode

        backward = {torch.ops.aten.convolution_backward: _convolution_backward}
        counter = FlopCounterMode(display=False, custom_mapping=backward)
        tensors = [torch.from_numpy(np.ascontiguousarray(each)).to("meta") for each in inputs]
        with ExitStack() as stack:
            for layers in (nn.LSTM, nn.GRU):
                stack.enter_context(patch.object(layers, "forward", _recurrent))
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # the others compute some twice
            stack.enter_context(counter)
            outputs = self.network(*tensors)
            forward = counter.get_total_flops()
            if outputs.requires_grad:
                outputs.sum().backward()
        rows = len(inputs[0])
        return forward / rows, counter.get_total_flops() / rows, outputs.nbytes / rows


def count(network: Network) -> Counts:
    """Return the counts of a network, means over its batches."""
    fields = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in network.sizes.items()
    }
    definition = models.spec(network.model)
    sizes, rng = definition.Spec(**fields), np.random.default_rng(0)
    counter = Counter.of(network.model, sizes)
    batches = [[np.zeros(shape, dtype) for shape, dtype in batch] for batch in network.batches]
    if not network.lengths:
        forward, training, outputs = counter.count(batches[0])
        return Counts(forward, training, forward, 0.0, 0.0, outputs + _bytes(batches[0]))

    def batch_of(lengths: Sequence[int]) -> Sequence[Array]:
        return definition.batch(sizes, np.array(lengths), rng).inputs

    longest = max(map(max, network.lengths))
    supports = sorted({max(1, part * min(longest, SUPPORT) // 3) for part in (1, 2, 3)})
    # of two examples: BatchNorm refuses one value a channel
    counted = [counter.count(batch_of([length, length])) for length in supports]
    polynomials = np.polyfit(supports, counted, len(supports) - 1)

    def of_lengths(lengths: Sequence[int]) -> Array:
        powers = np.vander(np.array(lengths, float), len(supports))
        return np.mean(powers @ polynomials, axis=0)

    padded = list[Array]()
    for inputs, lengths in zip(batches, network.lengths, strict=True):
        is_made = [each.shape for each in inputs] == [each.shape for each in batch_of(lengths)]
        padded.append(of_lengths([max(lengths)]) if is_made else np.array(counter.count(inputs)))
    computed, _, outputs = np.mean(padded, axis=0)
    everything = np.concatenate(network.lengths)
    forward, training, _ = of_lengths(everything.tolist())
    answer = of_lengths([network.answer_length])[0] if network.answer_length else forward
    padding_percent = 100 * max(0.0, 1 - forward / computed)
    nbytes = outputs + np.mean(list(map(_bytes, batches)))
    values = (forward, training, answer, padding_percent, everything.mean(), nbytes)
    return Counts(*(round(float(value), 3) for value in values))


def _bytes(inputs: Sequence[Array]) -> float:
    """Return the bytes of an example of a batch."""
    return sum(each.nbytes for each in inputs) / len(inputs[0])


def _recurrent(layers: Any, steps: Any, _: Any = None) -> tuple[Any, Any]:
    """Return outputs and states of an LSTM or GRU whose steps are computed at once.

    The products are as many and as large. One step after the other takes minutes to count.
    """
    import torch
    from torch.nn.functional import linear

    last, width = [], layers.hidden_size
    for layer in range(layers.num_layers):
        outputs = []
        for suffix in ("", "_reverse")[: 1 + layers.bidirectional]:
            weights = (getattr(layers, f"weight_{way}_l{layer}{suffix}") for way in ("ih", "hh"))
            states = linear(steps, next(weights))[..., :width]
            outputs.append(linear(states, next(weights))[..., :width])
            last.append(outputs[-1].select(int(layers.batch_first), -1))
        steps = torch.cat(outputs, dim=-1)
    states = torch.stack(last)
    return steps, (states, states) if layers.mode == "LSTM" else states


def _convolution_backward(
    gradients: Sequence[int],
    inputs: Sequence[int],
    weights: Sequence[int],
    *options: Any,
    **_: Any,
) -> int:
    """Return FLOPs of a convolution's gradients: PyTorch's formula ignores groups."""
    is_transposed, needed = options[4], options[7]
    multiplied = prod(inputs if is_transposed else gradients) * prod(weights[1:])
    return 2 * multiplied * sum(needed[:2])


def main() -> None:
    counts = list[Any]()
    for values in json.load(sys.stdin):
        try:
            counts.append(asdict(count(Network(**values))))
        except Exception as error:  # of a user's network, which may read values
            counts.append(f"{type(error).__name__}: {error}"[:200])
    json.dump(counts, sys.stdout)


if __name__ == "__main__":
    main()

"""Networks that have all the weights of the real ones and compute with the last of them alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from models.contract import Array, Weights


class Network:
    """logits = the output layer's bias, the same for every row; what answers without one gives the mean of its inputs.

    It is enough to learn how frequent each class is, and to be wrong in a known way. weights: all arrays, zero until loaded.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        parameters: tuple[int, int],
        output: str,
        width: int = 0,
    ) -> None:
        self.weights: Weights = {
            name: np.zeros(shape, np.float32) for name, shape in shapes.items()
        }
        self.parameters, self.output, self._width = parameters, output, width

    def __call__(self, inputs: tuple[Array, ...]) -> Array:
        """(rows, classes); rows are those of the last input."""
        rows = len(inputs[-1])
        if self.output:
            return np.tile(self.weights[self.output], (rows, 1))
        means = np.asarray(inputs[0]).reshape(rows, -1).mean(1, keepdims=True)
        return np.repeat(means, self._width, axis=1)

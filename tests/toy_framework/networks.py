"""Networks with all weights of the real ones that use only the last, and its optimizers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from models.contract import Array, ErrorCode, ModelError, OptimizerConfig, Weights


class Network:
    """Network whose logits are the bias of its output layer, the same for every row.

    It can learn how frequent each class is. Without an output layer it returns the mean of its
    inputs. weights: all arrays, zero until loaded.
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
        """Return logits (rows, classes); rows are those of the last input."""
        rows = len(inputs[-1])
        if self.output:
            return np.tile(self.weights[self.output], (rows, 1))
        means = np.asarray(inputs[0]).reshape(rows, -1).mean(1, keepdims=True)
        return np.repeat(means, self._width, axis=1)


class Optimizer:
    """Adam (Kingma & Ba, algorithm 1) or SGD with momentum, of the one array that is trained.

    Slots: `exp_avg`, `exp_avg_sq` and `step`, or `momentum_buffer`.
    """

    def __init__(self, network: Network, config: OptimizerConfig, epsilon: float) -> None:
        self._network, self._config, self._epsilon = network, config, epsilon
        self.name, self.learning_rate = config.name, config.learning_rate
        names = ("momentum_buffer",) if config.name == "sgd" else ("exp_avg", "exp_avg_sq", "step")
        zeros = np.zeros_like(network.weights[network.output])
        self.slots: Weights = {
            name: np.zeros(()) if name == "step" else zeros.copy() for name in names
        }

    def update(self, gradient: Array) -> None:
        weights, slots, config = self._network.weights, self.slots, self._config
        old = weights[self._network.output]
        if config.name == "sgd":
            slots["momentum_buffer"] = (
                config.momentum * slots["momentum_buffer"] + gradient + config.weight_decay * old
            )
            moved = slots["momentum_buffer"]
        else:
            slots["step"] = np.asarray(slots["step"] + 1)
            slots["exp_avg"] = 0.9 * slots["exp_avg"] + 0.1 * gradient
            slots["exp_avg_sq"] = 0.999 * slots["exp_avg_sq"] + 0.001 * gradient**2
            mean, square = (
                slots["exp_avg"] / (1 - 0.9 ** slots["step"]),
                slots["exp_avg_sq"] / (1 - 0.999 ** slots["step"]),
            )
            moved = mean / (np.sqrt(square) + self._epsilon)
        weights[self._network.output] = (old - self.learning_rate * moved).astype(old.dtype)

    @property
    def state(self) -> Weights:
        return {
            f"{self._network.output}/{slot}": array.copy() for slot, array in self.slots.items()
        }

    @state.setter
    def state(self, state: Mapping[str, Array]) -> None:
        for key, array in state.items():
            name, _, slot = key.rpartition("/")
            if name != self._network.output:
                raise ModelError(
                    ErrorCode.CONFLICT,
                    f"optimizer state: {key!r} belongs to no weight that is trained",
                )
            self.slots[slot] = array.copy()

"""Adam with PyTorch's semantics for every Keras backend."""

from __future__ import annotations

from math import log
from typing import Any

from keras import config, ops, optimizers


class TorchAdam(optimizers.Optimizer):  # type: ignore[misc]
    """Kingma & Ba (2015), algorithm 1, as torch.optim.Adam computes it.

    Keras' own adds epsilon before the bias correction, and on TensorFlow squares repeated embedding rows un-summed.
    """

    def __init__(self, learning_rate: float, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-8) -> None:
        super().__init__(learning_rate=learning_rate, name="adam")
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        self._means, self._squares = self.add_optimizer_variables(variables, ["exp_avg", "exp_avg_sq"])

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        gradient = _dense(gradient)
        index = self._get_variable_index(variable)
        mean, square = self._means[index], self._squares[index]
        self.assign(mean, mean + (1 - self.beta_1) * (gradient - mean))
        self.assign(square, self.beta_2 * square + (1 - self.beta_2) * ops.square(gradient))

        step = ops.cast(self.iterations + 1, variable.dtype)
        correction_1 = -ops.expm1(step * log(self.beta_1))  # 1 - beta^step, which float32 would cancel to four digits
        correction_2 = -ops.expm1(step * log(self.beta_2))
        denominator = ops.sqrt(square) / ops.sqrt(correction_2) + self.epsilon
        rate = ops.cast(learning_rate, variable.dtype) / correction_1
        self.assign_sub(variable, rate * mean / denominator)


def _dense(gradient: Any) -> Any:
    """TensorFlow's embedding gradients are rows with repetitions: dense, the repeated rows are summed."""
    if config.backend() != "tensorflow":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)

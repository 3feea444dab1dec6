"""Adam and SGD with PyTorch's semantics for every Keras backend."""

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
        index = self._get_variable_index(variable)
        mean, square = self._means[index], self._squares[index]
        step = ops.cast(self.iterations + 1, variable.dtype)
        correction_1 = -ops.expm1(step * log(self.beta_1))  # 1 - beta^step, which float32 would cancel to four digits
        root_2 = ops.sqrt(-ops.expm1(step * log(self.beta_2)))
        rate = ops.cast(learning_rate, variable.dtype) / correction_1
        if config.backend() == "tensorflow":
            self._fused(gradient, variable, mean, square, rate * root_2, self.epsilon * root_2)
            return
        self.assign(mean, mean + (1 - self.beta_1) * (gradient - mean))
        self.assign(square, self.beta_2 * square + (1 - self.beta_2) * ops.square(gradient))
        self.assign_sub(variable, rate * mean / (ops.sqrt(square) / root_2 + self.epsilon))

    def _fused(self, gradient: Any, variable: Any, mean: Any, square: Any, rate: Any, epsilon: Any) -> None:
        """TensorFlow's own kernel, which adds `epsilon` before the bias correction: both given so that the result is the same.

        rate·m / (sqrt(v) + epsilon), top and bottom over sqrt(1 - beta_2^t), is algorithm 1. Embedding gradients come as rows
        with repetitions: made dense, the repeated rows are summed.
        """
        import tensorflow as tf

        none = tf.zeros([], variable.dtype)  # powers of beta: the correction is in `rate` already
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=mean.handle,
            v=square.handle,
            beta1_power=none,
            beta2_power=none,
            lr=rate,
            beta1=tf.constant(self.beta_1, variable.dtype),
            beta2=tf.constant(self.beta_2, variable.dtype),
            epsilon=epsilon,
            grad=tf.convert_to_tensor(gradient),
        )


class TorchSGD(optimizers.Optimizer):  # type: ignore[misc]
    """Stochastic gradient descent as torch.optim.SGD computes it: L2 decay in the gradient, momentum of gradients alone.

    Keras' own folds the learning rate into the momentum, so that a drop of the rate reaches it late, and decays apart from it.
    """

    def __init__(self, learning_rate: float, momentum: float = 0.0, decay: float = 0.0) -> None:
        super().__init__(learning_rate=learning_rate, name="sgd")
        self.momentum, self.decay = momentum, decay

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        if self.momentum:
            (self._momenta,) = self.add_optimizer_variables(variables, ["momentum_buffer"])

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rate = ops.cast(learning_rate, variable.dtype)
        if self.decay:
            gradient = gradient + self.decay * variable
        if not self.momentum:
            self.assign_sub(variable, rate * gradient)
            return
        moved = self._momenta[self._get_variable_index(variable)]
        if config.backend() == "tensorflow":
            self._fused(gradient, variable, moved, rate)
            return
        self.assign(moved, self.momentum * moved + gradient)
        self.assign_sub(variable, rate * moved)

    def _fused(self, gradient: Any, variable: Any, moved: Any, rate: Any) -> None:
        """TensorFlow's own kernel: moved = momentum·moved + gradient, variable -= rate·moved."""
        import tensorflow as tf

        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=moved.handle,
            lr=rate,
            grad=tf.convert_to_tensor(gradient),
            momentum=tf.constant(self.momentum, variable.dtype),
            use_nesterov=False,
        )

"""Adam and SGD with PyTorch's semantics for every Keras backend, in the backend's own kernel.

What is one for all variables (rates, corrections) is computed once a step, not once a variable.
"""

from __future__ import annotations

from math import log
from typing import Any, ClassVar

from keras import config, ops, optimizers


class OnceAStep(optimizers.Optimizer):  # type: ignore[misc]
    """`update_step` gets what `_once` returns in place of the learning rate; PyTorch updates all variables in one call.

    implementations: by backend, which code updates the weights.
    """

    implementations: ClassVar[dict[str, str]]

    def _backend_update_step(
        self, gradients: Any, variables: list[Any], learning_rate: Any
    ) -> None:
        rate = ops.cast(learning_rate, variables[0].dtype)
        if config.backend() == "torch":
            self._update_all(
                [variable.value for variable in variables],
                list(gradients),
                self._slots(variables),
                rate,
            )
        else:
            super()._backend_update_step(gradients, variables, self._once(rate))

    def _values(self, slots: list[Any], variables: list[Any]) -> list[Any]:
        return [slots[self._get_variable_index(variable)].value for variable in variables]


class TorchAdam(OnceAStep):
    """Kingma & Ba (2015), algorithm 1, as torch.optim.Adam computes it.

    Keras' own adds epsilon before the bias correction, and on TensorFlow squares repeated embedding rows un-summed.
    """

    implementations: ClassVar[dict[str, str]] = {
        "tensorflow": "Adam: TensorFlow's kernel ResourceApplyAdam",
        "torch": "Adam: PyTorch's kernel _fused_adam_",
        "jax": "Adam: compiled by XLA",
    }

    def __init__(
        self,
        learning_rate: float,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name="adam")
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        self._means, self._squares = self.add_optimizer_variables(
            variables, ["exp_avg", "exp_avg_sq"]
        )

    def update_step(self, gradient: Any, variable: Any, once: tuple[Any, ...]) -> None:
        index = self._get_variable_index(variable)
        mean, square = self._means[index], self._squares[index]
        if config.backend() == "tensorflow":
            self._fused(gradient, variable, mean, square, *once)
            return
        rate, root_2 = once
        self.assign(mean, mean + (1 - self.beta_1) * (gradient - mean))
        self.assign(square, self.beta_2 * square + (1 - self.beta_2) * ops.square(gradient))
        self.assign_sub(variable, rate * mean / (ops.sqrt(square) / root_2 + self.epsilon))

    def _once(self, rate: Any) -> tuple[Any, ...]:
        """(rate / correction of the mean, root of the correction of the square); for TensorFlow's kernel what that takes."""
        step = ops.cast(self.iterations + 1, rate.dtype)
        correction_1 = -ops.expm1(
            step * log(self.beta_1)
        )  # 1 - beta^step, which float32 would cancel to four digits
        root_2 = ops.sqrt(-ops.expm1(step * log(self.beta_2)))
        rate = rate / correction_1
        if config.backend() != "tensorflow":
            return rate, root_2
        import tensorflow as tf

        betas = (tf.constant(beta, rate.dtype) for beta in (self.beta_1, self.beta_2))
        none = tf.zeros([], rate.dtype)  # powers of beta: the correction is in the rate already
        return rate * root_2, self.epsilon * root_2, none, *betas

    @staticmethod
    def _fused(
        gradient: Any,
        variable: Any,
        mean: Any,
        square: Any,
        rate: Any,
        epsilon: Any,
        none: Any,
        beta_1: Any,
        beta_2: Any,
    ) -> None:
        """TensorFlow's own kernel, which adds `epsilon` before the bias correction: both given so that the result is the same.

        rate·m / (sqrt(v) + epsilon), top and bottom over sqrt(1 - beta_2^t), is algorithm 1. Embedding gradients come as rows
        with repetitions: made dense, the repeated rows are summed.
        """
        import tensorflow as tf

        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=mean.handle,
            v=square.handle,
            beta1_power=none,
            beta2_power=none,
            lr=rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=tf.convert_to_tensor(gradient),
        )

    def _slots(self, variables: list[Any]) -> tuple[list[Any], ...]:
        return self._values(self._means, variables), self._values(self._squares, variables)

    def _update_all(
        self, values: list[Any], gradients: list[Any], slots: tuple[list[Any], ...], rate: Any
    ) -> None:
        """The kernel of torch.optim.Adam(fused=True)."""
        import torch

        step = ops.cast(self.iterations + 1, "float32")
        betas = {"beta1": self.beta_1, "beta2": self.beta_2, "eps": self.epsilon}
        plain = {"weight_decay": 0.0, "amsgrad": False, "maximize": False}
        with torch.no_grad():
            torch._fused_adam_(
                values, gradients, *slots, [], [step] * len(values), lr=rate, **betas, **plain
            )


class TorchSGD(OnceAStep):
    """Stochastic gradient descent as torch.optim.SGD computes it: L2 decay in the gradient, momentum of gradients alone.

    Keras' own folds the learning rate into the momentum, so that a drop of the rate reaches it late, and decays apart from it.
    """

    implementations: ClassVar[dict[str, str]] = {
        "tensorflow": "SGD: TensorFlow's kernel ResourceApplyMomentum",
        "torch": "SGD: PyTorch's kernel _fused_sgd_",
        "jax": "SGD: compiled by XLA",
    }

    def __init__(self, learning_rate: float, momentum: float = 0.0, decay: float = 0.0) -> None:
        super().__init__(learning_rate=learning_rate, name="sgd")
        self.momentum, self.decay = momentum, decay

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        if self.momentum:
            (self._momenta,) = self.add_optimizer_variables(variables, ["momentum_buffer"])

    def update_step(self, gradient: Any, variable: Any, once: tuple[Any, ...]) -> None:
        rate = once[0]
        if self.decay:
            gradient = gradient + self.decay * variable
        if not self.momentum:
            self.assign_sub(variable, rate * gradient)
            return
        moved = self._momenta[self._get_variable_index(variable)]
        if config.backend() == "tensorflow":
            self._fused(gradient, variable, moved, *once)
            return
        self.assign(moved, self.momentum * moved + gradient)
        self.assign_sub(variable, rate * moved)

    def _once(self, rate: Any) -> tuple[Any, ...]:
        """(rate,); for TensorFlow's kernel the momentum too."""
        if config.backend() != "tensorflow":
            return (rate,)
        import tensorflow as tf

        return rate, tf.constant(self.momentum, rate.dtype)

    @staticmethod
    def _fused(gradient: Any, variable: Any, moved: Any, rate: Any, momentum: Any) -> None:
        """TensorFlow's own kernel: moved = momentum·moved + gradient, variable -= rate·moved."""
        import tensorflow as tf

        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=moved.handle,
            lr=rate,
            grad=tf.convert_to_tensor(gradient),
            momentum=momentum,
            use_nesterov=False,
        )

    def _slots(self, variables: list[Any]) -> tuple[list[Any], ...]:
        return (self._values(self._momenta, variables) if self.momentum else [],)

    def _update_all(
        self, values: list[Any], gradients: list[Any], slots: tuple[list[Any], ...], rate: Any
    ) -> None:
        """The kernel of torch.optim.SGD(fused=True); momenta begin at zero, so that the first step is as any other."""
        import torch

        given = {"weight_decay": self.decay, "momentum": self.momentum, "dampening": 0.0}
        plain = {"nesterov": False, "maximize": False, "is_first_step": False}
        with torch.no_grad():
            torch._fused_sgd_(values, gradients, *slots, lr=rate, **given, **plain)

"""Adam and SGD with PyTorch's semantics for each Keras backend, in the backend's own kernel.

Values that all variables share (rates, corrections) are computed once a step.
"""

from __future__ import annotations

from math import log
from typing import Any, ClassVar

from keras import config, ops, optimizers

FLOAT32_BYTES = 4


class OnceAStep(optimizers.Optimizer):  # type: ignore[misc]
    """Optimizer whose `update_step` gets the result of `_shared` in place of the learning rate.

    On PyTorch `_update_all(variables, gradients, rate)` updates them in one call. implementations:
    by backend, the code that updates the weights.
    """

    implementations: ClassVar[dict[str, str]]

    def _backend_update_step(
        self, gradients: Any, variables: list[Any], learning_rate: Any
    ) -> None:
        rate = ops.cast(learning_rate, variables[0].dtype)
        if config.backend() == "torch":
            # PyTorch's kernels for a GPU read a rate on the device as float32, whatever its type
            rate = rate.item() if rate.dtype.itemsize > FLOAT32_BYTES else rate
            self._update_all(variables, list(gradients), rate)
        else:
            super()._backend_update_step(gradients, variables, self._shared(rate))

    def _values(self, slots: list[Any], variables: list[Any]) -> list[Any]:
        return [slots[self._get_variable_index(variable)].value for variable in variables]


class TorchAdam(OnceAStep):
    """Kingma & Ba (2015), algorithm 1, as torch.optim.Adam computes it.

    Keras' own adds epsilon before the bias correction, and on TensorFlow squares repeated embedding
    rows un-summed.
    """

    implementations: ClassVar[dict[str, str]] = {
        "tensorflow": "Adam: TensorFlow's kernel ResourceApplyAdam",
        "torch": "Adam: PyTorch's kernel _fused_adam_",
        "jax": "Adam: compiled by XLA",
    }
    beta_1, beta_2, epsilon = 0.9, 0.999, 1e-8

    def __init__(self, learning_rate: float) -> None:
        super().__init__(learning_rate=learning_rate, name="adam")

    def build(self, variables: list[Any]) -> None:
        if not self.built:
            super().build(variables)
            names = ["exp_avg", "exp_avg_sq"]
            self._means, self._squares = self.add_optimizer_variables(variables, names)

    def update_step(self, gradient: Any, variable: Any, shared: Any) -> None:
        index = self._get_variable_index(variable)
        mean, square = self._means[index], self._squares[index]
        if config.backend() == "tensorflow":
            import tensorflow as tf

            # embedding gradients are rows with repetitions: made dense, repeated rows are summed
            gradient = tf.convert_to_tensor(gradient)
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle, m=mean.handle, v=square.handle, grad=gradient, **shared
            )
            return
        rate, root_2 = shared
        self.assign(mean, mean + (1 - self.beta_1) * (gradient - mean))
        self.assign(square, self.beta_2 * square + (1 - self.beta_2) * ops.square(gradient))
        self.assign_sub(variable, rate * mean / (ops.sqrt(square) / root_2 + self.epsilon))

    def _shared(self, rate: Any) -> Any:
        """Return rate / correction of the mean, and the root of the correction of the square.

        TensorFlow's kernel adds `epsilon` before the bias correction. It gets a rate and an epsilon
        with which the result is the same: rate·m / (sqrt(v) + epsilon), top and bottom over
        sqrt(1 - beta_2^t), is algorithm 1.
        """
        step = ops.cast(self.iterations + 1, rate.dtype)
        # 1 - beta^step, which float32 would cancel to four digits
        rate = rate / -ops.expm1(step * log(self.beta_1))
        root_2 = ops.sqrt(-ops.expm1(step * log(self.beta_2)))
        if config.backend() != "tensorflow":
            return rate, root_2
        import tensorflow as tf

        beta_1, beta_2 = (tf.constant(beta, rate.dtype) for beta in (self.beta_1, self.beta_2))
        zero = tf.zeros([], rate.dtype)  # powers of beta: the correction is in the rate already
        return {
            "lr": rate * root_2,
            "epsilon": self.epsilon * root_2,
            "beta1": beta_1,
            "beta2": beta_2,
            "beta1_power": zero,
            "beta2_power": zero,
        }

    def _update_all(self, variables: list[Any], gradients: list[Any], rate: Any) -> None:
        import torch

        values = [variable.value for variable in variables]
        slots = [self._values(slot, variables) for slot in (self._means, self._squares)]
        steps = [ops.cast(self.iterations + 1, "float32")] * len(values)
        options = {"beta1": self.beta_1, "beta2": self.beta_2, "eps": self.epsilon}
        options |= {"weight_decay": 0.0, "amsgrad": False, "maximize": False}
        with torch.no_grad():
            torch._fused_adam_(values, gradients, *slots, [], steps, lr=rate, **options)


class TorchSGD(OnceAStep):
    """SGD as torch.optim.SGD computes it: L2 decay in the gradient, momentum of gradients.

    Keras' own folds the learning rate into the momentum, so that a drop of the rate reaches it
    late, and decays separately.
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
        if not self.built:
            super().build(variables)
            if self.momentum:
                (self._momenta,) = self.add_optimizer_variables(variables, ["momentum_buffer"])

    def update_step(self, gradient: Any, variable: Any, shared: tuple[Any, ...]) -> None:
        rate = shared[0]
        if self.decay:
            gradient = gradient + self.decay * variable
        if not self.momentum:
            self.assign_sub(variable, rate * gradient)
            return
        moved = self._momenta[self._get_variable_index(variable)]
        if config.backend() == "tensorflow":
            import tensorflow as tf

            # moved = momentum·moved + gradient, variable -= rate·moved
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=moved.handle,
                lr=rate,
                grad=tf.convert_to_tensor(gradient),
                momentum=shared[1],
                use_nesterov=False,
            )
            return
        self.assign(moved, self.momentum * moved + gradient)
        self.assign_sub(variable, rate * moved)

    def _shared(self, rate: Any) -> tuple[Any, ...]:
        if config.backend() != "tensorflow":
            return (rate,)
        import tensorflow as tf

        return rate, tf.constant(self.momentum, rate.dtype)

    def _update_all(self, variables: list[Any], gradients: list[Any], rate: Any) -> None:
        import torch

        values = [variable.value for variable in variables]
        momenta = self._values(self._momenta, variables) if self.momentum else []
        options = {"weight_decay": self.decay, "momentum": self.momentum, "dampening": 0.0}
        options |= {"nesterov": False, "maximize": False, "is_first_step": False}
        with torch.no_grad():
            torch._fused_sgd_(values, gradients, momenta, lr=rate, **options)

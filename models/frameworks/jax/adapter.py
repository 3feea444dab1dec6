"""JAX's adapter: Keras layers, our `jax.jit` of `jax.value_and_grad`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from models.contract import Array, Batch, StepClock, Weights
from models.devices import CPU
from models.frameworks.jax.device import COMPILED, JaxDevice
from models.frameworks.keras.shared import KerasFramework


class Adapter(JaxDevice, KerasFramework):
    """JAX: a compiled function for each use, and for each shape of its arrays.

    Keras draws the key of each step's dropout from generators with the cell's seed, whose states
    are variables. A step gets the values of all variables and returns the new ones.
    """

    backend, profiler, pipeline = "jax", "jax", ""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._functions: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._answers: dict[int, Callable[..., Any]] = {}

    def jit_compile(self, network: Any) -> bool | None:
        return True

    def compilations(self) -> int:
        return self._events[COMPILED]

    def compile_anew(self) -> None:
        self._jax.config.update("jax_enable_compilation_cache", False)

    def train_step(self, network: Any, optimizer: Any, batch: Batch) -> Any:
        if batch.uniform_weights is None:
            batch = self.place(batch)
        key = ("train", id(network), id(optimizer))
        step = self._functions.get(key)
        if step is None:
            step = self._functions[key] = self._step(network, optimizer)
        return step(batch.inputs, batch.targets, None if batch.uniform_weights else batch.weights)

    def train_epoch(
        self, network: Any, optimizer: Any, batches: Iterable[Batch], clock: StepClock
    ) -> None:
        """End the clock at the last loss, without waiting for all arrays of the process.

        The new state is another result of the same function: it is there at the same time.
        """
        wait, batches = self._jax.block_until_ready, iter(batches)
        while window := [self.place(batch) for batch in islice(batches, clock.window_steps)]:
            wait([(batch.inputs, batch.targets, batch.weights) for batch in window])
            clock.begin()
            losses = [self.train_step(network, optimizer, placed) for placed in window]
            clock.end(*losses)
            window.clear()

    def gradients(self, network: Any, batch: Batch) -> Weights:
        variables = network.trainable_variables
        loss = self._stateless(_mean_loss, network, variables)
        values = [variable.value for variable in variables]
        return self._gradient_weights(network, self._jax.grad(loss)(values, *self._flat(batch)))

    def infer(self, network: Any, inputs: tuple[Array, ...]) -> Array:
        # few calls of Python: they show next to the time of a small network
        if isinstance(inputs[0], np.ndarray):
            inputs = tuple(map(self._array, inputs))
        answer = self._answers.get(id(network))
        if answer is None:
            answer = self._answers[id(network)] = self._compiled(_outputs, network)
        # a copy: an array of JAX cannot be written to
        outputs = np.asarray(answer(inputs)).copy()
        return outputs if outputs.dtype is self._dtype else outputs.astype(self._dtype, copy=False)

    def apply(
        self, function: Callable[..., Any], network: Any, inputs: tuple[Array, ...], **options: int
    ) -> Array:
        return np.asarray(self._call(function, network, tuple(map(self._array, inputs)), **options))

    def _evaluated_loss(self, network: Any, batch: Batch) -> Any:
        return self._call(_mean_loss, network, self._flat(batch))

    def _flat(self, batch: Batch) -> tuple[Any, ...]:
        inputs = tuple(map(self._array, batch.inputs))
        return inputs, self._array(batch.targets), self._array(batch.weights)

    def _call(
        self, function: Callable[..., Any], network: Any, arrays: tuple[Any, ...], **options: int
    ) -> Any:
        """Return `function(network, *arrays, **options)`, compiled."""
        key = (function, id(network), *options.items())
        called = self._functions.get(key)
        if called is None:
            called = self._functions[key] = self._compiled(function, network, **options)
        return called(*arrays)

    def _compiled(
        self, function: Callable[..., Any], network: Any, **options: int
    ) -> Callable[..., Any]:
        variables = network.variables
        compiled = self._jax.jit(self._stateless(function, network, variables, **options))
        return lambda *arrays: compiled([variable._value for variable in variables], *arrays)

    def _stateless(
        self,
        function: Callable[..., Any],
        network: Any,
        variables: Sequence[Any],
        **options: int,
    ) -> Callable[..., Any]:
        """Return a function of the variables' values and the arrays, without effects."""

        def call(values: Sequence[Any], *arrays: Any) -> Any:
            state = list(zip(variables, values, strict=True))
            with self._keras.StatelessScope(state_mapping=state):
                return function(network, *arrays, **options)

        return call

    def _step(self, network: Any, optimizer: Any) -> Callable[..., Any]:
        """Return a training step that updates the variables of network and optimizer."""
        jax = self._jax
        groups = (
            network.trainable_variables,
            network.non_trainable_variables,
            optimizer.variables,
        )
        variables = [variable for group in groups for variable in group]

        def step(values: list[list[Any]], inputs: Any, targets: Any, weights: Any) -> Any:
            trainable, others, slots = values

            def loss_of(trainable: list[Any]) -> Any:
                state = zip((*groups[0], *groups[1]), (*trainable, *others), strict=True)
                with self._keras.StatelessScope(state_mapping=list(state)) as scope:
                    loss = _mean_loss(network, inputs, targets, weights, training=True)
                    moved = [scope.get_current_value(variable) for variable in groups[1]]
                return loss, moved

            (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
            trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
            return loss, [*trainable, *others, *slots]

        # on the CPU XLA copies what is donated
        donated = () if self.device == CPU else (0,)
        compiled = jax.jit(step, donate_argnums=donated)

        def run(*batch: Any) -> Any:
            values = [[variable._value for variable in group] for group in groups]
            loss, moved = compiled(values, *batch)
            for variable, value in zip(variables, moved, strict=True):
                variable._value = value
            return loss

        return run


def _outputs(network: Any, *inputs: Any, training: bool = False) -> Any:
    return network(inputs if len(inputs) > 1 else inputs[0], training=training)


def _mean_loss(
    network: Any, inputs: tuple[Any, ...], targets: Any, weights: Any, training: bool = False
) -> Any:
    """Return the loss. weights: None if all of them are 1."""
    from jax import numpy
    from jax.scipy.special import logsumexp
    from keras import config

    logits = _outputs(network, *inputs, training=training).astype(config.floatx())
    if hasattr(network, "example_losses"):
        losses = network.example_losses(inputs, logits, targets)
    else:
        chosen = numpy.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        losses = logsumexp(logits, axis=-1) - chosen
    return losses.mean() if weights is None else (losses * weights).sum() / weights.sum()

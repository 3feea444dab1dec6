"""Keras behind the contract: compile and fit, as its documentation says, on each of its backends."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import chain
from typing import Any

from models.contract import Array, Batch, ModelError, OptimizerConfig, StepClock, Weights
from models.frameworks.keras.shared import KerasFramework, tensor_specs


class Adapter(KerasFramework):
    """Keras' own defaults decide what is compiled (`jit_compile="auto"`)."""

    fetches_itself = True

    def __init__(self, name: str, *, device: str, threads: int, precision: str, seed: int) -> None:
        backend = name.partition("-")[2]
        super().__init__(name, backend, device=device, threads=threads, precision=precision, seed=seed)
        self._applied: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def build(self, model: str, spec: Any) -> Any:
        network = super().build(model, spec)
        network.compile(loss=_loss())
        return network

    def optimizer(self, network: Any, config: OptimizerConfig) -> Any:
        optimizer = super().optimizer(network, config)
        network.compile(optimizer=optimizer, loss=_loss())
        return optimizer

    def train_step(self, network: Any, optimizer: Any, batch: Batch) -> Any:
        _check_compiled(network, optimizer)
        inputs, targets, weights = self._fitted(batch)
        return network.train_on_batch(inputs, targets, sample_weight=weights)

    def train_epoch(self, network: Any, optimizer: Any, batches: Iterable[Batch], clock: StepClock) -> None:
        """`fit` over the batches. On TensorFlow and JAX its step also takes the batch from the iterator: the clock sees that."""
        _check_compiled(network, optimizer)
        feed = _Feed(map(self._fitted, batches))
        network.fit(_data(self.backend, feed), epochs=1, verbose=0, shuffle=False, callbacks=[_clocked(self, feed, clock)])

    def evaluate(self, network: Any, batch: Batch) -> tuple[float, float]:
        inputs, targets, weights = self._fitted(batch)
        total = float(batch.weights.sum())
        return float(network.test_on_batch(inputs, targets, sample_weight=weights)) * total, total

    def gradients(self, network: Any, batch: Batch) -> Weights:
        gradients = {"tensorflow": _tensorflow_gradients, "torch": _torch_gradients, "jax": _jax_gradients}[self.backend]
        return self._gradient_weights(network, gradients(network, *self._fitted(batch)))

    def infer(self, network: Any, inputs: tuple[Array, ...]) -> Array:
        arrays = tuple(map(self._array, inputs))
        outputs: Array = network.predict_on_batch(arrays if len(arrays) > 1 else arrays[0])
        return outputs.astype(self._dtype, copy=False)

    def apply(self, function: Callable[..., Any], network: Any, inputs: tuple[Array, ...], **options: int) -> Array:
        from keras import ops

        key = (function, id(network), *options.items())
        if key not in self._applied:
            compiled = {"tensorflow": _tensorflow_function, "torch": _torch_function, "jax": _jax_function}[self.backend]
            self._applied[key] = compiled(partial(function, network, **options), network)
        outputs: Array = ops.convert_to_numpy(self._applied[key](*map(self._array, inputs)))
        return outputs

    def _fitted(self, batch: Batch) -> tuple[Any, Array, Array]:
        inputs, targets, weights = self._arrays(batch)
        return inputs if len(inputs) > 1 else inputs[0], targets, weights


class _Feed:
    """The batches with one looked ahead, so that `count` is known by the time the last is handed out.

    Left to find the end itself, `fit` begins a step too many, and on TensorFlow the optimizer counts that step.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = iter(batches)
        self.count: int | None = None

    def __iter__(self) -> Generator[Any]:
        count, ahead = 0, next(self._batches, None)
        while ahead is not None:
            batch, ahead = ahead, next(self._batches, None)
            count += 1
            if ahead is None:
                self.count = count
            yield batch


def _data(backend: str, feed: _Feed) -> Any:
    """The feed as `fit` takes it. For TensorFlow with our shapes: Keras would guess them from the first two batches."""
    batches = iter(feed)
    if backend != "tensorflow":
        return batches
    import tensorflow as tf

    first = next(batches)
    restored = chain([first], batches)
    return tf.data.Dataset.from_generator(lambda: restored, output_signature=tensor_specs(first)).prefetch(tf.data.AUTOTUNE)


def _clocked(framework: Adapter, feed: _Feed, clock: StepClock) -> Any:
    """A callback that brackets every step of `fit`, the device idle at both ends, and stops it after the last batch."""
    import keras

    class Clocked(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            if framework.backend == "jax":
                self.model.jax_state_sync()
            self.model.reset_metrics()  # the loss that fit reports is a running mean: make it this step's
            framework.synchronise()
            clock.begin()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            framework.synchronise()
            clock.end(float(logs["loss"]))
            self.model.stop_training = batch + 1 == feed.count

    return Clocked()


def _check_compiled(network: Any, optimizer: Any) -> None:
    if network.optimizer is not optimizer:
        raise ModelError("keras: a network trains with the optimizer made for it last")


def _loss() -> Any:
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")


def _tensorflow_gradients(network: Any, inputs: Any, targets: Array, weights: Array) -> list[Any]:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = _loss()(targets, network(inputs, training=False), sample_weight=weights)
    return list(map(tf.convert_to_tensor, tape.gradient(loss, network.trainable_variables)))


def _torch_gradients(network: Any, inputs: Any, targets: Array, weights: Array) -> list[Any]:
    import torch

    loss = _loss()(targets, network(inputs, training=False), sample_weight=weights)
    return list(torch.autograd.grad(loss, [variable.value for variable in network.trainable_variables]))


def _jax_gradients(network: Any, inputs: Any, targets: Array, weights: Array) -> list[Any]:
    import jax
    import keras

    variables = network.trainable_variables

    def loss(values: list[Any]) -> Any:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return _loss()(targets, network(inputs, training=False), sample_weight=weights)

    gradients: list[Any] = jax.grad(loss)([variable.value for variable in variables])
    return gradients


def _tensorflow_function(function: Callable[..., Any], network: Any) -> Callable[..., Any]:
    import tensorflow as tf

    compiled: Callable[..., Any] = tf.function(function, reduce_retracing=True, jit_compile=network.jit_compile)
    return compiled


def _torch_function(function: Callable[..., Any], _: Any) -> Callable[..., Any]:
    import torch
    from keras import ops

    def without_gradients(*arrays: Array) -> Any:
        with torch.no_grad():
            return function(*map(ops.convert_to_tensor, arrays))

    return without_gradients


def _jax_function(function: Callable[..., Any], network: Any) -> Callable[..., Any]:
    import jax
    import keras

    def stateless(values: list[Any], *arrays: Any) -> Any:
        with keras.StatelessScope(state_mapping=list(zip(network.variables, values, strict=True))):
            return function(*arrays)

    compiled = jax.jit(stateless)
    return lambda *arrays: compiled([variable.value for variable in network.variables], *arrays)

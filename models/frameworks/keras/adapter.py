"""Keras behind the contract: compile and fit, as its documentation says, on each of its backends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, count, islice, pairwise, starmap
from typing import Any

from models.contract import PROFILED, Array, Batch, ModelError, OptimizerConfig, StepClock, Weights
from models.frameworks.keras.shared import KerasFramework


class Adapter(KerasFramework):
    """Keras' own defaults decide what is compiled (`jit_compile="auto"`)."""

    def __init__(
        self,
        name: str,
        *,
        device: str,
        threads: int,
        precision: str,
        seed: int,
        conv_algorithm: str = PROFILED,
    ) -> None:
        backend = name.partition("-")[2]
        super().__init__(
            name,
            backend,
            device=device,
            threads=threads,
            precision=precision,
            seed=seed,
            conv_algorithm=conv_algorithm,
        )
        self._applied: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def build(self, model: str, spec: Any) -> Any:
        network = super().build(model, spec)
        if hasattr(network, "example_losses"):
            network.compute_loss = partial(_own_loss, network)
        network.compile(loss=_loss())
        if self.backend == "tensorflow":
            network.train_step = partial(self._trace, network.train_step)
            self._compiles_each_shape = network.jit_compile
        return network

    def optimizer(self, network: Any, config: OptimizerConfig) -> Any:
        optimizer = super().optimizer(network, config)
        network.compile(optimizer=optimizer, loss=_loss())
        return optimizer

    def jit_compile(self, network: Any) -> bool | None:
        """Return what Keras decided: it asks for devices, layers and switches that no setting here names."""
        return None if self.backend == "torch" else bool(network.jit_compile)

    def train_step(self, network: Any, optimizer: Any, batch: Batch) -> Any:
        _check_compiled(network, optimizer)
        return network.train_on_batch(
            *self._trained_on(batch if batch.even is not None else self.place(batch))
        )

    def train_epoch(
        self, network: Any, optimizer: Any, batches: Iterable[Batch], clock: StepClock
    ) -> None:
        """`fit`, which calls the train function that Keras compiled once a step, each time on a batch placed before.

        What `fit` itself would do inside of that call on TensorFlow and JAX, taking the batch from an iterator, is left out.
        A window of several steps is one call of `fit`'s, so that nothing lies in it but the steps.
        """
        _check_compiled(network, optimizer)
        feed = _Feed((self._trained_on(self.place(batch)) for batch in batches), clock)
        if not feed.ahead:
            return
        network.make_train_function()
        compiled = network.train_function
        window = _jax_window if self.backend == "jax" else _window
        network.train_function = partial(window, self, network, compiled, feed, clock)
        try:
            network.fit(_shown(self.backend, feed.ahead[0]), epochs=1, verbose=0, shuffle=False)
        finally:
            network.train_function = compiled

    def evaluate(self, network: Any, batch: Batch) -> tuple[float, float]:
        inputs, targets, weights = self._fitted(batch)
        total = float(batch.weights.sum())
        return float(network.test_on_batch(inputs, targets, sample_weight=weights)) * total, total

    def gradients(self, network: Any, batch: Batch) -> Weights:
        gradients = {
            "tensorflow": _tensorflow_gradients,
            "torch": _torch_gradients,
            "jax": _jax_gradients,
        }[self.backend]
        return self._gradient_weights(network, gradients(network, *self._fitted(batch)))

    def infer(self, network: Any, inputs: tuple[Array, ...]) -> Array:
        arrays = tuple(map(self._array, inputs))
        outputs: Array = network.predict_on_batch(arrays if len(arrays) > 1 else arrays[0])
        return outputs.astype(self._dtype, copy=False)

    def apply(
        self, function: Callable[..., Any], network: Any, inputs: tuple[Array, ...], **options: int
    ) -> Array:
        from keras import ops

        key = (function, id(network), *options.items())
        if key not in self._applied:
            compiled = {
                "tensorflow": _tensorflow_function,
                "torch": _torch_function,
                "jax": _jax_function,
            }[self.backend]
            self._applied[key] = compiled(partial(function, network, **options), network)
        outputs: Array = ops.convert_to_numpy(self._applied[key](*map(self._array, inputs)))
        return outputs

    def _trace(self, step: Callable[..., Any], data: Any) -> Any:
        """Python's code of a step, which a tf.function runs when it traces it, and only then."""
        self._traced += 1
        return step(data)

    def _trained_on(self, batch: Batch) -> tuple[Any, ...]:
        """A placed batch as `fit` takes it: inputs, targets and, unless all of them are 1, weights."""
        return self._fitted(batch)[: 2 if batch.even else 3]

    def _fitted(self, batch: Batch) -> tuple[Any, Array, Array]:
        inputs, targets, weights = self._arrays(batch)
        return inputs if len(inputs) > 1 else inputs[0], targets, weights


class _Feed:
    """Batches, those of the next window always made: none is while the clock runs, and the last are known as such."""

    def __init__(self, batches: Iterable[Any], clock: StepClock) -> None:
        self._batches, self._clock = iter(batches), clock
        self.ahead: list[Any] = []
        self.advance()

    def advance(self) -> None:
        self.ahead.clear()  # before the next batches are placed: the device holds those of one window
        self.ahead += islice(self._batches, self._clock.window_steps)


@dataclass(frozen=True)
class _Loss:
    """Of one step, from what Keras reports: running means over the steps of a window, each with the rows that it is of.

    Read with float(), which waits for the device.
    """

    before: tuple[int, Any]
    after: tuple[int, Any]

    def __float__(self) -> float:
        (rows, mean), (all_rows, next_mean) = self.before, self.after
        return (all_rows * float(next_mean) - rows * float(mean)) / (all_rows - rows)


def _losses(logs: Iterable[Mapping[str, Any]], batches: Iterable[Any]) -> Iterator[_Loss]:
    means = zip(accumulate(map(_rows, batches)), (one["loss"] for one in logs), strict=True)
    return starmap(_Loss, pairwise([(0, 0.0), *means]))


def _rows(batch: Any) -> int:
    """Of a batch as `fit` is given it, by its first input: what Keras weights a step's loss with."""
    inputs = batch[0]
    return int((inputs[0] if isinstance(inputs, tuple) else inputs).shape[0])


def _shown(backend: str, batch: Any) -> Any:
    """What `fit` goes by: the first batch without end. It sees what batches are like, and that there is another."""
    if backend != "tensorflow":
        return (batch for _ in count())
    import tensorflow as tf

    return tf.data.Dataset.from_tensors(batch).repeat()


def _window(
    framework: Adapter, network: Any, compiled: Any, feed: _Feed, clock: StepClock, _: Any
) -> Any:
    network.reset_metrics()  # the loss that fit reports is a running mean: make it this window's
    events = framework.step_events(len(feed.ahead)) if len(feed.ahead) > 1 else None
    logs = []
    framework.synchronise()
    clock.begin()
    for batch in feed.ahead:
        logs.append(compiled([batch]))
        if events:
            events.mark()
    framework.synchronise()
    _ended(network, logs, feed, clock)
    if events:
        clock.on_device(events.seconds())
    return logs[-1]


def _jax_window(
    _: Adapter, network: Any, compiled: Any, feed: _Feed, clock: StepClock, state: Any, __: Any
) -> Any:
    """The same where the state is handed on from step to step: `fit` gives it back to the network after the last."""
    import jax

    network.reset_metrics()
    state = (*state[:-1], [variable.value for variable in network.metrics_variables])
    logs = []
    jax.block_until_ready((state, feed.ahead))
    clock.begin()
    for batch in feed.ahead:
        told, state = compiled(state, iter([batch]))
        logs.append(told)
    jax.block_until_ready((logs, state))
    _ended(network, logs, feed, clock)
    return logs[-1], state


def _ended(network: Any, logs: Sequence[Mapping[str, Any]], feed: _Feed, clock: StepClock) -> None:
    clock.end(*_losses(logs, feed.ahead))
    feed.advance()
    network.stop_training = not feed.ahead


def _check_compiled(network: Any, optimizer: Any) -> None:
    if network.optimizer is not optimizer:
        raise ModelError("keras: a network trains with the optimizer made for it last")


def _loss() -> Any:
    import keras

    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )


def _own_loss(
    network: Any,
    x: Any,
    y: Any,
    y_pred: Any,
    sample_weight: Any,
    training: bool = True,
) -> Any:
    """In place of `compute_loss` of a network that has losses of its own."""
    from keras import ops

    losses = network.example_losses(x, y_pred, y)
    if sample_weight is None:
        return ops.mean(losses)
    weights = ops.cast(sample_weight, losses.dtype)
    return ops.sum(losses * weights) / ops.sum(weights)


def _mean_loss(network: Any, inputs: Any, targets: Any, weights: Any) -> Any:
    """Nothing dropped."""
    outputs = network(inputs, training=False)
    return network.compute_loss(
        x=inputs, y=targets, y_pred=outputs, sample_weight=weights, training=False
    )


def _tensorflow_gradients(network: Any, inputs: Any, targets: Array, weights: Array) -> list[Any]:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = _mean_loss(network, inputs, targets, weights)
    return list(map(tf.convert_to_tensor, tape.gradient(loss, network.trainable_variables)))


def _torch_gradients(network: Any, inputs: Any, targets: Array, weights: Array) -> list[Any]:
    import torch

    loss = _mean_loss(network, inputs, targets, weights)
    return list(
        torch.autograd.grad(loss, [variable.value for variable in network.trainable_variables])
    )


def _jax_gradients(network: Any, inputs: Any, targets: Array, weights: Array) -> list[Any]:
    import jax
    import keras

    variables = network.trainable_variables

    def loss(values: list[Any]) -> Any:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return _mean_loss(network, inputs, targets, weights)

    gradients: list[Any] = jax.grad(loss)([variable.value for variable in variables])
    return gradients


def _tensorflow_function(function: Callable[..., Any], network: Any) -> Callable[..., Any]:
    import tensorflow as tf

    compiled: Callable[..., Any] = tf.function(
        function, autograph=False, reduce_retracing=True, jit_compile=network.jit_compile
    )
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

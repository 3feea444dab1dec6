"""Keras' adapter: compile and fit, as its documentation says, on each of its backends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, count, islice, pairwise
from typing import Any, NamedTuple

from models.contract import Array, Batch, ErrorCode, ModelError, OptimizerConfig, StepClock, Weights
from models.frameworks.jax.device import COMPILED, JaxDevice
from models.frameworks.keras.shared import KerasFramework
from models.frameworks.pytorch.device import TorchDevice
from models.frameworks.tensorflow.device import TensorFlowDevice


class _Epoch:
    """An epoch in windows: replaces the train function that `fit` calls.

    The batches of the next window are always made before: none is made while the clock runs.
    """

    def __init__(
        self, framework: Adapter, network: Any, batches: Iterable[Any], clock: StepClock
    ) -> None:
        self._framework, self._network, self._clock = framework, network, clock
        self._train = network.train_function
        self._batches = iter(batches)
        self.window: list[Any] = []
        self._advance()

    def run_window(self, *_: Any) -> Any:
        clock, window = self._clock, self.window
        self._network.reset_metrics()  # the loss that fit reports is a running mean
        self._framework.synchronise()
        clock.begin()
        logs = [self._train([batch]) for batch in window]
        self._framework.synchronise()
        self._finish_window(logs)
        return logs[-1]

    def _finish_window(self, logs: Sequence[Mapping[str, Any]]) -> None:
        # Keras weights a step's loss by the rows of the first input
        flatten = self._framework._keras.tree.flatten
        rows = accumulate(int(flatten(batch[0])[0].shape[0]) for batch in self.window)
        means = [(0, 0.0), *zip(rows, (log["loss"] for log in logs), strict=True)]
        self._clock.end(*(_StepLoss(before, after) for before, after in pairwise(means)))
        self._advance()
        self._network.stop_training = not self.window

    def _advance(self) -> None:
        self.window.clear()  # the device holds the batches of one window
        self.window += islice(self._batches, self._clock.window_steps)


class _JaxEpoch(_Epoch):
    """The same with a state that each step hands on; `fit` returns it to the network."""

    def run_window(self, *arguments: Any) -> Any:
        import jax

        self._network.reset_metrics()
        state = (
            *arguments[0][:-1],
            [variable.value for variable in self._network.metrics_variables],
        )
        logs = []
        jax.block_until_ready((state, self.window))
        self._clock.begin()
        for batch in self.window:
            log, state = self._train(state, iter([batch]))
            logs.append(log)
        jax.block_until_ready((logs, state))
        self._finish_window(logs)
        return logs[-1], state


class Adapter(KerasFramework):
    """Keras, whose own defaults decide what is compiled (`jit_compile="auto"`)."""

    _epoch = _Epoch
    _differentiate: Any
    _compile: Any

    def __new__(cls, name: str, **_: Any) -> Adapter:
        return object.__new__(BACKENDS[name.partition("-")[2]])

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._applied: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._loss = self._keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        )

    def build(self, model: str, spec: Any) -> Any:
        network = super().build(model, spec)
        if hasattr(network, "example_losses"):
            network.compute_loss = partial(_own_loss, network)
        network.compile(loss=self._loss)
        return network

    def optimizer(self, network: Any, config: OptimizerConfig) -> Any:
        optimizer = super().optimizer(network, config)
        network.compile(optimizer=optimizer, loss=self._loss)
        return optimizer

    def jit_compile(self, network: Any) -> bool | None:
        return bool(network.jit_compile)

    def train_step(self, network: Any, optimizer: Any, batch: Batch) -> Any:
        _check_compiled(network, optimizer)
        placed = batch if batch.uniform_weights is not None else self.place(batch)
        return network.train_on_batch(*self._fitted(placed)[: 2 if placed.uniform_weights else 3])

    def train_epoch(
        self, network: Any, optimizer: Any, batches: Iterable[Batch], clock: StepClock
    ) -> None:
        """Call `fit`, whose compiled train function is called once a step, on a placed batch.

        On TensorFlow and JAX `fit` itself would take the batch from an iterator inside of that
        call. A window of several steps is one call of `fit`'s: it contains only the steps.
        """
        _check_compiled(network, optimizer)
        network.make_train_function()
        compiled = network.train_function
        # inputs, targets and, unless all of them are 1, weights
        placed = (
            self._fitted(at)[: 2 if at.uniform_weights else 3] for at in map(self.place, batches)
        )
        epoch = self._epoch(self, network, placed, clock)
        if not epoch.window:
            return
        # `fit` sees what batches are like, and that there is always another
        endless = self._repeat(epoch.window[0])
        network.train_function = epoch.run_window
        try:
            network.fit(endless, epochs=1, verbose=0, shuffle=False)
        finally:
            network.train_function = compiled

    def _repeat(self, batch: Any) -> Any:
        """Return data without an end, as `fit` of the backend takes them."""
        return (batch for _ in count())

    def _evaluated_loss(self, network: Any, batch: Batch) -> Any:
        inputs, targets, weights = self._fitted(batch)
        return network.test_on_batch(inputs, targets, sample_weight=weights)

    def gradients(self, network: Any, batch: Batch) -> Weights:
        gradients = self._differentiate(network, partial(_mean_loss, *self._fitted(batch)))
        return self._gradient_weights(network, gradients)

    def infer(self, network: Any, inputs: tuple[Array, ...]) -> Array:
        outputs: Array = network.predict_on_batch(self._network_inputs(inputs))
        return outputs.astype(self._dtype, copy=False)

    def apply(
        self, function: Callable[..., Any], network: Any, inputs: tuple[Array, ...], **options: int
    ) -> Array:
        key = (function, id(network), *options.items())
        if key not in self._applied:
            call = partial(function, network, **options)
            self._applied[key] = self._compile(call, network)
        outputs = self._applied[key](*map(self._array, inputs))
        return self._keras.ops.convert_to_numpy(outputs)

    def _fitted(self, batch: Batch) -> tuple[Any, Array, Array]:
        targets, weights = self._array(batch.targets), self._array(batch.weights)
        return self._network_inputs(batch.inputs), targets, weights


class _StepLoss(NamedTuple):
    """Loss of one step, from Keras' running means (rows, mean) before and after it."""

    before: tuple[int, Any]
    after: tuple[int, Any]

    def __float__(self) -> float:
        (rows, mean), (all_rows, next_mean) = self.before, self.after
        return (all_rows * float(next_mean) - rows * float(mean)) / (all_rows - rows)


def _check_compiled(network: Any, optimizer: Any) -> None:
    if network.optimizer is not optimizer:
        raise ModelError(
            ErrorCode.CONFLICT, "keras: a network trains with the optimizer made for it last"
        )


def _own_loss(
    network: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool = True
) -> Any:
    from keras import ops

    losses = network.example_losses(x, y_pred, y)
    if sample_weight is None:
        return ops.mean(losses)
    weights = ops.cast(sample_weight, losses.dtype)
    return ops.sum(losses * weights) / ops.sum(weights)


def _mean_loss(inputs: Any, targets: Any, weights: Any, network: Any) -> Any:
    outputs = network(inputs, training=False)
    return network.compute_loss(
        x=inputs, y=targets, y_pred=outputs, sample_weight=weights, training=False
    )


class _TensorFlowAdapter(TensorFlowDevice, Adapter):
    backend = pipeline = profiler = "tensorflow"

    def build(self, model: str, spec: Any) -> Any:
        network = super().build(model, spec)
        network.train_step = partial(self._trace, network.train_step)
        self._compiles_each_shape = network.jit_compile
        return network

    def _trace(self, step: Callable[..., Any], data: Any) -> Any:
        """Count the calls of a step's Python code: a tf.function makes one for each trace."""
        self._traced += 1
        return step(data)

    def _repeat(self, batch: Any) -> Any:
        return self._tf.data.Dataset.from_tensors(batch).repeat()

    def _differentiate(self, network: Any, loss: Callable[[Any], Any]) -> list[Any]:
        tf, variables = self._tf, network.trainable_variables
        with tf.GradientTape() as tape:
            value = loss(network)
        return list(map(tf.convert_to_tensor, tape.gradient(value, variables)))

    def _compile(self, function: Callable[..., Any], network: Any) -> Callable[..., Any]:
        options = {"reduce_retracing": True, "jit_compile": network.jit_compile}
        return self._tf.function(function, autograph=False, **options)


class _TorchAdapter(TorchDevice, Adapter):
    backend, pipeline, profiler = "torch", "pytorch", "pytorch"

    def jit_compile(self, network: Any) -> bool | None:
        return None

    def _differentiate(self, network: Any, loss: Callable[[Any], Any]) -> list[Any]:
        values = [variable.value for variable in network.trainable_variables]
        return list(self._torch.autograd.grad(loss(network), values))

    def _compile(self, function: Callable[..., Any], _: Any) -> Callable[..., Any]:
        """Return the function without gradients; nothing is compiled."""
        to_tensor = self._keras.ops.convert_to_tensor
        return self._torch.no_grad()(lambda *arrays: function(*map(to_tensor, arrays)))


class _JaxAdapter(JaxDevice, Adapter):
    backend, pipeline, profiler = "jax", "", "jax"
    _epoch = _JaxEpoch

    def compilations(self) -> int:
        return self._events[COMPILED]

    def compile_anew(self) -> None:
        self._jax.config.update("jax_enable_compilation_cache", False)

    def _differentiate(self, network: Any, loss: Callable[[Any], Any]) -> list[Any]:
        variables = network.trainable_variables
        gradient = self._jax.grad(self._stateless(partial(loss, network), variables))
        return list(gradient([variable.value for variable in variables]))

    def _compile(self, function: Callable[..., Any], network: Any) -> Callable[..., Any]:
        compiled = self._jax.jit(self._stateless(function, network.variables))
        return lambda *arrays: compiled([at.value for at in network.variables], *arrays)

    def _stateless(self, function: Callable[..., Any], variables: list[Any]) -> Callable[..., Any]:
        """Return a function of the variables' values and the other arguments."""

        def call(values: list[Any], *arrays: Any) -> Any:
            state = list(zip(variables, values, strict=True))
            with self._keras.StatelessScope(state_mapping=state):
                return function(*arrays)

        return call


BACKENDS: dict[str, Any] = {
    "tensorflow": _TensorFlowAdapter,
    "torch": _TorchAdapter,
    "jax": _JaxAdapter,
}

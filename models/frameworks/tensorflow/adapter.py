"""TensorFlow behind the contract: Keras layers, our own GradientTape step in a tf.function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from models.contract import PROFILED, Array, Batch, Weights
from models.frameworks.keras.shared import KerasFramework, tensor_specs


class Adapter(KerasFramework):
    """One tf.function a use, traced once for all shapes; eager runs the same Python directly, xla compiles it per shape."""

    def __init__(
        self, name: str, *, device: str, threads: int, precision: str, seed: int, conv_algorithm: str = PROFILED
    ) -> None:
        super().__init__(
            name, "tensorflow", device=device, threads=threads, precision=precision, seed=seed, conv_algorithm=conv_algorithm
        )
        self._functions: dict[tuple[Any, ...], Any] = {}
        self._compiles_each_shape = name == "tensorflow+xla"

    def train_step(self, network: Any, optimizer: Any, batch: Batch) -> Any:
        return self._call(_update, (network, optimizer), self._arrays(batch))

    def evaluate(self, network: Any, batch: Batch) -> tuple[float, float]:
        loss = self._call(_mean_loss, (network, False), self._arrays(batch))
        total = float(batch.weights.sum())
        return float(loss) * total, total

    def gradients(self, network: Any, batch: Batch) -> Weights:
        return self._gradient_weights(network, self._call(_dense_gradients, (network,), self._arrays(batch)))

    def infer(self, network: Any, inputs: tuple[Array, ...]) -> Array:
        outputs: Array = self._call(_outputs, (network,), (tuple(map(self._array, inputs)),)).numpy()
        return outputs.astype(self._dtype, copy=False)

    def apply(self, function: Callable[..., Any], network: Any, inputs: tuple[Array, ...], **options: int) -> Array:
        outputs: Array = self._call(function, (network,), tuple(map(self._array, inputs)), **options).numpy()
        return outputs

    def compilations(self) -> int:
        traced = (int(one.experimental_get_tracing_count()) for one in self._functions.values())
        return super().compilations() + sum(traced)

    def _call(self, function: Callable[..., Any], fixed: tuple[Any, ...], arrays: tuple[Any, ...], **options: int) -> Any:
        """`function(*fixed, *arrays, **options)`, as the variant runs it. Arrays are fed to the graph, all else keys it."""
        import tensorflow as tf

        if self.name == "tensorflow+eager":
            return function(*fixed, *tf.nest.map_structure(tf.convert_to_tensor, arrays), **options)
        key = (function, *map(_key, fixed), *options.items())
        if key not in self._functions:
            self._functions[key] = tf.function(
                partial(function, *fixed, **options),
                input_signature=tensor_specs(arrays),
                jit_compile=self.name == "tensorflow+xla",
            )
        return self._functions[key](*arrays)


def _key(fixed: Any) -> Any:
    return fixed if isinstance(fixed, bool) else id(fixed)


def _outputs(network: Any, inputs: tuple[Any, ...], training: bool = False) -> Any:
    return network(inputs if len(inputs) > 1 else inputs[0], training=training)


def _mean_loss(network: Any, training: bool, inputs: tuple[Any, ...], targets: Any, weights: Any) -> Any:
    import tensorflow as tf

    logits = tf.cast(_outputs(network, inputs, training), weights.dtype)
    if hasattr(network, "example_losses"):
        losses = network.example_losses(inputs, logits, targets)
    else:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    return tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)


def _update(network: Any, optimizer: Any, inputs: tuple[Any, ...], targets: Any, weights: Any) -> Any:
    import tensorflow as tf

    variables = network.trainable_variables
    with tf.GradientTape() as tape:
        loss = _mean_loss(network, True, inputs, targets, weights)
    optimizer.apply(tape.gradient(loss, variables), variables)
    return loss


def _dense_gradients(network: Any, inputs: tuple[Any, ...], targets: Any, weights: Any) -> list[Any]:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = _mean_loss(network, False, inputs, targets, weights)
    return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, network.trainable_variables)]

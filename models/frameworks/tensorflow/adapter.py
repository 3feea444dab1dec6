"""TensorFlow's adapter: Keras layers, our GradientTape step in a tf.function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from models.contract import Array, Batch, Mark, Profile, Weights
from models.frameworks.keras.shared import KerasFramework
from models.frameworks.tensorflow.device import TensorFlowDevice

SEQUENCES = 3  # dimensions: (n, length, features)


class Adapter(TensorFlowDevice, KerasFramework):
    """TensorFlow: a tf.function for each use; eager runs the same Python, xla compiles each shape.

    Autograph is off: nothing here needs it, and each function that it converts leaves files in the
    temporary folder. A sequence is traced once for all lengths. Images are traced for the first
    batch size, whose static shape makes the quicker graph, and once more for all other sizes.
    """

    backend = pipeline = profiler = "tensorflow"

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._functions: dict[tuple[Any, ...], Any] = {}
        self._compiles_each_shape = name == "tensorflow+xla"

    def build(self, model: str, spec: Any) -> Any:
        """Build the network; under XLA its recurrent layers are Keras' own loops.

        Keras takes cuDNN's operator as soon as it sees a GPU, and XLA cannot compile that.
        """
        network = super().build(model, spec)
        if self._compiles_each_shape:
            recurrent = self._keras.layers.LSTM, self._keras.layers.GRU
            for layer in network._flatten_layers():
                if isinstance(layer, recurrent):
                    layer.use_cudnn = False
        return network

    def jit_compile(self, network: Any) -> bool | None:
        return self._compiles_each_shape

    def versions(self) -> dict[str, str]:
        use_cudnn = "False" if self._compiles_each_shape else "auto"
        return {**super().versions(), "keras_use_cudnn": use_cudnn}

    def profile(self, folder: Path, work: Callable[[Mark], object]) -> Profile:
        from models.frameworks.tensorflow.profiler import profiled

        return profiled(folder, self.device, work, forget=self._functions.clear)

    def train_step(self, network: Any, optimizer: Any, batch: Batch) -> Any:
        if batch.uniform_weights is None:
            batch = self.place(batch)
        arrays = (*batch.inputs, batch.targets)
        if not batch.uniform_weights:
            arrays = (*arrays, batch.weights)
        return self._call(_update, (network, optimizer, batch.uniform_weights), arrays)

    def _evaluated_loss(self, network: Any, batch: Batch) -> Any:
        return self._call(_mean_loss, (network, False, False), self._flat(batch))

    def gradients(self, network: Any, batch: Batch) -> Weights:
        gradients = self._call(_dense_gradients, (network,), self._flat(batch))
        return self._gradient_weights(network, gradients)

    def infer(self, network: Any, inputs: tuple[Array, ...]) -> Array:
        # few calls of Python: they show next to the time of a small network
        if isinstance(inputs[0], np.ndarray):
            inputs = tuple(map(self._array, inputs))
        outputs: Array = self._call(_outputs, (network, False), inputs).numpy()
        return outputs if outputs.dtype is self._dtype else outputs.astype(self._dtype, copy=False)

    def apply(
        self, function: Callable[..., Any], network: Any, inputs: tuple[Array, ...], **options: int
    ) -> Array:
        arrays = tuple(map(self._array, inputs))
        return self._call(function, (network,), arrays, **options).numpy()

    def compilations(self) -> int:
        functions = () if self.name == "tensorflow+eager" else self._functions.values()
        traced = sum(int(function.experimental_get_tracing_count()) for function in functions)
        return super().compilations() + traced

    def disable_graph_optimizer(self, name: str) -> None:
        import tensorflow as tf

        disables = {"pruning": "disable_model_pruning", "all": "disable_meta_optimizer"}
        option = {disables[name]: True} if name in disables else {name: False}
        tf.config.optimizer.set_experimental_options(option)

    def _flat(self, batch: Batch) -> tuple[Any, ...]:
        return tuple(map(self._array, (*batch.inputs, batch.targets, batch.weights)))

    def _call(
        self,
        function: Callable[..., Any],
        fixed: tuple[Any, ...],
        arrays: tuple[Any, ...],
        **options: int,
    ) -> Any:
        """Return `function(*fixed, *arrays, **options)` as the variant runs it.

        Arrays are fed to the graph; everything else is part of its key.
        """
        key = (function, *map(id, fixed), *options.items())
        called = self._functions.get(key)
        if called is None:
            called = self._functions[key] = self._compile(function, fixed, arrays, options)
        return called(*arrays)

    def _compile(
        self,
        function: Callable[..., Any],
        fixed: tuple[Any, ...],
        like: tuple[Any, ...],
        options: Mapping[str, int],
    ) -> Callable[..., Any]:
        import tensorflow as tf

        # a closure: a tf.function looks at the arguments of a partial in every call
        def closure(*arrays: Any) -> Any:
            return function(*fixed, *arrays, **options)

        if self.name == "tensorflow+eager":
            return lambda *arrays: closure(*map(tf.convert_to_tensor, arrays))
        specs = [_spec(array) for array in like]
        lengths_vary = any(None in spec.shape.as_list()[1:] for spec in specs)
        return tf.function(
            closure,
            autograph=False,
            input_signature=specs if lengths_vary else None,
            reduce_retracing=not lengths_vary,
            jit_compile=self.name == "tensorflow+xla",
        )


def _spec(array: Array) -> Any:
    """Return TensorFlow's signature of an array, the same for all batches.

    The leading dimension varies. In floating arrays the length of a sequence varies too, (n,
    length, features), and images keep a static size. Integer arrays vary in each dimension.
    """
    import tensorflow as tf

    dtype = tf.as_dtype(array.dtype)
    sizes = tuple(array.shape[1:]) if dtype.is_floating else (None,) * (len(array.shape) - 1)
    if len(array.shape) == SEQUENCES:
        sizes = (None, sizes[1])
    return tf.TensorSpec((None, *sizes), dtype)


def _outputs(network: Any, training: bool, *inputs: Any) -> Any:
    return network(inputs if len(inputs) > 1 else inputs[0], training=training)


def _mean_loss(network: Any, training: bool, uniform_weights: bool, *arrays: Any) -> Any:
    """Return the loss. arrays: inputs, targets and, unless all of them are 1, weights."""
    import keras
    import tensorflow as tf

    *inputs, targets = arrays if uniform_weights else arrays[:-1]
    logits = tf.cast(_outputs(network, training, *inputs), keras.config.floatx())
    if hasattr(network, "example_losses"):
        losses = network.example_losses(tuple(inputs), logits, targets)
    else:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    if uniform_weights:
        return tf.reduce_mean(losses)
    weights = arrays[-1]
    return tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)


def _update(network: Any, optimizer: Any, uniform_weights: bool, *arrays: Any) -> Any:
    import tensorflow as tf

    variables = network.trainable_variables
    with tf.GradientTape() as tape:
        loss = _mean_loss(network, True, uniform_weights, *arrays)
    optimizer.apply(tape.gradient(loss, variables), variables)
    return loss


def _dense_gradients(network: Any, *arrays: Any) -> list[Any]:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = _mean_loss(network, False, False, *arrays)
    return list(map(tf.convert_to_tensor, tape.gradient(loss, network.trainable_variables)))

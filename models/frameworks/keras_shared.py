"""What the adapters over Keras layers share: building, weights, optimisers and the search for captions."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import models
from models.contract import Array, Batch, Framework, ModelError, Profile, Rule, Weights
from models.frameworks.devices import Device, JaxDevice, TensorFlowDevice, TorchDevice

DEVICES: dict[str, Callable[[str, int, str], Device]] = {"tensorflow": TensorFlowDevice, "torch": TorchDevice, "jax": JaxDevice}


class KerasFramework(Framework):
    """Keras layers on one backend. Keras is imported here, once the backend and its device are chosen."""

    architecture = "keras"

    def __init__(self, name: str, backend: str, *, device: str, threads: int, precision: str, seed: int) -> None:
        self.name = name
        self.backend = backend
        if precision == "float64":
            os.environ["JAX_ENABLE_X64"] = "1"
        self._device: Device = DEVICES[backend](device, threads, precision)
        self.device = self._device.name
        self._dtype = np.dtype("float64" if precision == "float64" else "float32")
        os.environ["KERAS_BACKEND"] = backend
        if backend == "torch":
            os.environ["KERAS_TORCH_DEVICE"] = self.device
        import keras

        if precision == "float64":
            from keras.src.backend.common import dtypes

            # Off TensorFlow, Keras quietly computes 64-bit products in 32 bits whatever the policy; parity would drown in that.
            dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"
        keras.config.set_image_data_format("channels_last")
        keras.config.set_floatx(self._dtype.name)
        # set_floatx alone leaves layers as they were
        keras.config.set_dtype_policy("mixed_bfloat16" if precision == "bfloat16" else self._dtype.name)
        random.seed(seed)  # where Keras draws the seeds of its dropout layers; its own set_random_seed imports TensorFlow
        self._device.seed(seed)

    def versions(self) -> dict[str, str]:
        import keras

        return {"keras": keras.__version__, "keras_backend": keras.config.backend(), **self._device.versions()}

    def build(self, model: str, spec: Any) -> Any:
        return models.load(model, self.architecture).build(spec)

    def parameter_counts(self, network: Any) -> tuple[int, int]:
        trainable = sum(int(np.prod(variable.shape)) for variable in network.trainable_variables)
        return trainable, sum(int(np.prod(entry.shape())) for entry in _entries(network).values()) - trainable

    def weights(self, network: Any) -> Weights:
        from models.transfer import from_keras

        return from_keras(_entries(network))

    def load_weights(self, network: Any, weights: Mapping[str, Array]) -> None:
        from models.transfer import to_keras

        to_keras(_entries(network), weights)

    def optimiser(self, network: Any, rule: Rule) -> Any:
        import keras

        from models.frameworks.keras_optimisers import TorchAdam, TorchSGD

        if rule.name == "sgd":
            optimiser = TorchSGD(rule.learning_rate, rule.momentum, rule.weight_decay)
        else:
            optimiser = {"adam": TorchAdam, "adam-stock": keras.optimizers.Adam}[rule.name](learning_rate=rule.learning_rate)
        optimiser.build(network.trainable_variables)
        return optimiser

    def set_learning_rate(self, optimiser: Any, learning_rate: float) -> None:
        optimiser.learning_rate = learning_rate

    def optimiser_state(self, optimiser: Any) -> Weights:
        from keras import ops

        return {name: np.array(ops.convert_to_numpy(variable)) for name, variable in _slots(optimiser).items()}

    def load_optimiser_state(self, optimiser: Any, state: Mapping[str, Array]) -> None:
        slots = _slots(optimiser)
        for name in state:
            if name not in slots:
                raise ModelError(f"optimiser state: {name!r} belongs to no weight of the network")
        for name, variable in slots.items():
            if name not in state:
                raise ModelError(f"optimiser state: {name!r} is missing")
            variable.assign(state[name])

    def profile(self, folder: Path, work: Callable[[], object]) -> Profile:
        if self.backend not in ("tensorflow", "torch"):
            return super().profile(folder, work)
        name = {"tensorflow": "tensorflow", "torch": "pytorch"}[self.backend]
        found: Profile = import_module(f"models.profiles.{name}").profiled(folder, self.device, work)
        return found

    def synchronise(self) -> None:
        self._device.synchronise()

    def peak_device_bytes(self) -> int | None:
        return self._device.peak_bytes()

    def _array(self, array: Array) -> Array:
        if not isinstance(array, np.ndarray):  # placed before
            return array
        return array.astype(self._dtype, copy=False) if np.issubdtype(array.dtype, np.floating) else array

    def _arrays(self, batch: Batch) -> tuple[tuple[Array, ...], Array, Array]:
        return tuple(map(self._array, batch.inputs)), batch.targets, self._array(batch.weights)

    def _gradient_weights(self, network: Any, gradients: Sequence[Any]) -> Weights:
        """Gradients in the order of the trainable variables -> by torch names and layouts."""
        from models.transfer import from_keras

        by_variable = dict(zip(map(id, network.trainable_variables), gradients, strict=True))
        trainable = {name: entry for name, entry in _entries(network).items() if id(entry.variable) in by_variable}
        return from_keras(trainable, lambda variable: by_variable[id(variable)])


def tensor_specs(arrays: Any) -> Any:
    """TensorFlow's signature of nested arrays, one for all batches.

    Floating arrays vary in their leading dimension only, so that images keep a static size; integer ones in every dimension.
    """
    import tensorflow as tf

    def one(array: Array) -> Any:
        sizes = array.shape[1:] if tf.as_dtype(array.dtype).is_floating else (None,) * (array.ndim - 1)
        return tf.TensorSpec((None, *sizes), array.dtype)

    return tf.nest.map_structure(one, arrays)


def _entries(network: Any) -> Any:
    from models.transfer import entries

    return entries(network)


def _slots(optimiser: Any) -> dict[str, Any]:
    """Path -> variable of everything the optimiser remembers; its learning rate is a setting, not a memory."""
    return {variable.path: variable for variable in optimiser.variables if variable.name != "learning_rate"}


def search(network: Any, features: Any, *, start: int, end: int, words: int, beams: int) -> Any:
    """(n, words) tokens by greedy or beam search: one LSTM step a word, in a loop of the backend that a compiler sees once."""
    if beams == 1:
        return _greedy(network, features, start=start, end=end, words=words)
    return _beam(network, features, start=start, end=end, words=words, beams=beams)


def _greedy(network: Any, features: Any, *, start: int, end: int, words: int) -> Any:
    """(n, words) tokens, each the likeliest after those before it; a finished caption goes on with `end`."""
    from keras import ops

    def body(word: Any, carried: Any) -> Any:
        captions, tokens, finished, state = carried
        logits, state = network.advance(state, tokens)
        tokens = ops.where(finished, end, ops.cast(ops.argmax(logits, axis=1), "int32"))
        captions = ops.where(_column(words, word), ops.expand_dims(tokens, 1), captions)
        return captions, tokens, ops.equal(tokens, end), state

    n = ops.shape(features)[0]
    captions, tokens = ops.full((n, words), end, dtype="int32"), ops.full((n,), start, dtype="int32")
    return ops.fori_loop(0, words, body, (captions, tokens, ops.zeros((n,), dtype="bool"), network.begin(features)))[0]


def _beam(network: Any, features: Any, *, start: int, end: int, words: int, beams: int) -> Any:
    """(n, words) tokens of each image's best beam, over rows n·beams + beam; a finished beam goes on with `end` for free."""
    from keras import ops

    vocabulary = network.spec.vocabulary
    n = ops.shape(features)[0]
    first_row = ops.expand_dims(ops.arange(n, dtype="int32") * beams, 1)
    zero, never = ops.cast(0, features.dtype), ops.cast(-np.inf, features.dtype)
    only_end = ops.where(ops.expand_dims(ops.equal(ops.arange(vocabulary), end), 0), zero, never)

    def body(word: Any, carried: Any) -> Any:
        captions, tokens, finished, scores, state = carried
        logits, state = network.advance(state, tokens)
        steps = ops.where(ops.expand_dims(finished, 1), only_end, ops.log_softmax(logits, axis=1))
        totals = ops.expand_dims(scores, 2) + ops.reshape(steps, (-1, beams, vocabulary))
        scores, best = ops.top_k(ops.reshape(totals, (-1, beams * vocabulary)), beams)
        best = ops.cast(best, "int32")
        parents = ops.reshape(first_row + best // vocabulary, (-1,))
        tokens = ops.reshape(best % vocabulary, (-1,))
        state = tuple(ops.take(tensor, parents, axis=0) for tensor in state)
        captions = ops.where(_column(words, word), ops.expand_dims(tokens, 1), ops.take(captions, parents, axis=0))
        return captions, tokens, ops.equal(tokens, end), scores, state

    rows = n * beams
    first_beam = ops.equal(ops.arange(beams), 0)  # all beams begin alike: let only the first bear children
    carried = (
        ops.full((rows, words), end, dtype="int32"),
        ops.full((rows,), start, dtype="int32"),
        ops.zeros((rows,), dtype="bool"),
        ops.broadcast_to(ops.where(first_beam, zero, never), (n, beams)),
        tuple(ops.repeat(tensor, beams, axis=0) for tensor in network.begin(features)),
    )
    captions = ops.fori_loop(0, words, body, carried)[0]
    return ops.reshape(captions, (-1, beams, words))[:, 0]


def _column(words: int, word: Any) -> Any:
    """(1, words) mask of one column: a write by `where`, as every backend compiles it."""
    from keras import ops

    return ops.expand_dims(ops.equal(ops.arange(words, dtype="int32"), word), 0)

"""Base of the adapters over Keras layers: building, weights and optimizers."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import models
from models.contract import (
    PROFILED,
    Array,
    Batch,
    OptimizerConfig,
    Weights,
    check_weights,
)
from models.frameworks.devices import FrameworkOnDevice


class KerasFramework(FrameworkOnDevice):
    """Keras layers on one backend. Keras is imported once the backend and its device are chosen."""

    architecture = "keras"
    backend: str
    _open_device: Any
    _device_versions: Any

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
        super().__init__(name)
        self._traced = 0
        self._compiles_each_shape = False  # by TensorFlow's XLA, which reports no compilations
        self._shapes: set[tuple[tuple[int, ...], ...]] = set()
        if precision == "float64":
            os.environ["JAX_ENABLE_X64"] = "1"
        self._open_device(device, threads, precision, conv_algorithm, seed)
        self._dtype = np.dtype("float64" if precision == "float64" else "float32")
        os.environ["KERAS_BACKEND"] = self.backend
        os.environ["KERAS_TORCH_DEVICE"] = self.device
        import keras

        from models import transfer
        from models.frameworks.keras import introspection, optimizers

        self._keras, self._transfer = keras, transfer
        self._introspection, self._optimizers = introspection, optimizers
        if precision == "float64":
            from keras.src.backend.common import dtypes

            # Off TensorFlow, Keras computes 64-bit products in 32 bits under any policy.
            dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"
        keras.config.set_image_data_format("channels_last")
        keras.config.set_floatx(self._dtype.name)
        # set_floatx alone leaves layers as they were
        policy = "mixed_bfloat16" if precision == "bfloat16" else self._dtype.name
        keras.config.set_dtype_policy(policy)
        # Keras draws the seeds of its dropout layers there; its set_random_seed imports TensorFlow
        random.seed(seed)

    def versions(self) -> dict[str, str]:
        config = self._keras.config
        keras = {"keras": self._keras.__version__, "keras_backend": config.backend()}
        return {**keras, **self._device_versions()}

    def build(self, model: str, spec: Any) -> Any:
        return models.load(model, self.architecture).build(spec)

    def parameter_counts(self, network: Any) -> tuple[int, int]:
        trainable = sum(prod(variable.shape) for variable in network.trainable_variables)
        entries = self._transfer.entries(network).values()
        return trainable, sum(prod(entry.shape()) for entry in entries) - trainable

    def weights(self, network: Any) -> Weights:
        return self._transfer.from_keras(self._transfer.entries(network))

    def load_weights(self, network: Any, weights: Mapping[str, Array]) -> None:
        self._transfer.to_keras(self._transfer.entries(network), weights)

    def optimizer(self, network: Any, config: OptimizerConfig) -> Any:
        if config.name == "sgd":
            optimizer = self._optimizers.TorchSGD(
                config.learning_rate, config.momentum, config.weight_decay
            )
        elif config.name == "adam":
            optimizer = self._optimizers.TorchAdam(config.learning_rate)
        else:
            optimizer = self._keras.optimizers.Adam(config.learning_rate)
        optimizer.build(network.trainable_variables)
        return optimizer

    def optimizer_implementation(self, optimizer: Any) -> str:
        if isinstance(optimizer, self._optimizers.OnceAStep):
            by_xla = self.backend == "tensorflow" and self._compiles_each_shape
            return optimizer.implementations[self.backend] + ", compiled by XLA" * by_xla
        # On PyTorch Keras replaces each optimizer by a class that calls foreach kernels.
        is_foreach = type(optimizer).__module__.startswith("keras.src.backend.torch")
        return f"keras.optimizers.{type(optimizer).__name__}" + ": foreach" * is_foreach

    def set_learning_rate(self, optimizer: Any, learning_rate: float) -> None:
        optimizer.learning_rate = learning_rate

    def optimizer_state(self, optimizer: Any) -> Weights:
        to_numpy = self._keras.ops.convert_to_numpy
        return {name: np.array(to_numpy(slot)) for name, slot in _slots(optimizer).items()}

    def load_optimizer_state(self, optimizer: Any, state: Mapping[str, Array]) -> None:
        slots = _slots(optimizer)
        check_weights(state, {name: tuple(slot.shape) for name, slot in slots.items()})
        for name, slot in slots.items():
            slot.assign(state[name])

    def place(self, batch: Batch) -> Batch:
        targets, weights = self.place_inputs((batch.targets, batch.weights))
        placed = Batch(self.place_inputs(batch.inputs), targets, weights, self._is_uniform(batch))
        if self._compiles_each_shape:
            self._shapes.add(tuple(array.shape for array in (*batch.inputs, batch.targets)))
        return placed

    def place_inputs(self, inputs: tuple[Array, ...]) -> tuple[Any, ...]:
        to_tensor = self._keras.ops.convert_to_tensor
        return tuple(to_tensor(self._array(array)) for array in inputs)

    def save_native(self, network: Any, inputs: tuple[Array, ...], folder: Path) -> dict[str, str]:
        """Write `model.keras`: a graph of Keras' own layers and operations, not compiled."""
        keras = self._keras
        symbolic = [
            keras.Input(batch_shape=(None, *array.shape[1:]), dtype=str(array.dtype))
            for array in map(self._array, inputs)
        ]
        placed = symbolic if len(symbolic) > 1 else symbolic[0]
        if _is_of_keras(network):
            outputs = keras.models.clone_model(
                keras.Model(network.input, network.output),  # without our optimizer
                placed,
                clone_function=lambda layer: layer,  # the trained layers themselves
                call_function=lambda layer, *args, **options: (
                    layer if _is_of_keras(layer) else layer.call
                )(*args, **options),
            ).outputs
        else:
            outputs = network.call(placed)
        keras.Model(placed, outputs, name=network.name).save(folder / "model.keras")
        versions = {"keras_version": keras.__version__, "keras_backend": self.backend}
        return {"flavor": "keras", "data": "data", **versions}

    def compilations(self) -> int:
        return self._traced + len(self._shapes)

    def _array(self, array: Array) -> Array:
        """Return a floating NumPy array in the type of weights, anything else as it is."""
        if isinstance(array, np.ndarray) and np.issubdtype(array.dtype, np.floating):
            return array.astype(self._dtype, copy=False)
        return array

    def _network_inputs(self, inputs: tuple[Array, ...]) -> Any:
        """Return inputs as Keras networks take them: a single one without a tuple."""
        arrays = tuple(map(self._array, inputs))
        return arrays if len(arrays) > 1 else arrays[0]

    def _gradient_weights(self, network: Any, gradients: Sequence[Any]) -> Weights:
        by_variable = dict(zip(map(id, network.trainable_variables), gradients, strict=True))
        entries = self._transfer.entries(network).items()
        trainable = {name: at for name, at in entries if id(at.variables[0]) in by_variable}
        return self._transfer.from_keras(trainable, lambda variable: by_variable[id(variable)])


def _is_of_keras(layer: Any) -> bool:
    """Return whether Keras can load a layer without our code."""
    return type(layer).__module__.partition(".")[0] == "keras"


def _slots(optimizer: Any) -> dict[str, Any]:
    """Return the optimizer's variables by path, without the learning rate, which is a setting."""
    variables = (at for at in optimizer.variables if at.name != "learning_rate")
    return {variable.path: variable for variable in variables}

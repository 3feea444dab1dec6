"""What the adapters over Keras layers share: building, weights and optimizers."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import models
from models.contract import (
    PROFILED,
    Array,
    Batch,
    Dropping,
    EvenSoFar,
    ImageFiles,
    Mark,
    ModelError,
    OptimizerConfig,
    Profile,
    Weights,
)
from models.frameworks.devices import Device, FrameworkOnDevice
from models.frameworks.keras.jax import JaxDevice
from models.frameworks.pytorch.device import TorchDevice
from models.frameworks.tensorflow.device import TensorFlowDevice

DEVICES: dict[str, Callable[[str, int, str, str], Device]] = {
    "tensorflow": TensorFlowDevice,
    "torch": TorchDevice,
    "jax": JaxDevice,
}
# Backend -> the framework here whose input pipeline and profiler are also Keras'.
OWNERS = {"tensorflow": "tensorflow", "torch": "pytorch"}
PROFILERS = {**OWNERS, "jax": "keras"}


class KerasFramework(FrameworkOnDevice):
    """Keras layers on one backend. Keras is imported here, once the backend and its device are chosen."""

    architecture = "keras"

    def __init__(
        self,
        name: str,
        backend: str,
        *,
        device: str,
        threads: int,
        precision: str,
        seed: int,
        conv_algorithm: str = PROFILED,
    ) -> None:
        self.name = name
        self.backend = backend
        self._traced = 0
        self._even = EvenSoFar()
        self._readers: dict[tuple[Any, ...], Any] = {}
        self._compiles_each_shape = False  # by TensorFlow's XLA, which tells nobody
        self._shapes: set[tuple[tuple[int, ...], ...]] = set()
        if precision == "float64":
            os.environ["JAX_ENABLE_X64"] = "1"
        self._device: Device = DEVICES[backend](device, threads, precision, conv_algorithm)
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
        keras.config.set_dtype_policy(
            "mixed_bfloat16" if precision == "bfloat16" else self._dtype.name
        )
        random.seed(
            seed
        )  # where Keras draws the seeds of its dropout layers; its own set_random_seed imports TensorFlow
        self._device.seed(seed)

    def versions(self) -> dict[str, str]:
        import keras

        return {
            "keras": keras.__version__,
            "keras_backend": keras.config.backend(),
            **self._device.versions(),
        }

    def build(self, model: str, spec: Any) -> Any:
        return models.load(model, self.architecture).build(spec)

    def parameter_counts(self, network: Any) -> tuple[int, int]:
        trainable = sum(int(np.prod(variable.shape)) for variable in network.trainable_variables)
        return trainable, sum(
            int(np.prod(entry.shape())) for entry in _entries(network).values()
        ) - trainable

    def weights(self, network: Any) -> Weights:
        from models.transfer import from_keras

        return from_keras(_entries(network))

    def load_weights(self, network: Any, weights: Mapping[str, Array]) -> None:
        from models.transfer import to_keras

        to_keras(_entries(network), weights)

    def optimizer(self, network: Any, config: OptimizerConfig) -> Any:
        import keras

        from models.frameworks.keras.optimizers import TorchAdam, TorchSGD

        if config.name == "sgd":
            optimizer = TorchSGD(config.learning_rate, config.momentum, config.weight_decay)
        else:
            optimizer = {"adam": TorchAdam, "adam-stock": keras.optimizers.Adam}[config.name](
                learning_rate=config.learning_rate
            )
        optimizer.build(network.trainable_variables)
        return optimizer

    def optimizer_implementation(self, optimizer: Any) -> str:
        from models.frameworks.keras.optimizers import OnceAStep

        if isinstance(optimizer, OnceAStep):
            by_xla = self.backend == "tensorflow" and self._compiles_each_shape
            return optimizer.implementations[self.backend] + ", compiled by XLA" * by_xla
        # On PyTorch Keras puts a class of its own in the place of each optimizer, whose code calls foreach kernels.
        kernels = (
            ": foreach" if type(optimizer).__module__.startswith("keras.src.backend.torch") else ""
        )
        return f"keras.optimizers.{type(optimizer).__name__}{kernels}"

    def set_learning_rate(self, optimizer: Any, learning_rate: float) -> None:
        optimizer.learning_rate = learning_rate

    def optimizer_state(self, optimizer: Any) -> Weights:
        from keras import ops

        return {
            name: np.array(ops.convert_to_numpy(variable))
            for name, variable in _slots(optimizer).items()
        }

    def load_optimizer_state(self, optimizer: Any, state: Mapping[str, Array]) -> None:
        slots = _slots(optimizer)
        for name in state:
            if name not in slots:
                raise ModelError(f"optimizer state: {name!r} belongs to no weight of the network")
        for name, variable in slots.items():
            if name not in state:
                raise ModelError(f"optimizer state: {name!r} is missing")
            variable.assign(state[name])

    def dropping(self, network: Any, inputs: tuple[Array, ...], draws: int) -> dict[str, Dropping]:
        from models.frameworks.keras import seen

        arrays = tuple(map(self._array, inputs))
        return seen.dropping(network, arrays if len(arrays) > 1 else arrays[0], draws)

    def layer_values(self, network: Any, inputs: tuple[Array, ...]) -> dict[str, Array]:
        from models.frameworks.keras import seen

        arrays = tuple(map(self._array, inputs))
        return seen.layer_values(network, arrays if len(arrays) > 1 else arrays[0])

    def drop_nothing(self, network: Any) -> None:
        from models.frameworks.keras import seen

        seen.drop_nothing(seen.droppers(network).values())

    def profile(self, folder: Path, work: Callable[[Mark], object]) -> Profile:
        module = import_module(f"{models.__name__}.frameworks.{PROFILERS[self.backend]}.profiler")
        profile: Profile = module.profiled(folder, self.device, work)
        return profile

    def place(self, batch: Batch) -> Batch:
        targets, weights = self.place_inputs((batch.targets, batch.weights))
        placed = Batch(self.place_inputs(batch.inputs), targets, weights, self._even(batch))
        if self._compiles_each_shape:
            self._shapes.add(tuple(array.shape for array in (*batch.inputs, batch.targets)))
        return placed

    def place_inputs(self, inputs: tuple[Array, ...]) -> tuple[Any, ...]:
        from keras import ops

        return tuple(ops.convert_to_tensor(self._array(array)) for array in inputs)

    def compilations(self) -> int:
        return self._device.compilations() + self._traced + len(self._shapes)

    def compile_anew(self) -> None:
        if self.backend == "jax":
            import jax

            jax.config.update("jax_enable_compilation_cache", False)

    def _reader(self, files: ImageFiles, workers: int) -> Any:
        """The input pipeline of the backend, whose images lie in memory as Keras keeps them: channels last."""
        if self.backend not in OWNERS:
            raise ModelError(f"{self.name} has no input pipeline of its own here")
        module = import_module(f"{models.__name__}.frameworks.{OWNERS[self.backend]}.pipeline")
        return module.Reader(files, workers, self.device, channels_last=True)

    def _array(self, array: Array) -> Array:
        if not isinstance(array, np.ndarray):  # placed before
            return array
        return (
            array.astype(self._dtype, copy=False)
            if np.issubdtype(array.dtype, np.floating)
            else array
        )

    def _arrays(self, batch: Batch) -> tuple[tuple[Array, ...], Array, Array]:
        return (
            tuple(map(self._array, batch.inputs)),
            self._array(batch.targets),
            self._array(batch.weights),
        )

    def _gradient_weights(self, network: Any, gradients: Sequence[Any]) -> Weights:
        """Gradients in the order of the trainable variables -> by torch names and layouts."""
        from models.transfer import from_keras

        by_variable = dict(zip(map(id, network.trainable_variables), gradients, strict=True))
        found = _entries(network).items()
        trainable = {name: one for name, one in found if id(one.variables[0]) in by_variable}
        return from_keras(trainable, lambda variable: by_variable[id(variable)])


def _entries(network: Any) -> Any:
    from models.transfer import entries

    return entries(network)


def _slots(optimizer: Any) -> dict[str, Any]:
    """Path -> variable of everything the optimizer remembers; its learning rate is a setting, not a memory."""
    return {
        variable.path: variable
        for variable in optimizer.variables
        if variable.name != "learning_rate"
    }

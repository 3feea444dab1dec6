"""Device of a process: threads, seed, TF32, waiting and memory, for each library."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from models.contract import (
    Array,
    Batch,
    DropoutProbe,
    Framework,
    ImageFiles,
    Mark,
    Profile,
    UniformWeights,
)
from models.devices import AUTO, CPU
from models.errors import ErrorCode, ModelError, NoDevice
from models.frameworks.introspection import Call, fingerprint

# Each library has, or may have, a switch for these.
OPERATIONS = ("matmul", "convolution", "recurrent")
# Change float32 in the libraries below the frameworks, in spite of a framework's switches.
OVERRIDES = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "TF_SET_ONEDNN_FPMATH_MODE",
)

# Multiplication of float32 operands; `ieee` for all other precisions.
ARITHMETIC = {"tf32": "tf32"}
# Values of an array that is large enough for several threads.
THREADED = 2**20
MAX_MESSAGE = 500


class FrameworkOnDevice(Framework):
    """Framework that computes on the device of a library, with a mixin such as `TorchDevice`.

    The mixin has `_open_device`, which sets `device`, `_device_versions` and methods of
    `Framework`. profiler, pipeline: the framework here whose modules of these names are also this
    one's; an empty one has none. _introspection: the framework's module of that name.
    _evaluated_loss(network, batch): the loss, dropout off. _network_inputs(inputs): inputs as a
    network takes them.
    """

    profiler: str
    pipeline: str
    _channels_last = True
    _introspection: Any
    _evaluated_loss: Any
    _network_inputs: Any

    def __init__(self, name: str) -> None:
        self.name = name
        self._is_uniform = UniformWeights()
        self._readers: dict[tuple[Any, ...], Any] = {}

    def profile(self, folder: Path, work: Callable[[Mark], object]) -> Profile:
        module = import_module(f"models.frameworks.{self.profiler}.profiler")
        return module.profiled(folder, self.device, work)

    def read(self, files: ImageFiles, workers: int) -> Iterable[Batch]:
        if not self.pipeline:
            return super().read(files, workers)
        key = (files.images, files.batch_size, workers)
        if key not in self._readers:
            module = import_module(f"models.frameworks.{self.pipeline}.pipeline")
            options = (files, workers, self.device)
            reader = module.Reader(*options, channels_last=self._channels_last)
            self._readers[key] = reader
        return self._readers[key].epoch(files)

    def evaluate(self, network: Any, batch: Batch) -> tuple[float, float]:
        total = float(batch.weights.sum())
        return float(self._evaluated_loss(network, batch)) * total, total

    def dropping(
        self, network: Any, inputs: tuple[Array, ...], draws: int
    ) -> dict[str, DropoutProbe]:
        backend = self._introspection
        layers, received = backend.droppers(network), defaultdict[str, list[Any]](list)
        rates = {path: getattr(layer, backend.RATE) for path, layer in layers.items()}

        def observe(call: Call) -> None:
            if call.path in layers and call.is_training:
                received[call.path].append(call.inputs)

        self.drop_nothing(network)
        backend.observe(network, self._network_inputs(inputs), observe, training=True)
        probes = {}
        for path, layer in layers.items():
            setattr(layer, backend.RATE, rates[path])
            if tensors := received[path]:
                sizes = [min(size, 2) for size in tensors[0].shape[1:]]
                mask = backend.draw(layer, (draws // prod(sizes), *sizes), tensors[0])
                flat = [backend.to_numpy(tensor).ravel() for tensor in tensors]
                probes[path] = DropoutProbe(np.concatenate(flat), mask)
        return probes

    def layer_values(self, network: Any, inputs: tuple[Array, ...]) -> dict[str, Array]:
        backend, calls = self._introspection, defaultdict[str, list[Array]](list)

        def observe(call: Call) -> None:
            output = backend.comparable_output(call)
            if output is not None:
                calls[call.path].append(fingerprint(output))

        backend.observe(network, self._network_inputs(inputs), observe, training=False)
        return {path: np.stack(arrays) for path, arrays in calls.items()}

    def drop_nothing(self, network: Any) -> None:
        for layer in self._introspection.droppers(network).values():
            setattr(layer, self._introspection.RATE, 0.0)


def resolve(
    requested: str,
    accelerator: str,
    library: str,
    precision: str,
    report: str | Callable[[], object],
) -> str:
    """Return the kind of device that a framework computes on.

    Args:
        requested: one of `models.devices.CHOICES`.
        accelerator: the kind of accelerator that the library sees; empty: none.
        library: its name, for messages.
        precision: of the cell.
        report: the library's messages about a missing GPU, or a call that raises them as an error.

    Raises:
        NoDevice: for a missing GPU.
        ModelError: for tf32 without a GPU.
    """
    if requested not in (AUTO, CPU, accelerator):
        message = f"device {requested!r}: {library} sees no GPU here; use cpu or auto"
        if callable(report):
            try:
                report()
                report = ""
            except Exception as error:  # each library has types of its own
                report = f"{type(error).__name__}: {error}"
        reports = f". {library} reports: {' '.join(report.split())[:MAX_MESSAGE]}" if report else ""
        raise NoDevice(ErrorCode.NO_DEVICE, message + reports)
    device = CPU if requested == CPU else accelerator or CPU
    if precision == "tf32" and device == CPU:
        raise ModelError(
            ErrorCode.NO_DEVICE, "precision 'tf32' is a GPU's; on the CPU use float32 or bfloat16"
        )
    return device


def flushes_denormals(halve: Callable[[Any], Any]) -> str:
    """Return whether a library's operators take denormal numbers for 0, on all of its threads.

    Args:
        halve: half of each value of a float32 array in NumPy, computed by the library.
    """
    smallest = np.full(THREADED, np.finfo(np.float32).tiny)
    zeros = int((halve(smallest) == 0).sum())
    return {0: "False", THREADED: "True"}.get(zeros, f"{zeros} of {THREADED}")


def verify_arithmetic(library: str, precision: str, switches: Mapping[str, str]) -> None:
    """Check the arithmetic of each operation as the library reports it.

    Args:
        library: its name, for the message.
        precision: of the cell.
        switches: for each of OPERATIONS `ieee` or `tf32`, read back from the library.

    Raises:
        ModelError: if an operation would be computed in another arithmetic, or if a variable of the
            environment overrides the switches.
    """
    for variable in filter(os.environ.get, OVERRIDES):
        text = f"{variable}={os.environ[variable]} changes the arithmetic of {library}, not of all"
        raise ModelError(ErrorCode.ENVIRONMENT, f"{text} frameworks alike; unset it, use precision")
    required = ARITHMETIC.get(precision, "ieee")
    for operation in OPERATIONS:
        if switches[operation] != required:
            text = f"{library} would compute {operation} operations in {switches[operation]}"
            text = f"precision {precision!r}: {text}, not in {required}; use a version that does"
            raise ModelError(ErrorCode.UNSUPPORTED, text)


def onednn(conv_algorithm: str, device: str) -> bool | None:
    """Return whether a CPU's convolutions use oneDNN; None for the framework's default.

    Raise ModelError on a GPU.
    """
    if conv_algorithm not in ("onednn", "plain"):
        return None
    if device != CPU:
        text = f"conv_algorithm {conv_algorithm!r} is a CPU's; on {device} use profiled or fixed"
        raise ModelError(ErrorCode.UNSUPPORTED, text)
    return conv_algorithm == "onednn"


def choose_in_xla(conv_algorithm: str) -> None:
    """Add to XLA's flags, which it reads at the first compilation; the last of a kind counts."""
    flags = {"profiled": "--xla_gpu_autotune_level=4", "heuristic": "--xla_gpu_autotune_level=0"}
    fixed = "--xla_gpu_autotune_level=0 --xla_gpu_exclude_nondeterministic_ops=true"
    before = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{before} {flags.get(conv_algorithm, fixed)}".strip()

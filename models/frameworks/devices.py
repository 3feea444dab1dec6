"""Device of a process: threads, seed, TF32, waiting and memory, for each library."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from models.contract import Array, Batch, DropoutProbe, Framework, ImageFiles
from models.errors import ModelError, NoDevice

# Each library has, or may have, a switch for these.
OPERATIONS = ("matmul", "convolution", "recurrent")
# Change float32 in the libraries below the frameworks, in spite of a framework's switches.
OVERRIDES = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "TF_SET_ONEDNN_FPMATH_MODE",
)

# Values of an array that is large enough for several threads.
THREADED = 2**20
MAX_MESSAGE = 500


class Device(ABC):
    """Device of a library. name: `cpu` or `cuda`. Methods as those of `Framework`."""

    name: str

    @abstractmethod
    def versions(self) -> dict[str, str]: ...

    @abstractmethod
    def synchronise(self) -> None: ...

    @abstractmethod
    def peak_bytes(self) -> int | None: ...

    def seed(self, seed: int) -> None:  # noqa: B027 - JAX has no global state
        pass

    def reset_peak(self) -> bool:
        return False

    def compilations(self) -> int:
        """Return the programs that the library's compiler has reported."""
        return 0


class FrameworkOnDevice(Framework):
    """Framework that computes on one of these devices.

    readers: its input pipelines. introspection: its module of that name.
    """

    _device: Device
    _readers: dict[tuple[Any, ...], Any]
    _introspection: Any

    def read(self, files: ImageFiles, workers: int) -> Iterable[Batch]:
        key = (files.images, files.batch_size, workers)
        if key not in self._readers:
            self._readers[key] = self._reader(files, workers)
        batches: Iterable[Batch] = self._readers[key].epoch(files)
        return batches

    def synchronise(self) -> None:
        self._device.synchronise()

    def peak_device_bytes(self) -> int | None:
        return self._device.peak_bytes()

    def reset_peak(self) -> bool:
        return self._device.reset_peak()

    def evaluate(self, network: Any, batch: Batch) -> tuple[float, float]:
        total = float(batch.weights.sum())
        return float(self._evaluated_loss(network, batch)) * total, total

    def dropping(
        self, network: Any, inputs: tuple[Array, ...], draws: int
    ) -> dict[str, DropoutProbe]:
        dropped: dict[str, DropoutProbe] = self._introspection.dropping(
            network, self._network_inputs(inputs), draws
        )
        return dropped

    def layer_values(self, network: Any, inputs: tuple[Array, ...]) -> dict[str, Array]:
        values: dict[str, Array] = self._introspection.layer_values(
            network, self._network_inputs(inputs)
        )
        return values

    def drop_nothing(self, network: Any) -> None:
        self._introspection.drop_nothing(network)

    @abstractmethod
    def _evaluated_loss(self, network: Any, batch: Batch) -> Any:
        """Return the loss, dropout off."""

    @abstractmethod
    def _network_inputs(self, inputs: tuple[Array, ...]) -> Any:
        """Return inputs as a network takes them."""

    @abstractmethod
    def _reader(self, files: ImageFiles, workers: int) -> Any:
        """Return a new input pipeline. Raise ModelError if the framework has none."""


def resolve(
    requested: str,
    has_accelerator: bool,
    library: str,
    precision: str,
    report: str | Callable[[], object],
) -> str:
    """Return `cpu` or `cuda`.

    Args:
        requested: `auto`, `cpu` or `cuda`.
        has_accelerator: whether the library sees a GPU.
        library: its name, for messages.
        precision: of the cell.
        report: the library's messages about a missing GPU, or a call that raises them as an error.

    Raises:
        NoDevice: for a missing GPU.
        ModelError: for tf32 without a GPU.
    """
    if requested == "cuda" and not has_accelerator:
        message = f"device 'cuda': {library} sees no GPU here; use cpu or auto"
        if callable(report):
            try:
                report()
                report = ""
            except Exception as error:  # each library has types of its own
                report = f"{type(error).__name__}: {error}"
        reports = f". {library} reports: {' '.join(report.split())[:MAX_MESSAGE]}" if report else ""
        raise NoDevice(message + reports)
    is_cuda = requested == "cuda" or (requested == "auto" and has_accelerator)
    if precision == "tf32" and not is_cuda:
        raise ModelError("precision 'tf32' is a GPU's; on the CPU use float32 or bfloat16")
    return "cuda" if is_cuda else "cpu"


def flushes_denormals(halve: Callable[[Any], Any]) -> str:
    """Return whether a library's operators take denormal numbers for 0, on all of its threads.

    Args:
        halve: half of each value of a float32 array in NumPy, computed by the library.
    """
    smallest = np.full(THREADED, np.finfo(np.float32).tiny)
    zeros = int((halve(smallest) == 0).sum())
    return {0: "False", THREADED: "True"}.get(zeros, f"{zeros} of {THREADED}")


def float32_arithmetic(precision: str) -> str:
    """Return how float32 operands are multiplied: `tf32`, or `ieee` for all other precisions."""
    return "tf32" if precision == "tf32" else "ieee"


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
    for variable in OVERRIDES:
        if os.environ.get(variable):
            raise ModelError(
                f"{variable}={os.environ[variable]} changes the arithmetic behind {library}'s back,"
                " and not in every framework alike; unset it and use precision"
            )
    required = float32_arithmetic(precision)
    for operation in OPERATIONS:
        if switches[operation] != required:
            raise ModelError(
                f"precision {precision!r}: {library} would compute its {operation} operations in "
                f"{switches[operation]}, not in {required}; use a version whose switches work"
            )


def onednn(conv_algorithm: str, device: str) -> bool | None:
    """Return whether a CPU's convolutions use oneDNN; None for the framework's default.

    Raise ModelError on a GPU.
    """
    if conv_algorithm not in ("onednn", "plain"):
        return None
    if device != "cpu":
        raise ModelError(
            f"conv_algorithm {conv_algorithm!r} is a CPU's; on {device} use profiled, heuristic "
            "or fixed"
        )
    return conv_algorithm == "onednn"


def choose_in_xla(conv_algorithm: str) -> None:
    """Add to XLA's flags, which it reads at the first compilation; the last of a kind counts."""
    flags = {"profiled": "--xla_gpu_autotune_level=4", "heuristic": "--xla_gpu_autotune_level=0"}
    fixed = "--xla_gpu_autotune_level=0 --xla_gpu_exclude_nondeterministic_ops=true"
    before = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{before} {flags.get(conv_algorithm, fixed)}".strip()

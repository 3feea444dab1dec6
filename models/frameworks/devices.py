"""What a device of a process must do: pick it, set threads, seed and TF32, wait for it, ask its memory."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from models.contract import Batch, Framework, ImageFiles, StepEvents
from models.errors import ModelError, NoDevice

# What a library has, or may have, a switch for.
OPERATIONS = ("matmul", "convolution", "recurrent")
# They change float32 in the libraries below the frameworks, whatever a framework's own switches say.
OVERRIDES = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "TF_SET_ONEDNN_FPMATH_MODE",
)

# Values of an array that is large enough for several threads.
THREADED = 2**20
MAX_MESSAGE = 500


class Device(Protocol):
    """name: `cpu` or `cuda`, resolved from `auto` to what is there."""

    name: str

    def seed(self, seed: int) -> None: ...

    def synchronise(self) -> None: ...

    def step_events(self, steps: int) -> StepEvents | None:
        """As a framework's, for each that computes on this device."""

    def peak_bytes(self) -> int | None: ...

    def reset_peak(self) -> bool:
        """Whether the peak counts from here on; False on the CPU, and where the library cannot."""

    def compilations(self) -> int:
        """What this library's own compiler did, in this process."""

    def versions(self) -> dict[str, str]: ...


class FrameworkOnDevice(Framework):
    """A framework that computes on one of these devices. readers: its input pipelines, which last for all epochs."""

    _device: Device
    _readers: dict[tuple[Any, ...], Any]

    def read(self, files: ImageFiles, workers: int) -> Iterable[Batch]:
        key = (files.images, files.batch_size, workers)
        if key not in self._readers:
            self._readers[key] = self._reader(files, workers)
        epoch: Iterable[Batch] = self._readers[key].epoch(files)
        return epoch

    def step_events(self, steps: int) -> StepEvents | None:
        return self._device.step_events(steps)

    def synchronise(self) -> None:
        self._device.synchronise()

    def peak_device_bytes(self) -> int | None:
        return self._device.peak_bytes()

    def reset_peak(self) -> bool:
        return self._device.reset_peak()

    @abstractmethod
    def _reader(self, files: ImageFiles, workers: int) -> Any:
        """Return the framework's own input pipeline. Raises ModelError if it has none."""


def resolve(
    wanted: str,
    has_accelerator: bool,
    library: str,
    precision: str,
    messages: str | Callable[[], object] = "",
) -> str:
    """`cpu` or `cuda`, from `auto` or what is asked for.

    messages: what the library itself said while it looked for a GPU, or a call that raises an error saying so.

    Raises NoDevice for a GPU that is not there, ModelError for tf32 without one.
    """
    if wanted == "cuda" and not has_accelerator:
        reason = f"device 'cuda': {library} sees no GPU here; use cpu or auto"
        own = messages if isinstance(messages, str) else _error_of(messages)
        raise NoDevice(
            f"{reason}. {library} reports: {' '.join(own.split())[:MAX_MESSAGE]}" if own else reason
        )
    found = ("cuda" if has_accelerator else "cpu") if wanted == "auto" else wanted
    if precision == "tf32" and found == "cpu":
        raise ModelError("precision 'tf32' is a GPU's; on the CPU use float32 or bfloat16")
    return found


def flushes_denormals(halve: Callable[[Any], Any]) -> str:
    """Return whether a library's operators take numbers below the smallest normal one for 0, on all of its threads.

    Args:
        halve: half of each value of a float32 array in NumPy, computed by the library.
    """
    import numpy as np

    smallest = np.full(THREADED, np.finfo(np.float32).tiny)
    zeros = int((halve(smallest) == 0).sum())
    return {0: "False", THREADED: "True"}.get(zeros, f"{zeros} of {THREADED}")


def float32_arithmetic(precision: str) -> str:
    """Return how float32 operands are multiplied: `tf32`, or `ieee` for all other precisions."""
    return "tf32" if precision == "tf32" else "ieee"


def verify_arithmetic(library: str, precision: str, switches: Mapping[str, str]) -> None:
    """Check the arithmetic of every operation as the library reports it.

    Args:
        library: its name, for the message.
        precision: what the cell is to compute in.
        switches: for each of OPERATIONS `ieee` or `tf32`, read back from the library.

    Raises:
        ModelError: if an operation would be computed in another arithmetic, or if a variable of the
            environment overrides the switches.
    """
    for variable in OVERRIDES:
        if os.environ.get(variable):
            raise ModelError(
                f"{variable}={os.environ[variable]} changes the arithmetic behind {library}'s back, "
                "and not in every framework alike; unset it and use precision"
            )
    required = float32_arithmetic(precision)
    for operation in OPERATIONS:
        if switches[operation] != required:
            raise ModelError(
                f"precision {precision!r}: {library} would compute its {operation} operations in "
                f"{switches[operation]}, not in {required}; use a version whose switches work"
            )


def _error_of(probe: Callable[[], object]) -> str:
    """Return the error that a call for a GPU ends with; empty if it ends well."""
    try:
        probe()
    except Exception as error:  # each library has its own types
        return f"{type(error).__name__}: {error}"
    return ""


def onednn(conv_algorithm: str, device: str) -> bool | None:
    """Whether a CPU's convolutions are to be oneDNN's; None where the framework's default stays. Raises ModelError on a GPU."""
    if conv_algorithm not in ("onednn", "plain"):
        return None
    if device != "cpu":
        raise ModelError(
            f"conv_algorithm {conv_algorithm!r} is a CPU's; on {device} use profiled, heuristic or fixed"
        )
    return conv_algorithm == "onednn"


def choose_in_xla(conv_algorithm: str) -> None:
    """XLA reads its flags once, when it first compiles; the last of a kind counts, so that a user's own others stay."""
    flags = {"profiled": "--xla_gpu_autotune_level=4", "heuristic": "--xla_gpu_autotune_level=0"}
    fixed = "--xla_gpu_autotune_level=0 --xla_gpu_exclude_nondeterministic_ops=true"
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} {flags.get(conv_algorithm, fixed)}".strip()
    )

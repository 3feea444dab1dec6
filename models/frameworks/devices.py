"""What a device of a process must do: pick it, set threads, seed and TF32, wait for it, ask its memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from models.contract import StepEvents
from models.errors import ModelError, NoDevice

MAX_MESSAGE = 500


class Device(Protocol):
    """name: `cpu` or `cuda`, resolved from `auto` to what is there."""

    name: str

    def seed(self, seed: int) -> None: ...

    def synchronise(self) -> None: ...

    def step_events(self, steps: int) -> StepEvents | None:
        """As a framework's, for each that computes on this device."""

    def peak_bytes(self) -> int | None: ...

    def compilations(self) -> int:
        """What this library's own compiler did, in this process."""

    def versions(self) -> dict[str, str]: ...


def resolve(wanted: str, has_accelerator: bool, library: str, precision: str, messages: str | Callable[[], object] = "") -> str:
    """`cpu` or `cuda`, from `auto` or what is asked for.

    messages: what the library itself said while it looked for a GPU, or a call that raises an error saying so.

    Raises NoDevice for a GPU that is not there, ModelError for tf32 without one.
    """
    if wanted == "cuda" and not has_accelerator:
        reason = f"device 'cuda': {library} sees no GPU here; use cpu or auto"
        own = messages if isinstance(messages, str) else _error_of(messages)
        raise NoDevice(f"{reason}. {library} reports: {' '.join(own.split())[:MAX_MESSAGE]}" if own else reason)
    found = ("cuda" if has_accelerator else "cpu") if wanted == "auto" else wanted
    if precision == "tf32" and found == "cpu":
        raise ModelError("precision 'tf32' is a GPU's; on the CPU use float32 or bfloat16")
    return found


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
        raise ModelError(f"conv_algorithm {conv_algorithm!r} is a CPU's; on {device} use profiled, heuristic or fixed")
    return conv_algorithm == "onednn"


def choose_in_xla(conv_algorithm: str) -> None:
    """XLA reads its flags once, when it first compiles; the last of a kind counts, so that a user's own others stay."""
    flags = {"profiled": "--xla_gpu_autotune_level=4", "heuristic": "--xla_gpu_autotune_level=0"}
    fixed = "--xla_gpu_autotune_level=0 --xla_gpu_exclude_nondeterministic_ops=true"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags.get(conv_algorithm, fixed)}".strip()

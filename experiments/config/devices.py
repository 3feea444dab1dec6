"""Device (CPU or GPU) and CPUs of cells, and the environment variables that select them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

from experiments.config import variation
from experiments.config.settings import CampaignSettings
from tracking import cpus, plain, provenance
from tracking.errors import ErrorCode, UsageError
from tracking.nvml import DRIVER, VISIBLE

# JAX allocates three quarters of a GPU when it starts: more than a cell needs.
XLA_MEMORY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"}
# New name of the last variable: JAX refuses both together.
XLA_FRACTION = "XLA_CLIENT_MEM_FRACTION"
CPU_SENSOR_SECONDS, CUDA_SENSOR_SECONDS, SHORTEST_SENSOR_SECONDS = 0.5, 0.1, 0.05
# Variables that override the settings of every cell, each with its remedy.
REFUSED = {
    "NVIDIA_TF32_OVERRIDE": "it overrides the precision of every framework; "
    "unset it and take precision=tf32 or float32",
    "CUDA_LAUNCH_BLOCKING": "every kernel is then waited for, unlike in use; unset it",
}


def resolve_all(settings: CampaignSettings) -> tuple[str, ...]:
    """Return what the cells compute on."""
    return tuple(dict.fromkeys(resolve(device, settings) for device in requested(settings)))


def requested(settings: CampaignSettings) -> tuple[str, ...]:
    """Return the devices as the user wrote them."""
    return tuple(dict.fromkeys(level.device for level in variation.each(settings)))


def cpus_of_cells(
    settings: CampaignSettings, available: Sequence[int] = (), root: Path = Path("/")
) -> tuple[int, ...]:
    """Return the CPUs that a cell is placed on.

    With pin=auto these are one thread of each core and, of three cores or more, none of the first,
    which is left to the parent.

    Args:
        settings: The settings of the campaign.
        available: Numbers of the CPUs; empty: those of this process.
        root: The file system that holds `sys`.
    """
    available = sorted(available or own_cpus())
    if settings.pin == "none":
        return tuple(available)
    cores = cpus.cores(available, root)
    return tuple(core[0] for core in (cores[1:] if len(cores) > 2 else cores))


@cache
def own_cpus() -> tuple[int, ...]:
    """Return the CPUs that this process may run on.

    Returns:
        Their numbers, ascending, as they were at the first call: later pinning changes nothing.
    """
    return tuple(sorted(os.sched_getaffinity(0)))


def gpus_of_cell(device: str, workers: int, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the UUIDs of a cell's GPUs; none on the CPU and if NVML does not answer.

    Args:
        workers: of the cell on this machine, a GPU each.
        variables: environment variables of its process.
    """
    if device != "cuda":
        return ()
    try:
        from tracking import nvml  # help does not need it

        return tuple(card.uuid for card in nvml.visible_cards(variables))[:workers]
    except Exception:  # NVML has many error classes; a framework may see the GPU all the same
        return ()


def variables_of_cell(
    device: str, gpus: Sequence[str], local: Collection[str] = ()
) -> dict[str, str | None]:
    """Return the environment variables that select a device; None removes one.

    Args:
        gpus: UUIDs of the GPUs that it uses.
        local: names of the variables that the cell's treatment sets.
    """
    if device == "cpu":
        return {VISIBLE: ""}
    memory: dict[str, str | None] = {**XLA_MEMORY, XLA_FRACTION: None}
    if XLA_FRACTION in local:
        memory["XLA_PYTHON_CLIENT_MEM_FRACTION"] = None
    memory = {name: text for name, text in memory.items() if name not in local}
    visible = {VISIBLE: ",".join(gpus)} if gpus else {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **memory, **visible}


def environment_on(device: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process on one device, like that of a cell without workers.

    Args:
        variables: those that it would inherit.
    """
    placed = variables_of_cell(device, gpus_of_cell(device, 1, variables))
    return changed(variables, placed)


def changed(variables: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return environment variables with changes.

    Args:
        variables: Texts by the name of the variable.
        changes: New texts; None removes a variable.
    """
    unchanged = {name: text for name, text in variables.items() if name not in changes}
    return unchanged | {name: text for name, text in changes.items() if text is not None}


def cool_down_seconds(settings: CampaignSettings) -> float:
    """Return the longest wait before a cell: none on a GPU, which is warm in use."""
    return 0.0 if resolve(settings.device, settings) == "cuda" else settings.cool_down_seconds


def sensor_seconds(settings: CampaignSettings) -> float:
    """Return the period of the sensors: a GPU's counters move ten times a second.

    Returns:
        Seconds between two readings: those of the settings, or the device's default.
    """
    on_gpu = resolve(settings.device, settings) == "cuda"
    return settings.sensor_seconds or (CUDA_SENSOR_SECONDS if on_gpu else CPU_SENSOR_SECONDS)


def timing(settings: CampaignSettings) -> str:
    """Return when cells wait for the device: `step`, `free` or `both`.

    `auto` is `both` on a GPU, where waiting after each step hides that host and device overlap.
    `free` alone would leave no median step and no percentile. Where a cell runs on the CPU it is
    `step` in all: cells with different timing are never paired.
    """
    if settings.timing != "auto":
        return settings.timing
    used = {
        resolve(device, settings) if device == "auto" else device for device in requested(settings)
    }
    return "both" if used == {"cuda"} else "step"


def check_variables(used: Collection[str], variables: Mapping[str, str]) -> None:
    """Raise UsageError if an inherited environment variable makes the GPU's figures wrong.

    Args:
        used: the devices that cells compute on.
    """
    if "cuda" not in used:
        return
    for name, why in REFUSED.items():
        if variables.get(name, "") not in ("", "0") or (
            name == "NVIDIA_TF32_OVERRIDE" and variables.get(name)
        ):
            raise UsageError(ErrorCode.ENVIRONMENT, f"{name}={variables[name]} is set: {why}")
    visible = variables.get(VISIBLE, "")
    if visible.startswith("MIG-"):
        raise UsageError(
            ErrorCode.ENVIRONMENT,
            f"{VISIBLE}={plain.short(visible)}: instances of MIG are not measured; "
            "name a whole GPU (nvidia-smi -L)",
        )
    if not visible.startswith("GPU-") and variables.get("CUDA_DEVICE_ORDER") == "FASTEST_FIRST":
        raise UsageError(
            ErrorCode.ENVIRONMENT,
            f"CUDA_DEVICE_ORDER=FASTEST_FIRST: cells number GPUs by the PCI bus; "
            f"unset it, or name the GPU's UUID in {VISIBLE} (nvidia-smi -L)",
        )


def resolve(device: str, settings: CampaignSettings) -> str:
    """Return `cpu` or `cuda`: for `auto`, the GPU if NVML shows one, or if a cluster's job has one.

    Raises:
        UsageError: for cuda without a GPU.
    """
    if settings.on_cluster:  # this machine is not a node; there, a framework without a GPU fails
        return ("cuda" if "gpu" in settings.gres else "cpu") if device == "auto" else device
    return present(device)


def present(device: str) -> str:
    """Return `cpu` or `cuda`: for `auto`, the GPU if NVML shows one that CUDA sees.

    Raises:
        UsageError: for cuda where there can be no GPU.
    """
    has_gpu = bool(provenance.gpus())
    if device == "cuda" and not has_gpu and not may_have_gpu(os.environ):
        hidden = f", and {VISIBLE} is empty" if os.environ.get(VISIBLE) == "" else ""
        raise UsageError(
            ErrorCode.NO_DEVICE,
            f"device=cuda: no NVIDIA GPU answers on this machine{hidden}; "
            f"use device=cpu or device=auto",
        )
    return ("cuda" if has_gpu else "cpu") if device == "auto" else device


def to_open(device: str, settings: CampaignSettings) -> str:
    """Return the device of a framework's check: `auto` if only the framework may see a GPU."""
    resolved = resolve(device, settings)
    if device == "auto" and resolved == "cpu" and not settings.on_cluster:
        return "auto" if may_have_gpu(os.environ) else "cpu"
    return resolved


def may_have_gpu(variables: Mapping[str, str]) -> bool:
    """Return whether a framework may see a GPU that NVML does not show, as in a container.

    Args:
        variables: Environment variables of the framework's process.
    """
    return variables.get(VISIBLE) != "" and DRIVER.exists()

"""Device (CPU or GPU) and CPUs of cells, and the environment variables that select them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

from experiments.config import variation
from experiments.config.settings import CampaignSettings
from models.devices import ACCELERATORS, AUTO, CPU, CUDA
from tracking import cpus, plain, provenance
from tracking.errors import ErrorCode, UsageError

# JAX allocates three quarters of a GPU when it starts: more than a cell needs.
XLA_MEMORY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"}
# New name of the last variable: JAX refuses both together.
XLA_FRACTION = "XLA_CLIENT_MEM_FRACTION"
CPU_SENSOR_SECONDS, GPU_SENSOR_SECONDS, SHORTEST_SENSOR_SECONDS = 0.5, 0.1, 0.05


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
    if device != CUDA:
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
    if device == CPU:
        return {kind.visible: "" for kind in ACCELERATORS.values()}
    memory: dict[str, str | None] = {**XLA_MEMORY, XLA_FRACTION: None}
    if XLA_FRACTION in local:
        memory["XLA_PYTHON_CLIENT_MEM_FRACTION"] = None
    memory = {name: text for name, text in memory.items() if name not in local}
    visible = {ACCELERATORS[device].visible: ",".join(gpus)} if gpus else {}
    for kind in ACCELERATORS.values():  # `auto` may become any
        visible |= kind.variables
    return {**memory, **visible}


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
    on_cpu = resolve(settings.device, settings) == CPU
    return settings.cool_down_seconds if on_cpu else 0.0


def sensor_seconds(settings: CampaignSettings) -> float:
    """Return the period of the sensors: a GPU's counters move ten times a second.

    Returns:
        Seconds between two readings: those of the settings, or the device's default.
    """
    on_cpu = resolve(settings.device, settings) == CPU
    return settings.sensor_seconds or (CPU_SENSOR_SECONDS if on_cpu else GPU_SENSOR_SECONDS)


def timing(settings: CampaignSettings) -> str:
    """Return when cells wait for the device: `step`, `free` or `both`.

    `auto` is `both` on a GPU, where waiting after each step hides that host and device overlap.
    `free` alone would leave no median step and no percentile. Where a cell runs on the CPU it is
    `step` in all: cells with different timing are never paired.
    """
    if settings.timing != "auto":
        return settings.timing
    used = {
        resolve(device, settings) if device == AUTO else device for device in requested(settings)
    }
    return "step" if CPU in used else "both"


def check_variables(used: Collection[str], variables: Mapping[str, str]) -> None:
    """Raise UsageError if an inherited environment variable makes the GPU's figures wrong.

    Args:
        used: the devices that cells compute on.
    """
    for kind in filter(None, map(ACCELERATORS.get, used)):
        for name, (harmless, why) in kind.refused.items():
            if variables.get(name, "") not in ("", *harmless):
                raise UsageError(ErrorCode.ENVIRONMENT, f"{name}={variables[name]} is set: {why}")
        visible = variables.get(kind.visible, "")
        if visible.startswith("MIG-"):
            raise UsageError(
                ErrorCode.ENVIRONMENT,
                f"{kind.visible}={plain.short(visible)}: instances of MIG are not measured; "
                "name a whole GPU (nvidia-smi -L)",
            )
        if not visible.startswith("GPU-") and variables.get("CUDA_DEVICE_ORDER") == "FASTEST_FIRST":
            raise UsageError(
                ErrorCode.ENVIRONMENT,
                f"CUDA_DEVICE_ORDER=FASTEST_FIRST: cells number GPUs by the PCI bus; "
                f"unset it, or name the GPU's UUID in {kind.visible} (nvidia-smi -L)",
            )


def resolve(device: str, settings: CampaignSettings) -> str:
    """Return a kind of device: for `auto`, CUDA if NVML or a cluster's job has a GPU, or the CPU.

    Raises:
        UsageError: for a device that this machine lacks.
    """
    if settings.on_cluster:  # this machine is not a node; there, a framework without a GPU fails
        return (CUDA if "gpu" in settings.gres else CPU) if device == AUTO else device
    return present(device)


def present(device: str) -> str:
    """Return a kind of device: for `auto`, CUDA if NVML shows a GPU that it sees, or the CPU.

    Raises:
        UsageError: for a device that this machine cannot have.
    """
    if device == AUTO:
        return CUDA if provenance.gpus() else CPU
    kind = ACCELERATORS.get(device)
    is_shown = device == CUDA and provenance.gpus()
    if kind and not is_shown and not kind.may_be_seen(os.environ):
        hidden = f", and {kind.visible} is empty" if os.environ.get(kind.visible) == "" else ""
        raise UsageError(
            ErrorCode.NO_DEVICE,
            f"device={device}: no {kind.title} answers on this machine{hidden}; "
            f"use device=cpu or device=auto",
        )
    return device


def to_open(device: str, settings: CampaignSettings) -> str:
    """Return the device of a framework's check: `auto` if only the framework may see a GPU."""
    resolved = resolve(device, settings)
    if device == AUTO and resolved == CPU and not settings.on_cluster:
        # a framework may see a GPU that NVML does not show, as in a container
        may_be_seen = any(kind.may_be_seen(os.environ) for kind in ACCELERATORS.values())
        return AUTO if may_be_seen else CPU
    return resolved

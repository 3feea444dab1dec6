"""The only module that imports nvidia-ml-py: the NVIDIA devices that a CUDA program sees, as NVML reports them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracking.provenance import VISIBLE

SHARED_CARD = "MIG shares the card: the driver counts this for all of its instances together"

# What slows a device's clocks down; its idling and what the user set (bits 0, 1, 8) do not count.
THROTTLES = {
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x200: "board limit",
    0x400: "reliability",
}


@dataclass(frozen=True)
class Card:
    """Device that a CUDA program can be given: a GPU, or a MIG instance of one.

    index: of the GPU, in the order of the PCI bus. parent: UUID of an instance's GPU, or empty.
    """

    uuid: str
    index: int
    name: str
    parent: str = ""


class Gpu:
    """Readings of one device. missing: reading -> why the device does not give it.

    Raises pynvml.NVMLError where there is no such device.
    """

    def __init__(self, card: Card) -> None:
        import pynvml

        pynvml.nvmlInit()
        self.missing: dict[str, str] = {}
        self.card, self.key = card, f"gpu_{card.index}"
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(card.uuid)
        whole = pynvml.nvmlDeviceGetHandleByUUID(card.parent) if card.parent else self._handle
        self._nvml = pynvml
        self._readings: dict[str, Callable[[], float]] = {
            "memory_usage_megabytes": lambda: (
                pynvml.nvmlDeviceGetMemoryInfo(self._handle).used / 1e6
            ),
            "utilization_percentage": lambda: pynvml.nvmlDeviceGetUtilizationRates(whole).gpu,
            "temperature_celsius": lambda: pynvml.nvmlDeviceGetTemperature(
                whole, pynvml.NVML_TEMPERATURE_GPU
            ),
            "power_usage_watts": lambda: pynvml.nvmlDeviceGetPowerUsage(whole) / 1_000,
            "clock_megahertz": lambda: pynvml.nvmlDeviceGetClockInfo(whole, pynvml.NVML_CLOCK_SM),
            "memory_clock_megahertz": lambda: pynvml.nvmlDeviceGetClockInfo(
                whole, pynvml.NVML_CLOCK_MEM
            ),
            "clock_limits": lambda: self._clock_limits(whole),
        }
        if card.parent:
            for name in ("utilization_percentage", "power_usage_watts"):
                self.missing[name] = SHARED_CARD
                del self._readings[name]

    def read(self, holders: Mapping[int, int | None], pid: int | None) -> dict[str, float]:
        """Return what the device gives, by name.

        `clock_limits` is NVML's mask of reasons, `process_memory_megabytes` that of `pid` alone.

        Args:
            holders: see `processes`.
        """
        values = {
            name: value
            for name, reading in self._readings.items()
            if (value := self._try(name, reading)) is not None
        }
        if pid is None:
            return values
        used = holders.get(pid)
        if used is None:
            self.missing["process_memory"] = "the driver does not report what this process holds"
            return values
        self.missing.pop("process_memory", None)
        return values | {"process_memory_megabytes": used / 1e6}

    def joules(self) -> float | None:
        """The device's energy counter since its driver was loaded."""
        if self.card.parent:
            self.missing["energy"] = SHARED_CARD
            return None
        return self._try(
            "energy", lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1_000
        )

    def processes(self) -> dict[int, int | None]:
        """Process -> the bytes of the device that it holds, None where the driver does not say; of all who compute on it."""
        try:
            return {
                one.pid: one.usedGpuMemory
                for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            }
        except self._nvml.NVMLError as error:
            self.missing["process_memory"] = str(error)
            return {}

    def free_share(self) -> float:
        """Return which share of the device's memory is free."""
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return float(memory.free / memory.total)

    def _clock_limits(self, whole: Any) -> float:
        try:
            return float(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(whole))
        except self._nvml.NVMLError_FunctionNotFound:  # drivers before 535
            return float(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(whole))

    def _try(self, name: str, reading: Callable[[], float]) -> float | None:
        try:
            return float(reading())
        except self._nvml.NVMLError as error:
            self.missing[name] = str(error)
            return None


def free_share() -> float | None:
    """Return which share of the memory of the device that CUDA sees first is free; None if the driver does not report it."""
    try:
        return opened()[0].free_share()
    except Exception:  # NVML has an error class for each cause: the device or its memory is unknown
        return None


def throttles(mask: float) -> list[str]:
    """Names of what slows the clocks, of NVML's mask of reasons."""
    return [name for bit, name in THROTTLES.items() if int(mask) & bit]


def visible(variables: Mapping[str, str] | None = None) -> tuple[Card, ...]:
    """Return the devices that CUDA shows to a process with these environment variables, in its order.

    Numbers of CUDA_VISIBLE_DEVICES follow the PCI bus, as cells are started; UUIDs may be shortened.
    The first entry that names no device ends the list. Of a GPU in MIG mode CUDA takes one instance.

    Args:
        variables: of the process; those of this one by default.

    Raises:
        pynvml.NVMLError: if there is no driver.
    """
    cards = _cards()
    text = (os.environ if variables is None else variables).get(VISIBLE)
    if text is None:
        return tuple(instances[0] for instances in cards if instances)
    chosen: list[Card] = []
    for entry in map(str.strip, text.split(",")):
        card = _named(entry, cards)
        if card is None:
            break
        chosen.append(card)
    return tuple(chosen) if len(set(chosen)) == len(chosen) else ()


def opened(uuids: Sequence[str] = ()) -> list[Gpu]:
    """Return the devices with these UUIDs or, if none is named, the first that CUDA sees.

    Raises:
        pynvml.NVMLError: if there is no driver.
        LookupError: if there is no such device.
    """
    if not uuids:
        cards = visible()[:1]
        if not cards:
            raise LookupError(f"{VISIBLE}={os.environ.get(VISIBLE, '')} names no device")
        return [Gpu(cards[0])]
    by_uuid = {card.uuid: card for instances in _cards() for card in instances}
    return [Gpu(by_uuid[uuid]) for uuid in uuids]


def names() -> list[str]:
    """Return names of the devices that CUDA sees, with their driver; an empty list if there is none."""
    try:
        cards = visible()
        import pynvml

        driver = pynvml.nvmlSystemGetDriverVersion()
    except (
        Exception
    ):  # NVML has one error class a cause, and every one of them means: no usable device
        return []
    return [f"{card.name} (driver {driver})" for card in cards]


def _cards() -> list[list[Card]]:
    """Return, for every GPU in the order of the PCI bus, itself or its MIG instances."""
    import pynvml

    pynvml.nvmlInit()
    return [_parts(index) for index in range(pynvml.nvmlDeviceGetCount())]


def _parts(index: int) -> list[Card]:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    try:
        is_divided = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except pynvml.NVMLError:  # most cards, and old drivers, have no such mode
        is_divided = False
    if not is_divided:
        return [Card(uuid, index, pynvml.nvmlDeviceGetName(handle))]
    instances = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except pynvml.NVMLError_NotFound:
            continue
        names = pynvml.nvmlDeviceGetUUID(instance), pynvml.nvmlDeviceGetName(instance)
        instances.append(Card(names[0], index, names[1], uuid))
    return instances


def _named(entry: str, cards: list[list[Card]]) -> Card | None:
    """Return the device that an entry of CUDA_VISIBLE_DEVICES names; None if there is none."""
    if entry.isdecimal():
        chosen = cards[int(entry)][:1] if int(entry) < len(cards) else []
    elif entry.startswith("MIG-"):
        chosen = [card for instances in cards for card in instances if card.uuid.startswith(entry)]
    elif entry.startswith("GPU-"):
        of_gpus = [one for one in cards if one and (one[0].parent or one[0].uuid).startswith(entry)]
        chosen = [instances[0] for instances in of_gpus]
    else:
        chosen = []
    return chosen[0] if len(chosen) == 1 else None

"""NVIDIA devices that a CUDA program sees: the only module that imports nvidia-ml-py.

As a program it prints their names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Devices that a CUDA program sees.
VISIBLE = "CUDA_VISIBLE_DEVICES"
# One of them exists where programs reach a GPU: Linux, its subsystem on Windows, Jetson.
DRIVER = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/nvmap"))
LIBRARY = "libnvidia-ml.so.1"
ANSWER_SECONDS = 2
UNKNOWN = "not known: the NVIDIA driver gave no answer"
SHARED_CARD = "MIG shares the card: the driver counts this for all of its instances together"

# Reasons for slower clocks; idling and the user's own settings (bits 0, 1, 8) do not count.
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
    """Device of a CUDA program: a GPU, or a MIG instance of one.

    Attributes:
        index: Of the GPU, in the order of the PCI bus.
        parent: UUID of an instance's GPU, or empty.
    """

    uuid: str
    index: int
    name: str
    parent: str = ""


class Gpu:
    """Readings of one device. `missing`: reason by reading.

    Raises:
        pynvml.NVMLError: There is no such device.
    """

    def __init__(self, card: Card) -> None:
        import pynvml

        pynvml.nvmlInit()
        self.missing: dict[str, str] = {}
        self.card, self.key = card, f"gpu_{card.index}"
        self._nvml = pynvml
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(card.uuid)
        whole = pynvml.nvmlDeviceGetHandleByUUID(card.parent) if card.parent else self._handle
        clock, celsius = pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_TEMPERATURE_GPU
        self._readings: dict[str, Callable[[], float]] = {
            "memory_usage_megabytes": lambda: self.memory().used / 1e6,
            "utilization_percentage": lambda: pynvml.nvmlDeviceGetUtilizationRates(whole).gpu,
            "temperature_celsius": lambda: pynvml.nvmlDeviceGetTemperature(whole, celsius),
            "power_usage_watts": lambda: pynvml.nvmlDeviceGetPowerUsage(whole) / 1_000,
            "clock_megahertz": lambda: clock(whole, pynvml.NVML_CLOCK_SM),
            "memory_clock_megahertz": lambda: clock(whole, pynvml.NVML_CLOCK_MEM),
            "clock_limits": lambda: self._clock_limits(whole),
        }
        if card.parent:
            for name in ("utilization_percentage", "power_usage_watts"):
                self.missing[name] = SHARED_CARD
                del self._readings[name]

    def read(self) -> dict[str, float]:
        """Return the readings that the device supports, by name.

        `clock_limits` is NVML's mask of reasons.
        """
        readings = {name: self._try(name, reading) for name, reading in self._readings.items()}
        return {name: value for name, value in readings.items() if value is not None}

    def joules(self) -> float | None:
        """Return the device's energy counter since its driver was loaded."""
        if self.card.parent:
            self.missing["energy"] = SHARED_CARD
            return None
        read = self._nvml.nvmlDeviceGetTotalEnergyConsumption
        return self._try("energy", lambda: read(self._handle) / 1_000)

    def processes(self) -> dict[int, int | None]:
        """Return the bytes that each computing process holds, None if the driver hides them."""
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError as error:
            self.missing["process_memory"] = str(error)
            return {}
        return {process.pid: process.usedGpuMemory for process in running}

    def memory(self) -> Any:
        """Return NVML's `total`, `free` and `used` bytes."""
        return self._nvml.nvmlDeviceGetMemoryInfo(self._handle)

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
    """Return the free share of the memory of CUDA's first device; None if it is not known."""
    try:
        memory = open_devices()[0].memory()
        return float(memory.free / memory.total)
    except Exception:  # NVML has an error class for each cause
        return None


def visible_cards(variables: Mapping[str, str] | None = None) -> tuple[Card, ...]:
    """Return the devices that CUDA shows to a process, in its order.

    Numbers of CUDA_VISIBLE_DEVICES follow the PCI bus, as cells are started; UUIDs may be
    shortened. The first entry that names no device ends the list. Of a GPU in MIG mode CUDA takes
    one instance.

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


def open_devices(uuids: Sequence[str] = ()) -> list[Gpu]:
    """Return the devices with these UUIDs or, if none is named, CUDA's first.

    Raises:
        pynvml.NVMLError: There is no driver.
        LookupError: There is no such device.
    """
    if not uuids:
        cards = visible_cards()[:1]
        if not cards:
            raise LookupError(f"{VISIBLE}={os.environ.get(VISIBLE, '')} names no device")
        return [Gpu(cards[0])]
    by_uuid = {card.uuid: card for instances in _cards() for card in instances}
    return [Gpu(by_uuid[uuid]) for uuid in uuids]


def names() -> list[str]:
    """Return the names of CUDA's devices, with their driver; an empty list if there is none."""
    try:
        cards = visible_cards()
        import pynvml

        driver = pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # NVML has an error class for each cause: there is no usable device
        return []
    return [f"{card.name} (driver {driver})" for card in cards]


def names_from_helper() -> list[str]:
    """Return `names()` of another process, which a driver may hang or end; else `UNKNOWN`.

    No process starts where neither a device nor a library path shows a driver.
    """
    folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    if not any(map(os.path.exists, (*DRIVER, *(Path(text, LIBRARY) for text in folders)))):
        return []
    try:
        helper = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return [UNKNOWN]
    try:
        answer: list[str] = json.loads(helper.communicate(timeout=ANSWER_SECONDS)[0])
    except ValueError:
        return [UNKNOWN]
    except subprocess.TimeoutExpired:
        helper.kill()
        with suppress(subprocess.TimeoutExpired):  # a call into the driver may be unkillable
            helper.communicate(timeout=0.1)
        return [UNKNOWN]
    return answer


def _cards() -> list[list[Card]]:
    """Return, for each GPU in the order of the PCI bus, itself or its MIG instances."""
    import pynvml

    pynvml.nvmlInit()
    cards = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        try:
            is_divided = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        except pynvml.NVMLError:  # most cards, and old drivers, have no such mode
            is_divided = False
        if is_divided:
            cards.append(_instances(handle, index, uuid))
        else:
            cards.append([Card(uuid, index, pynvml.nvmlDeviceGetName(handle))])
    return cards


def _instances(handle: Any, index: int, uuid: str) -> list[Card]:
    import pynvml

    instances = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except pynvml.NVMLError_NotFound:
            continue
        name = pynvml.nvmlDeviceGetName(instance)
        instances.append(Card(pynvml.nvmlDeviceGetUUID(instance), index, name, uuid))
    return instances


def _named(entry: str, cards: list[list[Card]]) -> Card | None:
    """Return the device that an entry of CUDA_VISIBLE_DEVICES names; None if there is none."""
    if entry.isdecimal():
        return next(iter(cards[int(entry)]), None) if int(entry) < len(cards) else None
    chosen: list[Card] = []
    for instances in filter(None, cards):
        if entry.startswith("MIG-"):
            chosen += [card for card in instances if card.uuid.startswith(entry)]
        elif entry.startswith("GPU-"):
            first = instances[0]
            chosen += [first] if (first.parent or first.uuid).startswith(entry) else []
    return chosen[0] if len(chosen) == 1 else None


if __name__ == "__main__":
    print(json.dumps(names()))

"""NVIDIA devices that a CUDA program sees: the only module that imports nvidia-ml-py.

As a program it prints their names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Devices that a CUDA program sees.
VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVER = Path("/dev/nvidiactl")  # exists where programs reach a GPU
LIBRARY = "libnvidia-ml.so.1"
ANSWER_SECONDS = 2
UNKNOWN = "not known: the NVIDIA driver gave no answer"

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
    """GPU of a CUDA program. `index`: in the order of the PCI bus."""

    uuid: str
    index: int
    name: str


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
        handle = self._handle = pynvml.nvmlDeviceGetHandleByUUID(card.uuid)
        clock, celsius = pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_TEMPERATURE_GPU
        self._readings: dict[str, Callable[[], float]] = {
            "memory_usage_megabytes": lambda: self.memory().used / 1e6,
            "utilization_percentage": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "temperature_celsius": lambda: pynvml.nvmlDeviceGetTemperature(handle, celsius),
            "power_usage_watts": lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1_000,
            "clock_megahertz": lambda: clock(handle, pynvml.NVML_CLOCK_SM),
            "memory_clock_megahertz": lambda: clock(handle, pynvml.NVML_CLOCK_MEM),
            "clock_limits": self._clock_limits,
        }

    def read(self) -> dict[str, float]:
        """Return the readings that the device supports, by name.

        `clock_limits` is NVML's mask of reasons.
        """
        readings = {name: self._try(name, reading) for name, reading in self._readings.items()}
        return {name: value for name, value in readings.items() if value is not None}

    def joules(self) -> float | None:
        """Return the device's energy counter since its driver was loaded."""
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

    def _clock_limits(self) -> float:
        try:
            return float(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
        except self._nvml.NVMLError_FunctionNotFound:  # drivers before 535
            return float(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))

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
    shortened. The first entry that names no device ends the list.

    Args:
        variables: of the process; those of this one by default.

    Raises:
        pynvml.NVMLError: if there is no driver.
    """
    cards, chosen = _cards(), list[Card]()
    text = (os.environ if variables is None else variables).get(VISIBLE)
    if text is None:
        return tuple(cards)
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
    by_uuid = {card.uuid: card for card in _cards()}
    cards = [by_uuid[uuid] for uuid in uuids] or visible_cards()[:1]
    if not cards:
        raise LookupError(f"{VISIBLE}={os.environ.get(VISIBLE, '')} names no device")
    return list(map(Gpu, cards))


def names() -> list[str]:
    """Return CUDA's devices by name, driver, power limit and clock; empty if there is none."""
    try:
        cards = visible_cards()
        import pynvml

        driver = pynvml.nvmlSystemGetDriverVersion()
        return [
            f"{card.name} ({', '.join([f'driver {driver}', *_limits(card)])})" for card in cards
        ]
    except Exception:  # NVML has an error class for each cause: there is no usable device
        return []


def _limits(card: Card) -> Iterator[str]:
    """Yield the set power limit and the highest clock, as far as the driver reports them."""
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByUUID(card.uuid)
    with suppress(pynvml.NVMLError):
        yield f"{pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1_000:.0f} W"
    with suppress(pynvml.NVMLError):
        megahertz = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
        yield f"up to {megahertz} MHz"


def names_from_helper() -> list[str]:
    """Return `names()` of another process, which a driver may hang or end; else `UNKNOWN`.

    No process starts where neither a device nor a library path shows a driver.
    """
    folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    if not any(path.exists() for path in (DRIVER, *(Path(text, LIBRARY) for text in folders))):
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


def _cards() -> list[Card]:
    """Return the GPUs in the order of the PCI bus."""
    import pynvml

    pynvml.nvmlInit()
    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    return [
        Card(pynvml.nvmlDeviceGetUUID(handle), index, pynvml.nvmlDeviceGetName(handle))
        for index, handle in enumerate(handles)
    ]


def _named(entry: str, cards: Sequence[Card]) -> Card | None:
    """Return the GPU that an entry of CUDA_VISIBLE_DEVICES names; None if there is none."""
    if entry.isdecimal():
        return cards[int(entry)] if int(entry) < len(cards) else None
    is_uuid = entry.startswith("GPU-")
    chosen = [card for card in cards if is_uuid and card.uuid.startswith(entry)]
    return chosen[0] if len(chosen) == 1 else None


if __name__ == "__main__":
    print(json.dumps(names()))

"""Processor, memory, disk and network of the machine, and the share of processes, from psutil."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import psutil

CPU_TEMPERATURE = "cpu_temperature_celsius"
CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")


class Host:
    """Readings of the machine and of one process. `missing`: reason by sensor."""

    def __init__(self, pid: int | None) -> None:
        self._process = psutil.Process(pid) if pid else None
        self._ranks: Mapping[int, psutil.Process] = {}
        self._network = psutil.net_io_counters()
        chips = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
        self._chip = next((chip for chip in CHIPS if chips.get(chip)), "")
        self.missing: dict[str, str] = {}
        if not self._chip:
            self.missing["cpu_temperature"] = "the system shows no CPU temperature sensor"
        psutil.cpu_percent()  # counts from here on

    def follow(self, ranks: Mapping[int, int]) -> None:
        """Read these processes too from now on. `ranks`: process id by rank."""
        processes = {}
        for rank, pid in ranks.items():
            with suppress(psutil.Error):
                processes[rank] = psutil.Process(pid)
                processes[rank].cpu_percent()  # counts from here on
        self._ranks = processes

    def read(self) -> dict[str, float]:
        memory, disk = psutil.virtual_memory(), psutil.disk_usage("/")
        network = psutil.net_io_counters()
        values = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / 1e6,
            "system_memory_usage_percentage": memory.percent,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / 1e6,
            "disk_available_megabytes": disk.free / 1e6,
            "network_receive_megabytes": (network.bytes_recv - self._network.bytes_recv) / 1e6,
            "network_transmit_megabytes": (network.bytes_sent - self._network.bytes_sent) / 1e6,
        }
        if self._chip:
            values[CPU_TEMPERATURE] = psutil.sensors_temperatures()[self._chip][0].current
        if self._process:
            values |= _read_process(self._process, "process")
        for rank, process in self._ranks.items():
            values |= _read_process(process, f"rank_{rank}_process")
        return values


def _read_process(process: psutil.Process, prefix: str) -> dict[str, float]:
    try:
        with process.oneshot():
            megabytes, percentage = process.memory_info().rss / 1e6, process.cpu_percent()
    except psutil.Error:  # it has just ended
        return {}
    return {f"{prefix}_rss_megabytes": megabytes, f"{prefix}_cpu_percentage": percentage}


def process_name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "a process"

"""Processor, memory, disk and network of the machine, and the share of one process in them, as psutil tells."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import psutil

CPU_TEMPERATURE = "cpu_temperature_celsius"
CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")


class Host:
    """missing: sensor -> why it is not there."""

    def __init__(self, pid: int | None) -> None:
        self.missing: dict[str, str] = {}
        self._process = psutil.Process(pid) if pid else None
        self._ranks: Mapping[int, psutil.Process] = {}
        self._chip = self._find_chip()
        self._network = psutil.net_io_counters()
        psutil.cpu_percent()

    def follow(self, ranks: Mapping[int, int]) -> None:
        """Reads these processes as well from now on, and no others. ranks: rank -> process id."""
        found = {}
        for rank, pid in ranks.items():
            with suppress(psutil.Error):
                found[rank] = psutil.Process(pid)
                found[rank].cpu_percent()  # counts from here on
        self._ranks = found

    def read(self) -> dict[str, float]:
        values = {**self._machine(), **_of_process(self._process)}
        for rank, process in self._ranks.items():
            values |= {f"rank_{rank}_{name}": value for name, value in _of_process(process).items()}
        return values

    def _machine(self) -> dict[str, float]:
        memory, disk, network = (
            psutil.virtual_memory(),
            psutil.disk_usage("/"),
            psutil.net_io_counters(),
        )
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
        return values

    def _find_chip(self) -> str:
        found = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
        for chip in CHIPS:
            if found.get(chip):
                return chip
        self.missing["cpu_temperature"] = "the system shows no CPU temperature sensor"
        return ""


def _of_process(process: psutil.Process | None) -> dict[str, float]:
    if process is None:
        return {}
    try:
        with process.oneshot():
            rss, used = process.memory_info().rss, process.cpu_percent()
        return {"process_rss_megabytes": rss / 1e6, "process_cpu_percentage": used}
    except psutil.Error:  # it has just ended
        return {}

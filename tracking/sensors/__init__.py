"""Utilisation, memory, temperature, clocks, power and energy of a process and its machine.

Sources are psutil, NVML and RAPL. Keys below `system/` have the names and units of MLflow's own
sampler, so that the UI's system tab shows both alike. A sensor that is missing is named with its
reason in `missing`, never a zero.
"""

from __future__ import annotations

from tracking.sensors.sampler import OTHERS, Sample, Sampler, Sensors
from tracking.sensors.windows import (
    Summary,
    Window,
    summarise,
)

__all__ = [
    "OTHERS",
    "Sample",
    "Sampler",
    "Sensors",
    "Summary",
    "Window",
    "summarise",
]

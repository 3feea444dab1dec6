"""Energy of processor packages: RAPL counters below /sys/class/powercap, where they may be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Package:
    """One counter; it falls back to zero at `range_joules`."""

    name: str
    path: Path
    range_joules: float

    def joules(self) -> float:
        return int(self.path.read_text()) / 1e6


def find(folder: Path = POWERCAP) -> tuple[list[Package], str]:
    """The packages that can be read, and why there are none or not all."""
    found, reason = [], f"no RAPL counter in {folder}"
    for zone in sorted(folder.glob("intel-rapl:[0-9]*")):
        if zone.name.count(":") == 1:
            try:
                package = Package(zone.name, zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()) / 1e6)
                package.joules()
                found.append(package)
                reason = ""
            except (OSError, ValueError) as error:
                reason = f"{zone.name} cannot be read: {error}"
    return found, reason

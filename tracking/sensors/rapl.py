"""Energy of processor packages: RAPL counters below /sys/class/powercap."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Package:
    """Counter of a processor package; it falls back to zero at `range_joules`."""

    name: str
    path: Path
    range_joules: float

    def joules(self) -> float:
        """Read the counter.

        Returns:
            Joules since an arbitrary moment: only differences have a meaning.

        Raises:
            OSError: This user may not read it.
        """
        return int(self.path.read_text()) / 1e6


def find_packages(folder: Path = POWERCAP) -> tuple[list[Package], str]:
    """Return the counters of all processor packages, or none and the reason.

    Zones are identified by their `name`: `psys` contains the packages, and the zones inside of a
    package (`core`, `uncore`) its parts; `dram` is not part of a package and is not counted. If
    one package cannot be read there are none, since the others' sum would pass for the machine's
    energy.
    """
    packages, unreadable = list[Package](), list[str]()
    for zone in sorted(folder.glob("intel-rapl:[0-9]*")):
        try:
            if zone.name.count(":") > 1 or not (zone / "name").read_text().startswith("package"):
                continue
            range_joules = int((zone / "max_energy_range_uj").read_text()) / 1e6
            package = Package(zone.name, zone / "energy_uj", range_joules)
            package.joules()
            packages.append(package)
        except (OSError, ValueError) as error:
            unreadable.append(f"{zone.name} cannot be read: {error}")
    if unreadable:
        return [], "; ".join(unreadable)
    return packages, "" if packages else f"no RAPL counter of a processor package in {folder}"

"""CPUs of a campaign's processes, and the setup of the machine: files of kernels, processes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from experiments.config import devices
from experiments.config.settings import CampaignSettings
from experiments.run.machine_state import MachineState
from tests.conftest import Place
from tests.experiments.test_until_settled import TOYS
from tracking import cpus, tuning
from tracking.store import Store

PINNED = CampaignSettings(pin="auto")


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def write_cores(root: Path, *cores: str) -> Path:
    """Write which CPUs are threads of one core: `0,4`, or `0-1`."""
    files = {}
    for listed in cores:
        low, dash, high = listed.partition("-")
        numbers = range(int(low), int(high) + 1) if dash else map(int, listed.split(","))
        for number in numbers:
            folder = f"sys/devices/system/cpu/cpu{number}/topology"
            files[f"{folder}/thread_siblings_list"] = f"{listed}\n"
    return write_files(root, files)


FOUR_CORES = ("0,4", "1,5", "2,6", "3,7")


def test_cpus_are_grouped_by_core(tmp_path: Path) -> None:
    root = write_cores(tmp_path / "far", *FOUR_CORES)
    assert cpus.cores(range(8), root) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert cpus.cores([4, 5, 1], root) == [(1, 5), (4,)]
    near = write_cores(tmp_path / "near", "0-1", "2-3")
    assert cpus.cores(range(4), near) == [(0, 1), (2, 3)]
    assert cpus.cores(range(3), tmp_path / "unknown") == [(0,), (1,), (2,)]


@pytest.mark.parametrize(
    ("cores", "available", "expected"),
    [
        (FOUR_CORES, range(8), (1, 2, 3)),
        (FOUR_CORES, (2, 3, 6), (2, 3)),
        (("0", "1", "2"), range(3), (1, 2)),
        (("0", "1"), range(2), (0, 1)),
        (("0-1",), range(2), (0,)),
    ],
)
def test_parent_and_cells_share_no_core(
    cores: Sequence[str], available: Sequence[int], expected: tuple[int, ...], tmp_path: Path
) -> None:
    root = write_cores(tmp_path, *cores)
    assert devices.cpus_of_cells(PINNED, available, root) == expected


def test_pinned_campaign_records_cpus(place: Place) -> None:
    done = place.run(**{**TOYS, "frameworks": "toy", "threads": "0"}, blocks="1", pin="auto")
    assert done.returncode == 3, done.stdout + done.stderr
    runs = {run.tags["kind"]: run for run in Store(place.uri).runs("captioning")}
    cell, expected = runs["cell"], devices.cpus_of_cells(PINNED)
    assert cell.params["pin"] == "auto"
    assert cell.tags["pinned.cell"] == ",".join(map(str, expected))
    (environment,) = place.journal.glob("*/cells/*/*/environment.json")
    assert json.loads(environment.read_text())["cpus"]["affinity"] == len(expected)
    setup, missing = tuning.look()
    for name in {"governor", "turbo", "aslr"} & setup.keys():  # the others change any moment
        assert cell.tags[f"machine.{name}"] == setup[name]
    names = {f"not_available.machine_{name}" for name in missing}
    assert names <= set(runs["campaign"].tags)


# ---- setup of the machine

PRESSURE = "avg60=0.00 avg300=0.00 total=1\n"
LAPTOP = {
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
    "proc/sys/kernel/randomize_va_space": "2\n",
    "proc/meminfo": "MemTotal: 8 kB\nSwapTotal:  2097152 kB\nSwapFree:  1572864 kB\n",
    "proc/pressure/memory": f"some avg10=12.50 {PRESSURE}full avg10=1.00 {PRESSURE}",
}


def test_kernel_setup_is_read(tmp_path: Path) -> None:
    setup, missing = tuning.look(write_files(tmp_path, LAPTOP))
    assert setup == {
        "governor": "performance, powersave",
        "turbo": "on",
        "aslr": "on",
        "swap": "512 of 2,048 MiB used",
        "memory_pressure": "12.5 %",
    }
    assert missing == {}
    assert tuning.memory_pressure(tmp_path) == 12.5


def test_memory_pressure_is_a_trouble() -> None:
    (trouble,) = MachineState(memory_pressure_percent=12.5).troubles
    assert "12 %" in trouble
    assert MachineState(memory_pressure_percent=9.0).troubles == ()
    state = MachineState(setup={"turbo": "on"}, not_available={"governor": "no cpufreq"})
    assert state.tags == {"machine.turbo": "on"}

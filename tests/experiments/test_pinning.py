"""Where a campaign's processes run, and how the machine is set up: files as kernels have them, and real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.config import devices
from experiments.config.devices import Placement, placement
from experiments.config.settings import CampaignSettings
from experiments.run import machine_state
from experiments.run.machine_state import MachineState
from tests.conftest import Place
from tests.experiments.test_until_settled import TOYS
from tracking import cpus, tuning
from tracking.store import Store


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def machine(root: Path, cores: Sequence[str]) -> Path:
    """A file system that says which CPUs are threads of one core: `0,4`, or `0-1`."""
    files = {}
    for listed in cores:
        low, dash, high = listed.partition("-")
        for number in range(int(low), int(high) + 1) if dash else map(int, listed.split(",")):
            files[f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"] = (
                f"{listed}\n"
            )
    return written(root, files)


FOUR_WITH_TWO = ("0,4", "1,5", "2,6", "3,7")


def test_cpus_are_grouped_by_core(tmp_path: Path) -> None:
    assert cpus.cores(range(8), machine(tmp_path / "far", FOUR_WITH_TWO)) == [
        (0, 4),
        (1, 5),
        (2, 6),
        (3, 7),
    ]
    assert cpus.cores([4, 5, 1], machine(tmp_path / "far", FOUR_WITH_TWO)) == [(1, 5), (4,)]
    assert cpus.cores(range(4), machine(tmp_path / "near", ("0-1", "2-3"))) == [(0, 1), (2, 3)]
    assert cpus.cores(range(3), tmp_path / "untold") == [(0,), (1,), (2,)]


@pytest.mark.parametrize(
    ("cores", "cpu_numbers", "expected"),
    [
        (FOUR_WITH_TWO, range(8), Placement((1, 2, 3), (0, 4))),
        (FOUR_WITH_TWO, (2, 3, 6), Placement((2, 3))),
        (("0", "1", "2"), range(3), Placement((1, 2), (0,))),
        (("0", "1"), range(2), Placement((0, 1))),
        (("0-1",), range(2), Placement((0,))),
    ],
)
def test_no_core_is_shared(
    cores: Sequence[str], cpu_numbers: Sequence[int], expected: Placement, tmp_path: Path
) -> None:
    settings = replace(CampaignSettings(), pin="auto")
    assert placement(settings, cpu_numbers, machine(tmp_path, cores)) == expected


def test_pinning_applies_to_threads_and_children() -> None:
    mine, go_on, inside = os.sched_getaffinity(0), threading.Event(), list[set[int]]()
    waiting = threading.Thread(
        target=lambda: (go_on.wait(60), inside.append(os.sched_getaffinity(0)))
    )
    waiting.start()
    one = {min(mine)}
    with devices.staying_on(one):
        go_on.set()
        waiting.join()
        told = "import os; print(*os.sched_getaffinity(0))"
        child = subprocess.run(
            [sys.executable, "-c", told], capture_output=True, text=True, check=True
        ).stdout
    assert inside == [one]
    assert set(map(int, child.split())) == one
    assert os.sched_getaffinity(0) == mine
    with devices.staying_on(()):
        assert os.sched_getaffinity(0) == mine


def test_pinned_campaign_records_cpus(place: Place) -> None:
    done = place.run(**{**TOYS, "frameworks": "toy", "threads": "0"}, blocks="1", pin="auto")
    assert done.returncode == 3, done.stdout + done.stderr
    (cell,) = (run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "cell")
    expected = placement(replace(CampaignSettings(), pin="auto"))
    assert cell.params["pin"] == "auto"
    assert cell.tags["pinned.cell"] == ",".join(map(str, expected.cells))
    assert cell.tags.get("pinned.parent", "") == ",".join(map(str, expected.parent))
    (environment,) = place.journal.glob("*/cells/*/*/environment.json")
    assert json.loads(environment.read_text())["cpus"]["affinity"] == len(expected.cells)
    told, missing = tuning.look()
    # what changes from one moment to the next is there, and what does not is the same
    assert {
        name: cell.tags[f"machine.{name}"] for name in told if name in ("governor", "turbo", "aslr")
    } == {name: told[name] for name in told if name in ("governor", "turbo", "aslr")}
    campaign = next(
        run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "campaign"
    )
    assert {f"not_available.machine_{name}" for name in missing} <= set(campaign.tags)


# ---- how the machine is set up

LAPTOP = {
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
    "proc/sys/kernel/randomize_va_space": "2\n",
    "proc/meminfo": "MemTotal: 8 kB\nSwapTotal:  2097152 kB\nSwapFree:  1572864 kB\n",
    "proc/pressure/memory": "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=1\n",
}


def test_kernel_setup_is_read(tmp_path: Path) -> None:
    told, missing = tuning.look(written(tmp_path, LAPTOP))
    assert told == {
        "governor": "performance, powersave",
        "turbo": "on",
        "aslr": "on",
        "swap": "512 of 2,048 MiB used",
        "memory_pressure": "12.5 %",
    }
    assert missing == {}
    assert tuning.memory_pressure(tmp_path) == 12.5


def test_memory_pressure_is_a_trouble() -> None:
    short = MachineState(memory_pressure_percent=12.5)
    assert short.troubles == (
        "memory was short at the start: processes waited for it 12 % of the time",
    )
    assert MachineState(memory_pressure_percent=9.0).troubles == ()
    state = MachineState(
        setup={"turbo": "on"}, not_available={"governor": "the kernel shows no cpufreq"}
    )
    assert machine_state.from_values(json.loads(json.dumps(vars(state)))) == state
    assert state.tags == {"machine.turbo": "on"}

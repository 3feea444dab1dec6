"""Sensors of a process, NVML's on a driver of the tests; a missing sensor is named, never zero."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.tracking.nvml import UUIDS, Driver, driver, library  # noqa: F401
from tracking.sensors import (
    Sample,
    Sensors,
    Window,
    rapl,
    summarise,
)


def test_ranks_are_read_until_they_end() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        sensors = Sensors(os.getpid())
        assert not any("rank" in key for key in sensors.read().values)
        sensors.follow({0: os.getpid(), 3: other.pid})
        process = psutil.Process(other.pid)
        while process.cpu_times().user < 0.2:
            time.sleep(0.02)
        values = sensors.read().values
        other.kill()
        other.wait()
        later = sensors.read().values
    rss = values["system/process_rss_megabytes"]
    assert values["system/rank_0_process_rss_megabytes"] == pytest.approx(rss, rel=0.1)
    assert values["system/rank_3_process_rss_megabytes"] > 1
    assert values["system/rank_3_process_cpu_percentage"] > 0
    assert "system/rank_0_process_rss_megabytes" in later
    assert not any("rank_3" in key for key in later)


# ---- NVML


READ = """
import json, os
from tracking.sensors import Sensors
sensors = Sensors(os.getpid(), "cuda")
sample = sensors.read()
gpu = {key[13:]: value for key, value in sample.values.items() if key.startswith("system/gpu_0_")}
print(json.dumps([gpu, sample.counters_joules, sensors.missing, sensors.gpus]))
"""


def test_readings_of_a_gpu_have_their_units(driver: Driver) -> None:
    driver.answers(clock_limits=0x24)
    expected = {
        "memory_usage_megabytes": 2_000,
        "utilization_percentage": 87,
        "temperature_celsius": 61,
        "power_usage_watts": 250,
        "clock_megahertz": 1_410,
        "memory_clock_megahertz": 2_619,
        "clock_limits": 0x24,
    }
    values, counters, missing, gpus = json.loads(driver.python(READ))
    assert (values, gpus) == (expected, ["gpu_0"])
    assert counters["gpu_0"] > 0
    assert missing["gpu_0_process_memory"]
    driver.answers(celsius=None, counter_seconds=None)
    values, counters, missing, _ = json.loads(driver.python(READ))
    assert "temperature_celsius" not in values
    assert "gpu_0" not in counters
    reasons = {missing["gpu_0_temperature_celsius"], missing["gpu_0_energy"]}
    assert reasons == {"Not Supported"}


TREE = """
import json, os, subprocess, sys
from tracking.sensors import Sensors
holds = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
starts = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
command = [sys.executable, "-c", starts, holds]
cell = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
child = int(cell.stdout.readline())
sensors = Sensors(cell.pid, "cuda")
readings = []
for line in sys.argv[1:]:
    with open(os.environ["NVML_ANSWERS"], "w") as file:
        file.write(line.format(cell=cell.pid, child=child))
    values = sensors.read().values
    names = ("process_memory_megabytes", "other_processes")
    missing = sensors.missing.get("gpu_0_process_memory", "")
    readings.append([*(values.get(f"system/gpu_0_{name}") for name in names), bool(missing)])
os.killpg(cell.pid, 9)
cell.wait()
print(json.dumps([readings, sensors.others, sensors.missing.get("gpu_0_other_processes", "")]))
"""


def test_memory_of_a_cell_and_its_children_is_read_and_others_are_counted(driver: Driver) -> None:
    """A cell, the child of its child, and this test's process hold memory; one size is hidden."""
    cell, child = "pid {cell} process_bytes 1e8 ", "child_pid {child} child_bytes 6e8 "
    other = f"other_pid {os.getpid()} other_bytes 3e8"
    lines = {
        other: [None, None, True],
        child + other: [600, 1, False],
        cell + child + other: [700, 1, False],
        cell + child: [700, 0, False],
        cell + "child_pid {child}": [None, 0, True],
        other + " ": [None, None, True],
        "pid 4000000 other_pid 4000001": [None, None, True],
    }
    readings, others, missing = json.loads(driver.python(TREE, lines))
    assert readings == list(lines.values())
    assert (others, missing) == ({str(os.getpid()): psutil.Process().name()}, "")


VISIBLE = """
import json, os, sys
from tracking import nvml
from tracking.sensors import Sensors
devices = []
for text in sys.argv[1:]:
    os.environ["CUDA_VISIBLE_DEVICES"] = text
    sensors = Sensors(os.getpid(), "cuda")
    uuids = [card.uuid for card in nvml.visible_cards()]
    devices.append([uuids, sensors.gpus, nvml.names(), sensors.missing.get("gpu", "")])
del os.environ["CUDA_VISIBLE_DEVICES"]
print(json.dumps([devices, [card.uuid for card in nvml.visible_cards()]]))
"""
# What CUDA_VISIBLE_DEVICES holds, and the GPUs that CUDA shows then.
CARDS: dict[str, list[int]] = {
    "3,1": [3, 1],
    "1,7,0": [1],
    "0,-1,1": [0],
    "": [],
    "NoDevFiles": [],
    "1,1": [],
    "GPU-000000a2,0": [2, 0],
    "GPU-0000": [],
    UUIDS[1]: [1],
    "MIG-000000a0": [],
}


def test_devices_are_those_that_cuda_sees(driver: Driver) -> None:
    driver.answers(cards=4)
    devices, without_variable = json.loads(driver.python(VISIBLE, CARDS))
    assert without_variable == UUIDS
    for (uuids, keys, names, missing), cards in zip(devices, CARDS.values(), strict=True):
        assert uuids == [UUIDS[index] for index in cards]
        assert keys == [f"gpu_{index}" for index in cards[:1]]
        assert names == ["Test GPU (driver 600.00, 700 W, up to 1980 MHz)"] * len(cards)
        assert bool(missing) == (not cards)


SAMPLE = """
import json, os, time
from tracking.sensors import Sampler, Sensors, Window, summarise
sampler = Sampler(Sensors(os.getpid(), "cuda"), 0.05, lambda _: None)
sampler.start()
time.sleep(0.3)
began = time.time()
time.sleep(1.0)
finished = time.time()
time.sleep(0.1)
sampler.stop()
window = Window("", began, finished, 100)
summary = summarise(sampler.samples, window, gpus=sampler.sensors.gpus, ranges_joules={})
print(json.dumps([summary.metrics, summary.missing, summary.throttled, finished - began]))
"""


def test_energy_is_the_counters_rise_over_the_window(driver: Driver) -> None:
    driver.answers(clock_limits=0x40)
    metrics, missing, throttled, seconds = json.loads(driver.python(SAMPLE))
    expected = {"power/watts_mean": 250, "energy/joules": 250 * seconds}
    expected |= {"energy/joules_per_example": 2.5 * seconds, "gpu/clock_megahertz_mean": 1_410}
    expected["gpu/temperature_celsius_max"] = 61
    # the counter moves every 20 ms, 2 % of the window, at each end
    assert {key: metrics[key] for key in expected} == pytest.approx(expected, rel=0.05)
    assert (throttled, missing) == ({"hardware thermal slowdown": 1.0}, {})


# ---- windows


def sample(second: float, joules: float, celsius: float = 40.0) -> Sample:
    values = {
        "system/cpu_utilization_percentage": 10 * second,
        "system/gpu_0_temperature_celsius": celsius,
    }
    return Sample(second, values, {"gpu_0": joules})


def test_summary_covers_the_window_only() -> None:
    times, celsius = (0, 1, 2, 3, 4, 9), (90, 40, 42, 44, 46, 99)
    joules = [0, 100, 150, 200, 250, 10_000]
    samples = [sample(*reading) for reading in zip(times, joules, celsius, strict=True)]
    metrics = summarise(samples, Window("", 1, 4, 200), gpus=["gpu_0"], ranges_joules={}).metrics
    assert metrics == pytest.approx(
        {
            "cpu/utilization_percent_mean": 25,
            "gpu/temperature_celsius_max": 46,
            "gpu/temperature_celsius_mean": 43,
            "power/watts_mean": 50,  # (250 − 100) J in 3 s
            "energy/joules": 150,
            "energy/joules_per_example": 0.75,
        }
    )
    for prefix, inside in (("", []), ("inference/", samples[:1])):
        empty = summarise(inside, Window(prefix, 1, 1.5, 10), ranges_joules={})
        assert (empty.metrics, empty.throttled) == ({}, {})
        assert f"{prefix}sensors" in empty.missing


def test_pauses_and_wrapped_counters_change_no_energy() -> None:
    """Train with 10 W, and validate from 4 to 6 s with 1,000 W and 90 °C."""
    watts = [10, 10, 10, 10, 1_000, 1_000, 10, 10, 10, 10]
    joules = [(900 + sum(watts[:at])) % 1_000 for at in range(11)]
    samples = [sample(at, joules[at], 90 if at == 5 else 40) for at in range(11)]
    window, ranges = Window("", 0, 10, 8, pauses=((4, 6),)), {"gpu_0": 1_000.0}
    metrics = summarise(samples, window, gpus=["gpu_0"], ranges_joules=ranges).metrics
    assert metrics == pytest.approx(
        {
            "cpu/utilization_percent_mean": 10 * sum({*range(11)} - {5}) / 10,
            "gpu/temperature_celsius_mean": 40,
            "gpu/temperature_celsius_max": 40,
            "energy/joules": 8 * 10,
            "power/watts_mean": 10,
            "energy/joules_per_example": 10,
        }
    )


def test_readings_of_several_gpus_are_summed_or_averaged() -> None:
    readings = {
        "utilization_percentage": (80, 40),
        "temperature_celsius": (60, 50),
        "clock_megahertz": (1_080, 1_040),
        "process_memory_megabytes": (100, 300),
    }
    samples = []
    for at in range(6):
        values = {f"system/gpu_0_{name}": first for name, (first, _) in readings.items()}
        values |= {f"system/gpu_2_{name}": second for name, (_, second) in readings.items()}
        values["system/gpu_2_temperature_celsius"] += at
        samples.append(Sample(at, values, {"gpu_0": 100.0 * at, "gpu_2": 50.0 * at}))
    gpus, window = ["gpu_0", "gpu_2"], Window("", 0, 5, 10)
    assert summarise(samples, window, gpus=gpus, ranges_joules={}).metrics == pytest.approx(
        {
            "gpu/utilization_percent_mean": 60,
            "gpu/temperature_celsius_mean": (60 + 52.5) / 2,
            "gpu/temperature_celsius_max": 60,
            "gpu/clock_megahertz_mean": 1_060,
            "memory/peak_device_process_bytes": 400e6,
            "energy/joules": 750,
            "power/watts_mean": 150,
            "energy/joules_per_example": 75,
        }
    )


# ---- RAPL


def zone(folder: Path, zone_name: str, name: str, joules: str = "5.5") -> None:
    """Write a zone as the kernel shows it; `name` is what it measures."""
    (folder / zone_name).mkdir()
    (folder / zone_name / "name").write_text(f"{name}\n")
    (folder / zone_name / "max_energy_range_uj").write_text("262143328850\n")
    if joules:
        (folder / zone_name / "energy_uj").write_text(f"{float(joules) * 1e6:.0f}\n")


def test_processor_packages_are_counted_once(tmp_path: Path) -> None:
    zones = {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1", "intel-rapl:2": "psys"}
    zones |= {"intel-rapl:0:0": "core", "intel-rapl:0:2": "dram", "intel-rapl-mmio:0": "package-0"}
    for zone_name, name in zones.items():
        zone(tmp_path, zone_name, name)
    packages, reason = rapl.find_packages(tmp_path)
    assert reason == ""
    assert [(package.name, package.joules(), package.range_joules) for package in packages] == [
        (name, 5.5, pytest.approx(262_143.3)) for name in ("intel-rapl:0", "intel-rapl:1")
    ]


def test_package_that_cannot_be_read_leaves_no_energy(tmp_path: Path) -> None:
    """The sum of the others would pass for the machine's."""
    zone(tmp_path, "intel-rapl:2", "psys")
    assert rapl.find_packages(tmp_path)[0] == []
    zone(tmp_path, "intel-rapl:0", "package-0", joules="")
    zone(tmp_path, "intel-rapl:1", "package-1")
    packages, reason = rapl.find_packages(tmp_path)
    assert packages == []
    assert reason.startswith("intel-rapl:0 ")

"""Sensors of a real process, NVML's on a driver that answers as told; what is not there is named, never zero."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.tracking.nvml import INSTANCES, UUIDS, Driver, driver, library  # noqa: F401
from tracking.sensors import (
    Sample,
    Sensors,
    Window,
    is_steady,
    rapl,
    summarise,
)
from tracking.sensors.nvml import SHARED_CARD


def test_every_rank_is_read_with_its_number() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        sensors = Sensors(os.getpid())
        assert not any("rank" in key for key in sensors.read().values)
        sensors.follow({0: os.getpid(), 3: other.pid})
        busy = psutil.Process(other.pid)
        while busy.cpu_times().user < 0.2:
            time.sleep(0.02)
        values = sensors.read().values
        other.kill()
        other.wait()
        gone = sensors.read().values
    assert values["system/rank_0_process_rss_megabytes"] == pytest.approx(
        values["system/process_rss_megabytes"], rel=0.1
    )
    assert values["system/rank_3_process_rss_megabytes"] > 1
    assert values["system/rank_3_process_cpu_percentage"] > 0
    assert "system/rank_0_process_rss_megabytes" in gone
    assert not any("rank_3" in key for key in gone), "one that has ended says nothing more"


# ---- NVML


READ = """
import json, os
from tracking.sensors import Sensors
sensors = Sensors(os.getpid(), "cuda")
sample = sensors.read()
print(json.dumps([sample.values, sample.counters_joules, sensors.missing, sensors.gpus]))
"""


def test_everything_that_a_gpu_tells_in_its_units(driver: Driver) -> None:
    driver.answers(clock_limits=0x24)
    values, counters, missing, gpu = json.loads(driver.python(READ))
    told = {
        key.removeprefix("system/gpu_0_"): value
        for key, value in values.items()
        if key.startswith("system/gpu_0_")
    }
    assert told == {
        "memory_usage_megabytes": 2_000,
        "utilization_percentage": 87,
        "temperature_celsius": 61,
        "power_usage_watts": 250,
        "clock_megahertz": 1_410,
        "memory_clock_megahertz": 2_619,
        "clock_limits": 0x24,
    }
    assert gpu == ["gpu_0"]
    assert counters["gpu_0"] > 0
    assert missing["gpu_0_process_memory"] == "the driver does not report what this process holds"


def test_the_memory_of_the_measured_process(driver: Driver) -> None:
    script = READ.replace(
        "import json, os\n",
        "import json, os, sys\nopen(os.environ['NVML_ANSWERS'], 'a').write(LINES)\n",
    )
    values, _, missing, _ = json.loads(
        driver.python(script.replace("LINES", "f'pid {os.getpid()}\\nprocess_bytes 750000000\\n'"))
    )
    assert values["system/gpu_0_process_memory_megabytes"] == 750
    assert "gpu_0_process_memory" not in missing
    driver.answers()
    values, _, missing, _ = json.loads(
        driver.python(script.replace("LINES", "f'pid {os.getpid()}\\n'"))
    )
    assert (
        "system/gpu_0_process_memory_megabytes" not in values
    )  # the driver lists it, but keeps its size to itself


def test_what_a_gpu_does_not_support_is_missing_with_the_drivers_word(driver: Driver) -> None:
    driver.answers(celsius=None, counter_seconds=None)
    values, counters, missing, _ = json.loads(driver.python(READ))
    assert "system/gpu_0_temperature_celsius" not in values
    assert "gpu_0" not in counters
    assert (missing["gpu_0_temperature_celsius"], missing["gpu_0_energy"]) == (
        "Not Supported",
        "Not Supported",
    )


VISIBLE = """
import json, os, sys
from tracking.sensors import Sensors, nvml
found = []
for text in sys.argv[1:]:
    os.environ["CUDA_VISIBLE_DEVICES"] = text
    sensors = Sensors(os.getpid(), "cuda")
    uuids = [card.uuid for card in nvml.visible()]
    found.append([uuids, sensors.gpus, nvml.names(), sensors.missing.get("gpu", "")])
del os.environ["CUDA_VISIBLE_DEVICES"]
print(json.dumps([found, [card.uuid for card in nvml.visible()]]))
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
}
# The same of two GPUs, the first of which is divided into two MIG instances.
MIG_CARDS = {
    INSTANCES[1]: INSTANCES[1:],
    "MIG-000000a0-0002": INSTANCES[1:],
    UUIDS[0]: INSTANCES[:1],
    "0,1": [INSTANCES[0], UUIDS[1]],
    "MIG-ffff": [],
}


def test_the_devices_are_those_that_cuda_sees(driver: Driver) -> None:
    driver.answers(cards=4)
    found, without = json.loads(driver.python(VISIBLE, CARDS))
    assert without == UUIDS
    for (uuids, keys, names, missing), cards in zip(found, CARDS.values(), strict=True):
        assert uuids == [UUIDS[index] for index in cards]
        assert keys == [f"gpu_{index}" for index in cards[:1]]
        assert names == ["Test GPU (driver 600.00)"] * len(cards)
        assert bool(missing) == (not cards)


def test_mig_instances_are_devices_of_their_own(driver: Driver) -> None:
    driver.answers({"0.instances": 2}, cards=2)
    found, _ = json.loads(driver.python(VISIBLE, MIG_CARDS))
    for (uuids, keys, names, _), expected in zip(found, MIG_CARDS.values(), strict=True):
        assert uuids == expected
        assert keys == ["gpu_0"] * bool(expected)
        assert not expected or names[0].startswith("Test GPU")
    assert found[0][2] == ["Test GPU MIG 1g.10gb (driver 600.00)"]


def test_a_mig_instance_has_the_sensors_that_are_its_own(driver: Driver) -> None:
    """The card's temperature and clocks are the instance's; its power and energy are of all instances together."""
    driver.answers({"0.instances": 2})
    values, counters, missing, _ = json.loads(
        driver.python(READ, CUDA_VISIBLE_DEVICES=INSTANCES[1])
    )
    told = {key.removeprefix("system/gpu_0_") for key in values if key.startswith("system/gpu_0_")}
    assert told == {
        "memory_usage_megabytes",
        "temperature_celsius",
        "clock_megahertz",
        "memory_clock_megahertz",
        "clock_limits",
    }
    assert "gpu_0" not in counters
    shared = {"energy", "power_usage_watts", "utilization_percentage"}
    assert {name for name, reason in missing.items() if reason == SHARED_CARD} == {
        f"gpu_0_{name}" for name in shared
    }


OTHERS = """
import json, os, subprocess, sys
from tracking.sensors import Sensors
child = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE)
child.stdout.readline()
sensors = Sensors(child.pid, "cuda")
found = []
for lines in (f"pid {child.pid}", f"pid {child.pid} other_pid {OTHER}", f"other_pid {OTHER}", "pid 4000000 other_pid 4000001"):
    with open(os.environ["NVML_ANSWERS"], "w") as file:
        file.write(lines)
    found.append(sensors.read().values.get("system/gpu_0_other_processes"))
    found.append(sensors.missing.get("gpu_0_other_processes", ""))
child.kill()
child.wait()
print(json.dumps([found, sensors.others]))
"""


def test_who_else_computes_on_the_gpu_is_counted_while_ours_does(driver: Driver) -> None:
    found, others = json.loads(driver.python(OTHERS.replace("OTHER}", f"{os.getpid()}}}")))
    assert found == [0, "", 1, "", None, "", None, ""]
    assert others == {str(os.getpid()): psutil.Process().name()}


SAMPLE = """
import json, os, time
from tracking.sensors import Sampler, Sensors, Window, summarise
sampler = Sampler(Sensors(os.getpid(), "cuda"), 0.05, lambda _: None)
sampler.start()
time.sleep(0.3)
began = time.time()
time.sleep(WINDOW)
ended = time.time()
time.sleep(0.1)
sampler.stop()
found = summarise(sampler.samples, Window("", began, ended, 100), gpus=sampler.sensors.gpus, ranges_joules={})
print(json.dumps([found.metrics, found.missing, found.throttled, ended - began]))
"""


def test_energy_is_the_counters_rise_over_the_window(driver: Driver) -> None:
    driver.answers(clock_limits=0x40)
    metrics, missing, throttled, seconds = json.loads(
        driver.python(SAMPLE.replace("WINDOW", "1.0"))
    )
    # the counter moves every 20 ms, 2 % of the window, at each end
    assert metrics["power/watts_mean"] == pytest.approx(250, rel=0.05)
    assert metrics["energy/joules"] == pytest.approx(250 * seconds, rel=0.05)
    assert metrics["energy/joules_per_example"] == pytest.approx(2.5 * seconds, rel=0.05)
    assert metrics["gpu/temperature_celsius_max"] == 61
    assert metrics["gpu/clock_megahertz_mean"] == 1_410
    assert throttled == {"hardware thermal slowdown": 1.0}
    assert missing == {}


# ---- windows


def sample(second: float, joules: float, celsius: float = 40.0, counter: str = "gpu_0") -> Sample:
    values = {
        "system/cpu_utilization_percentage": 10 * second,
        "system/gpu_0_temperature_celsius": celsius,
    }
    return Sample(second, values, {counter: joules})


def test_summaries_cover_the_window_alone_and_only_sensors_that_spoke() -> None:
    joules = [0, 100, 150, 200, 250, 10_000]
    samples = [
        sample(at, j, c)
        for at, j, c in zip((0, 1, 2, 3, 4, 9), joules, (90, 40, 42, 44, 46, 99), strict=True)
    ]
    found = summarise(samples, Window("", 1, 4, 200), gpus=["gpu_0"], ranges_joules={}).metrics
    assert found["cpu/utilization_percent_mean"] == pytest.approx(25)
    assert found["gpu/temperature_celsius_max"] == 46
    assert found["gpu/temperature_celsius_mean"] == pytest.approx(43)
    assert found["power/watts_mean"] == pytest.approx(50)  # (250 − 100) J in 3 s
    assert found["energy/joules"] == pytest.approx(150)
    assert found["energy/joules_per_example"] == pytest.approx(0.75)
    assert "cpu/temperature_celsius_mean" not in found
    unread = "the timed window ended before the sensors were read; choose a shorter sensor_seconds"
    nothing = summarise([], Window("", 0, 1, 10), ranges_joules={})
    assert (nothing.metrics, nothing.missing, nothing.throttled) == ({}, {"sensors": unread}, {})
    between = summarise(samples[:1], Window("inference/", 1, 1.5, 10), ranges_joules={})
    assert (between.metrics, between.throttled) == ({}, {})
    assert between.missing["inference/sensors"] == unread


def test_pauses_are_no_part_of_a_window() -> None:
    """10 W in training, and 1,000 W and 90 °C in a validation from 4 to 6 s, as a plain sum over seconds has it."""
    watts = [10, 10, 10, 10, 1_000, 1_000, 10, 10, 10, 10]
    samples = [sample(at, sum(watts[:at]), 90 if at == 5 else 40) for at in range(11)]
    found = summarise(
        samples, Window("", 0, 10, 8, pauses=((4, 6),)), gpus=["gpu_0"], ranges_joules={}
    ).metrics
    assert found["energy/joules"] == pytest.approx(8 * 10)
    assert found["power/watts_mean"] == pytest.approx(10)
    assert found["energy/joules_per_example"] == pytest.approx(10)
    assert found["gpu/temperature_celsius_max"] == 40
    assert found["cpu/utilization_percent_mean"] == pytest.approx(10 * sum({*range(11)} - {5}) / 10)


def test_a_counter_that_wraps_around_loses_nothing() -> None:
    samples = [sample(at, (900 + 50 * at) % 1_000, counter="intel-rapl:0") for at in range(6)]
    found = summarise(
        samples, Window("", 0, 5, 10), ranges_joules={"intel-rapl:0": 1_000.0}
    ).metrics
    assert found["energy/joules"] == pytest.approx(250)


def test_several_gpus_give_sums_of_energy_and_memory_and_means_of_the_rest() -> None:
    def of(gpu: int, used: float, celsius: float, megabytes: float) -> dict[str, float]:
        told = {
            "utilization_percentage": used,
            "temperature_celsius": celsius,
            "clock_megahertz": 1_000 + used,
        }
        return {
            f"system/gpu_{gpu}_{key}": value
            for key, value in {**told, "process_memory_megabytes": megabytes}.items()
        }

    samples = [
        Sample(
            at,
            of(0, 80, 60, 100) | of(2, 40, 50 + at, 300),
            {"gpu_0": 100.0 * at, "gpu_2": 50.0 * at},
        )
        for at in range(6)
    ]
    found = summarise(
        samples, Window("", 0, 5, 10), gpus=["gpu_0", "gpu_2"], ranges_joules={}
    ).metrics
    assert found == {
        "gpu/utilization_percent_mean": pytest.approx(60),
        "gpu/temperature_celsius_mean": pytest.approx((60 + 52.5) / 2),
        "gpu/temperature_celsius_max": 60,
        "gpu/clock_megahertz_mean": pytest.approx(1_060),
        "memory/peak_device_process_bytes": pytest.approx(400e6),
        "energy/joules": pytest.approx(750),
        "power/watts_mean": pytest.approx(150),
        "energy/joules_per_example": pytest.approx(75),
    }


def gpu_samples(megahertz: Sequence[float], celsius: Sequence[float]) -> list[Sample]:
    """Samples of a GPU, ten a second."""
    keys = ("system/gpu_1_clock_megahertz", "system/gpu_1_temperature_celsius")
    pairs = enumerate(zip(megahertz, celsius, strict=True))
    return [Sample(number / 10, dict(zip(keys, pair, strict=True)), {}) for number, pair in pairs]


def test_a_gpu_is_steady_after_a_second_at_one_clock_and_temperature() -> None:
    """The clock rises from that of idling within half a second, the temperature by 1 °C every 0.5 s for three seconds."""
    clocks = [345, 700, 1_100, 1_500, 1_800, *[1_980, 1_960] * 30]
    samples = gpu_samples(clocks, [40.0] * len(clocks))
    steady = [
        sample.time_seconds
        for end, sample in enumerate(samples, 1)
        if is_steady(samples[:end], ["gpu_1"])
    ]
    assert steady[0] == pytest.approx(1.5)
    assert len(steady) == len(samples) - 15
    warming = gpu_samples([1_980] * 60, [40 + min(at, 30) // 5 for at in range(60)])
    assert not is_steady(warming[:30], ["gpu_1"])
    assert is_steady(warming, ["gpu_1"])
    assert is_steady(samples, ["gpu_1", "gpu_2"]), "a GPU without sensors is not waited for"
    assert not is_steady([], ["gpu_1"])
    slowing = gpu_samples([1_980 - 10 * at for at in range(60)], [40.0] * 60)
    assert not is_steady(slowing, ["gpu_1"])


# ---- RAPL


def zone(folder: Path, zone_name: str, name: str, joules: str = "5.5") -> None:
    """A zone as the kernel shows it: `name` says what it measures."""
    (folder / zone_name).mkdir()
    (folder / zone_name / "name").write_text(f"{name}\n")
    (folder / zone_name / "max_energy_range_uj").write_text("262143328850\n")
    if joules:
        (folder / zone_name / "energy_uj").write_text(f"{float(joules) * 1e6:.0f}\n")


def test_packages_are_counted_once_and_nothing_that_contains_them_or_is_part_of_them(
    tmp_path: Path,
) -> None:
    zones = {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1", "intel-rapl:2": "psys"}
    zones |= {
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "uncore",
        "intel-rapl:0:2": "dram",
        "intel-rapl-mmio:0": "package-0",
    }
    for zone_name, name in zones.items():
        zone(tmp_path, zone_name, name)
    packages, reason = rapl.find(tmp_path)
    assert [(package.name, package.joules(), package.range_joules) for package in packages] == [
        (name, 5.5, pytest.approx(262_143.3)) for name in ("intel-rapl:0", "intel-rapl:1")
    ]
    assert reason == ""


def test_a_package_that_cannot_be_read_is_reported_even_if_another_one_is_readable(
    tmp_path: Path,
) -> None:
    assert rapl.find(tmp_path) == ([], f"no RAPL counter of a processor package in {tmp_path}")
    zone(tmp_path, "intel-rapl:2", "psys")
    assert rapl.find(tmp_path)[0] == []
    zone(tmp_path, "intel-rapl:0", "package-0", joules="")
    zone(tmp_path, "intel-rapl:1", "package-1")
    packages, reason = rapl.find(tmp_path)
    assert packages == [], "the sum of some packages would pass for that of all"
    assert reason.startswith("intel-rapl:0 cannot be read: ")

"""Devices, CPUs, memory and setup of the machine of a campaign's processes."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import studies
from experiments.config import devices, memory, variation
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.contract import Treatment
from experiments.metrics import FREELY
from experiments.planning.treatments import require_single_steps
from experiments.run import cell_run, preflight, preparation
from experiments.run.machine_state import MachineState
from experiments.run.plan import Plan
from experiments.run.prepared import PreparedCampaign
from experiments.workloads import steps
from models.frameworks.tensorflow.workers import local_rank
from tests.conftest import ROOT, Place
from tests.experiments.datasets.folders import refused
from tests.experiments.small_campaigns import measure
from tests.experiments.test_blocks import TOYS
from tests.models.children import run_python
from tracking import tuning
from tracking.errors import ErrorCode
from tracking.store import Store


@pytest.mark.parametrize(
    "variables",
    [
        {"NVIDIA_TF32_OVERRIDE": "0"},
        {"NVIDIA_TF32_OVERRIDE": "1"},
        {"CUDA_LAUNCH_BLOCKING": "1"},
        {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "1"},
        {"CUDA_VISIBLE_DEVICES": "MIG-000000a0"},
    ],
)
def test_variables_that_change_a_gpus_figures_are_refused(variables: dict[str, str]) -> None:
    with refused(ErrorCode.ENVIRONMENT, f"{next(iter(variables))}="):
        devices.check_variables(["cpu", "cuda"], variables)
    devices.check_variables(["cpu"], variables)


def test_worker_takes_the_gpu_of_its_local_rank() -> None:
    addresses = [f"{host}:{port}" for host in ("10.0.0.1", "[fd00::2]") for port in (5_000, 5_001)]
    assert [local_rank(rank, addresses) for rank in range(4)] == [0, 1, 0, 1]


DIGITS = 1_500  # images of the training part, rounded
COUNTS = ("steps", "least_steps", "steps_per_epoch")


def on(device: str, **values: float | str) -> CampaignSettings:
    """Return settings of cells on a node of a cluster, which need no such device here."""
    return CampaignSettings(executor="slurm", device=device, **values)  # type: ignore[arg-type]


def test_sensors_are_read_often_enough_for_a_gpus_counter() -> None:
    cell, both = Treatment("toy", "toy"), ("cpu", "cuda")
    assert [devices.sensor_seconds(on(device)) for device in both] == [0.5, 0.1]
    assert [devices.sensor_seconds(on(device, sensor_seconds=0.3)) for device in both] == [0.3] * 2
    logged = [cell_run.logged_settings(on(device), cell)["sensor_seconds"] for device in both]
    assert logged == ["0.5", "0.1"]
    with refused(ErrorCode.INVALID_VALUE, "sensor_seconds=0.01", "0.05"):
        preparation.check_settings("captioning", on("cpu", sensor_seconds=0.01))


def test_gpu_is_timed_freely_and_step_by_step_in_turns() -> None:
    cell = Treatment("toy", "toy")
    for device, kind in (("cpu", "step"), ("cuda", "both")):
        assert devices.timing(on(device)) == kind
        assert cell_run.logged_settings(on(device), cell)["timing"] == kind
        for timing in ("step", "free"):
            assert devices.timing(on(device, timing=timing)) == timing
    assert devices.timing(on("auto", gres="gpu:1")) == "both"
    assert devices.timing(on("auto")) == "step"
    varied = on("cpu", vary="device=cpu,cuda")  # runs with different timing are never paired
    assert {devices.timing(level) for level in variation.each(varied)} == {"step"}


@pytest.mark.parametrize("name", studies.available())
def test_every_preset_fits_the_timing_of_a_gpu(name: str) -> None:
    study = studies.load(name)
    for preset in study.presets:
        options = {"preset": preset, "device": "cuda", "executor": "slurm"}
        settings = settings_.parse(study.settings, study.presets, options)
        if name in ("distributed", "race"):
            require_single_steps(settings, name)
            continue
        assert devices.timing(settings) == "both"
        assert FREELY in [outcome.metric for outcome in studies.outcomes(study, settings)]
        in_a_row = next(filter(None, (getattr(settings, name, 0) for name in COUNTS)), 0)
        if not in_a_row and settings.data == "digits":
            in_a_row = DIGITS // settings.batch_size
        if in_a_row:  # unknown if the user names the data
            steps.check_windows(settings, in_a_row, "steps of a preset")


@pytest.mark.usefixtures("toy_installed")
@pytest.mark.parametrize(
    ("visible_to", "device", "warnings"),
    [("1", "cuda", 1), ("toy", "cpu", 1), ("", "auto", 0)],
)
def test_auto_queries_the_frameworks_if_nvml_does_not_answer(
    visible_to: str, device: str, warnings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate a container with CUDA and without NVML."""
    driver = tmp_path / "nvidiactl"
    seen = replace(devices.ACCELERATORS["cuda"], driver=driver)
    monkeypatch.setitem(devices.ACCELERATORS, "cuda", seen)
    monkeypatch.setenv("EVENHAND_TOY_GPU", visible_to)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    settings = studies.load("captioning").settings(frameworks=("toy", "toy+twin"))
    assert devices.to_open("auto", settings) == "cpu"
    driver.touch()
    assert devices.to_open("auto", settings) == "auto"
    plan = Plan.of_study(studies.load("captioning"), settings)
    checked = preflight.check_devices(PreparedCampaign("captioning", settings, plan), Display())
    assert checked.settings.device == device
    assert len(checked.data.warnings) == warnings
    assert devices.resolve("cuda", settings) == "cuda"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.to_open("auto", settings) == "cpu"
    with refused(ErrorCode.NO_DEVICE):
        devices.resolve("cuda", settings)


PINNED = CampaignSettings(pin="auto")


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


FOUR_CORES = ("0,4", "1,5", "2,6", "3,7") * 2  # the threads of each CPU's core
SIBLINGS = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@pytest.mark.parametrize(
    ("cores", "available", "expected"),
    [
        (FOUR_CORES, range(8), (1, 2, 3)),
        (FOUR_CORES, (2, 3, 6), (2, 3)),
        (("0", "1", "2"), range(3), (1, 2)),
        (("0", "1"), range(2), (0, 1)),
        (("0-1", "0-1"), range(2), (0,)),
    ],
)
def test_parent_and_cells_share_no_core(
    cores: Sequence[str], available: Sequence[int], expected: tuple[int, ...], tmp_path: Path
) -> None:
    root = write_files(tmp_path, {SIBLINGS.format(cpu): text for cpu, text in enumerate(cores)})
    assert devices.cpus_of_cells(PINNED, available, root) == expected


def test_pinned_campaign_records_cpus(place: Place) -> None:
    measure(place, **{**TOYS, "frameworks": "toy", "threads": "0"}, blocks="1", pin="auto")
    runs = {run.tags["kind"]: run for run in Store(place.uri).runs("captioning")}
    cell, expected = runs["cell"], devices.cpus_of_cells(PINNED)
    assert cell.params["pin"] == "auto"
    assert cell.tags["pinned.cell"] == ",".join(map(str, expected))
    (environment,) = place.journal.glob("*/cells/*/*/environment.json")
    assert json.loads(environment.read_text())["cpus"]["affinity"] == len(expected)
    setup, missing = tuning.read_setup()
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
    setup, missing = tuning.read_setup(write_files(tmp_path, LAPTOP))
    assert setup == {
        "governor": "performance, powersave",
        "turbo": "on",
        "aslr": "on",
        "swap": "512 of 2,048 MiB used",
        "memory_pressure": "12.5 %",
    }
    assert missing == {}
    assert tuning.memory_pressure(tmp_path) == 12.5
    (trouble,) = MachineState(memory_pressure_percent=12.5).troubles
    assert "12 %" in trouble
    assert MachineState(memory_pressure_percent=9.0).troubles == ()


TOY = str(ROOT / "tests" / "toy_framework" / "installed")
TIMES, BYTES = 20, 40_000_000
PAGES = BYTES // 4_096
# Blocks above 32 MiB, the largest that glibc's threshold adjusts itself to, are mapped anew.
SCRIPT = f"""
import resource, sys, threading
sys.path.insert(0, sys.argv[2])
from types import SimpleNamespace
from experiments.cell.opening import opened
from experiments.studies.captioning import Settings

settings = Settings(malloc=sys.argv[1])
opened(SimpleNamespace(
    framework="toy", device="cpu", threads=1, block=1, settings=settings, environment={{}}
))

def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def faults():
    bytes([1]) * {BYTES}
    before = page_faults()
    for _ in range({TIMES}):
        bytes([1]) * {BYTES}
    counts.append(page_faults() - before)

counts = []
faults()
worker = threading.Thread(target=faults)
worker.start()
worker.join()
print(*counts)
"""


@pytest.mark.parametrize("malloc", ["system", "keep"])
def test_malloc_keep_retains_freed_memory(malloc: str) -> None:
    for faults in map(int, run_python("-c", SCRIPT, malloc, TOY).stdout.split()):
        if malloc == "keep":
            assert faults < 0.01 * TIMES * PAGES
        else:  # huge pages would leave a 512th of the faults
            assert faults > TIMES * PAGES / 512


def test_other_c_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    with refused(ErrorCode.UNSUPPORTED, "malloc=keep"):
        memory.keep_freed()

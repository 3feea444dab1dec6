"""Devices, CPUs, memory, interpreters and setup of the machine of a campaign's processes."""

import ctypes
import json
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import studies
from experiments.config import devices, interpreters, memory, variation
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
from models import frameworks
from models.frameworks.tensorflow.workers import local_rank
from tests.conftest import PYTHONPATH, Place
from tests.experiments.datasets.folders import refused
from tests.experiments.small_campaigns import comparison, measure
from tests.experiments.test_blocks import TOYS
from tests.models.children import run_python
from tracking import provenance, tuning
from tracking.errors import ErrorCode, UsageError
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
    [("1", "cuda", 1), ("toy", "", 0), ("", "auto", 0)],
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
    prepared = PreparedCampaign("captioning", settings, plan)
    if device:
        checked = preflight.check_devices(prepared, Display())
        assert checked.settings.device == device
        assert len(checked.data.warnings) == warnings
    else:  # only one of them sees it: a user at a terminal decides, a script is refused
        with pytest.raises(UsageError) as refusal:
            preflight.check_devices(prepared, Display())
        assert refusal.value.code is ErrorCode.NO_DEVICE
        assert "toy+twin does not see" in str(refusal.value)
        monkeypatch.setattr(Display, "confirms", lambda *_: True)
        checked = preflight.check_devices(prepared, Display())
        assert (checked.settings.device, len(checked.data.warnings)) == ("cpu", 1)
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


def test_other_c_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    with refused(ErrorCode.UNSUPPORTED, "malloc=keep"):
        memory.keep_freed()


# ---- frameworks with a separate interpreter: a virtual environment over this one's packages

# The other environment seems to have another version of this package.
PACKAGE, VERSION = "sacrebleu", "99.1"


def environment(folder: Path) -> Path:
    """Make a virtual environment without any package; returns its interpreter."""
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Return an interpreter with another version of one package, which records its calls."""
    python = environment(tmp_path / "other")
    (site,) = (tmp_path / "other" / "lib").glob("python*/site-packages")
    (site / "below.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n"
    )
    info = site / f"{PACKAGE}-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n")
    listing = tmp_path / "other" / "listing"
    listing.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path / "calls"}\nexec {python} "$@"\n')
    listing.chmod(0o755)
    return listing


def test_framework_of_a_campaign_has_its_interpreter(
    place: Place, other: Path, tmp_path: Path
) -> None:
    measure(place, **TOYS, blocks="1", pythons=f"toy+twin={other}", timing="step")
    calls = (tmp_path / "calls").read_text().splitlines()
    # the check of the device and a cell
    assert sum("-m experiments.workloads" in call for call in calls) == 2
    assert sum("-m models.parity" in call for call in calls) == 1
    (folder,) = place.journal.iterdir()
    cells = list(Store(place.uri).runs("captioning", "tags.kind = 'cell'"))
    assert len(cells) == 2
    ours = provenance.packages(frameworks.distributions())[PACKAGE]
    for run in cells:
        is_twin = run.params["framework"] == "toy+twin"
        assert run.tags.get("interpreter", "") == (str(other) if is_twin else "")
        assert run.tags[f"version.{PACKAGE}"] == (VERSION if is_twin else ours)
        (path,) = folder.glob(f"cells/*/{run.tags['origin'][:8]}/environment.json")
        assert json.loads(path.read_text())["packages"][PACKAGE] == run.tags[f"version.{PACKAGE}"]
    assert len({run.tags["environment"] for run in cells}) == 1, "blocks have one environment"
    facts = comparison(place)["environment"]
    versions = {level: values[f"version.{PACKAGE}"] for level, values in facts.items()}
    assert versions == {"toy": ours, "toy+twin": VERSION}
    assert VERSION in (folder / "report" / "report.md").read_text()


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        ("tensorflow", "/a"),
        ("tensorflow+xla", "/b"),
        ("tensorflow+eager", "/a"),
        ("keras-tensorflow", ""),
        ("pytorch", ""),
    ],
)
def test_variants_have_the_interpreter_of_their_framework(framework: str, expected: str) -> None:
    pythons = ("tensorflow=/a", "tensorflow+xla=/b")
    assert interpreters.separate(framework, pythons) == expected
    assert interpreters.executable(framework, pythons) == (expected or sys.executable)


@pytest.mark.parametrize(
    ("pythons", "code"),
    [
        ("tensorflow", ErrorCode.INVALID_VALUE),
        ("tensorflow=", ErrorCode.INVALID_VALUE),
        ("tensorflow=bin/python", ErrorCode.INVALID_VALUE),
        ("tensorflow=/a,tensorflow=/b", ErrorCode.DUPLICATE),
        ("tensorflow=/nowhere/python", ErrorCode.NOT_FOUND),
        ("tensorflow=/bin/true", ErrorCode.NOT_INSTALLED),
        ("tensorflow=/bin/ls", ErrorCode.NOT_INSTALLED),
    ],
)
def test_unusable_interpreter_is_refused(pythons: str, code: ErrorCode) -> None:
    with refused(code, "pythons", "tensorflow"):
        interpreters.missing("tensorflow", pythons.split(","))


def test_environment_without_the_framework_names_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    python = environment(tmp_path / "bare")
    reason = interpreters.missing("pytorch", [f"pytorch={python}"]) or ""
    assert "pip install" in reason
    assert f"{python} -m pip" in reason


@pytest.mark.skipif(bool(provenance.gpus()), reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("framework", "word"),
    [
        ("pytorch", "NVIDIA driver"),
        pytest.param("tensorflow", "cuda", marks=pytest.mark.slow),
    ],
)
def test_framework_without_a_gpu_reports_its_reason(framework: str, word: str) -> None:
    if reason := frameworks.missing(framework):
        pytest.skip(reason)
    script = f"""
from models.errors import NoDevice
from models.frameworks import open_framework
try:
    open_framework({framework!r}, device="cuda", threads=1, precision="float32", seed=0)
except NoDevice as error:
    print(error)
"""
    done = run_python("-c", script)
    reason, _, detail = done.stdout.partition(" reports: ")
    assert "device 'cuda'" in reason
    assert word in detail
    assert detail.count("\n") == 1
    assert framework != "tensorflow" or "cuda" in done.stderr, "the whole text is in the log"

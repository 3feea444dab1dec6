"""Devices of a campaign, and environment variables that it accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import studies
from experiments.config import devices, variation
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.contract import Treatment
from experiments.metrics import FREELY
from experiments.planning.treatments import require_single_steps
from experiments.run import cell_run, preflight, preparation
from experiments.run.plan import of_study
from experiments.run.preparation import PreparedCampaign
from experiments.workloads import steps
from models.frameworks.tensorflow.workers import local_rank
from tracking.errors import ErrorCode, UsageError


@pytest.mark.parametrize(
    "variables",
    [
        {"NVIDIA_TF32_OVERRIDE": "0"},
        {"NVIDIA_TF32_OVERRIDE": "1"},
        {"CUDA_LAUNCH_BLOCKING": "1"},
        {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "1"},
    ],
)
def test_variables_that_change_a_gpus_figures_are_refused(variables: dict[str, str]) -> None:
    with pytest.raises(UsageError) as error:
        devices.check_variables(["cpu", "cuda"], variables)
    assert error.value.code is ErrorCode.ENVIRONMENT
    assert str(error.value).startswith(f"{next(iter(variables))}=")
    devices.check_variables(["cpu"], variables)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"CUDA_LAUNCH_BLOCKING": "0"},
        {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "GPU-a"},
    ],
)
def test_other_variables_are_accepted(variables: dict[str, str]) -> None:
    devices.check_variables(["cuda"], variables)


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
    assert [cell_run.sensor_seconds(on(device), cell) for device in both] == [0.5, 0.1]
    assert [cell_run.sensor_seconds(on(device, sensor_seconds=0.3), cell) for device in both] == [
        0.3,
        0.3,
    ]
    logged = [cell_run.logged_settings(on(device), cell)["sensor_seconds"] for device in both]
    assert logged == ["0.5", "0.1"]
    with pytest.raises(UsageError) as error:
        preparation.check_settings("captioning", on("cpu", sensor_seconds=0.01))
    assert "sensor_seconds=0.01" in str(error.value)
    assert "0.05" in str(error.value)


def test_gpu_is_timed_freely_and_step_by_step_in_turns() -> None:
    cell = Treatment("toy", "toy")
    for device, kind in (("cpu", "step"), ("cuda", "both")):
        assert devices.timing(on(device)) == kind
        assert cell_run.logged_settings(on(device), cell)["timing"] == kind
        assert devices.values_of_cell(on(device))["timing"] == kind
        for timing in ("step", "free"):
            assert devices.timing(on(device, timing=timing)) == timing
    assert devices.timing(on("auto", gres="gpu:1")) == "both"
    assert devices.timing(on("auto")) == "step"


def test_cells_on_cpu_and_gpu_are_timed_alike() -> None:
    """Runs with different timing are never paired."""
    varied = on("cpu", vary="device=cpu,cuda")
    assert {devices.timing(level) for level in variation.each(varied)} == {"step"}


@pytest.mark.parametrize("name", studies.available())
def test_every_preset_fits_the_timing_of_a_gpu(name: str) -> None:
    study = studies.load(name)
    for preset in study.presets:
        options = {"preset": preset, "device": "cuda", "executor": "slurm"}
        settings = settings_.parse(study.settings, study.presets, options)
        if name in ("calibrate", "distributed", "overhead"):
            require_single_steps(settings, name)
            continue
        assert devices.timing(settings) == "both"
        assert FREELY in [outcome.metric for outcome in studies.outcomes(study, settings)]
        in_a_row = next(filter(None, (getattr(settings, name, 0) for name in COUNTS)), 0)
        if not in_a_row and settings.data == "digits":
            in_a_row = DIGITS // settings.batch_size
        if in_a_row:  # unknown if the user names the data
            steps.check_windows(settings, in_a_row, "steps of a preset")


def test_only_cells_on_the_cpu_wait_until_the_machine_is_cool() -> None:
    assert [devices.cool_down_seconds(on(device)) for device in ("cpu", "cuda")] == [120.0, 0.0]


@pytest.mark.usefixtures("toy_installed")
@pytest.mark.parametrize(
    ("visible_to", "device", "warnings"),
    [("1", "cuda", 1), ("toy", "cpu", 1), ("", "auto", 0)],
)
def test_auto_asks_the_frameworks_if_nvml_does_not_answer(
    visible_to: str, device: str, warnings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have CUDA without NVML: the frameworks' processes see the GPU or not."""
    driver = tmp_path / "nvidiactl"
    monkeypatch.setattr(devices, "DRIVER", (driver,))
    monkeypatch.setenv("EVENHAND_TOY_GPU", visible_to)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    settings = studies.load("captioning").settings(frameworks=("toy", "toy+twin"))
    assert devices.to_open("auto", settings) == "cpu"
    driver.touch()
    assert devices.to_open("auto", settings) == "auto"
    plan = of_study(studies.load("captioning"), settings)
    checked = preflight.check_devices(PreparedCampaign("captioning", settings, plan), Display())
    assert checked.settings.device == device
    assert len(checked.data.warnings) == warnings
    assert devices.resolve("cuda", settings) == "cuda"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.to_open("auto", settings) == "cpu"
    with pytest.raises(UsageError) as error:
        devices.resolve("cuda", settings)
    assert error.value.code is ErrorCode.NO_DEVICE

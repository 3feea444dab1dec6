"""Which variables and devices of the environment a campaign accepts."""

from __future__ import annotations

import pytest

from experiments.config import devices
from models.frameworks.tensorflow.workers import local_rank
from tracking.errors import WrongCall


@pytest.mark.parametrize(
    "variables",
    [
        {"NVIDIA_TF32_OVERRIDE": "0"},
        {"NVIDIA_TF32_OVERRIDE": "1"},
        {"CUDA_LAUNCH_BLOCKING": "1"},
        {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "1"},
    ],
)
def test_variables_that_make_a_gpus_figures_wrong_are_refused(variables: dict[str, str]) -> None:
    with pytest.raises(WrongCall, match=f"^{next(iter(variables))}=") as refusal:
        devices.check_variables(["cpu", "cuda"], variables)
    assert "\n" not in str(refusal.value)
    devices.check_variables(["cpu"], variables)


@pytest.mark.parametrize(
    "variables", [{}, {"CUDA_LAUNCH_BLOCKING": "0"}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "GPU-a"}]
)
def test_other_variables_are_accepted(variables: dict[str, str]) -> None:
    devices.check_variables(["cuda"], variables)


def test_a_worker_takes_the_gpu_of_its_number_on_its_own_machine() -> None:
    addresses = [f"{host}:{port}" for host in ("10.0.0.1", "[fd00::2]") for port in (5_000, 5_001)]
    assert [local_rank(rank, addresses) for rank in range(4)] == [0, 1, 0, 1]

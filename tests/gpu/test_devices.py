"""The GPU that a process computes on is the one that its sensors read, and JAX takes no more of it than it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments.cell import warm_up
from experiments.config import devices
from experiments.selftest import cells
from tracking.records import RunOutcome, Tags, from_line
from tracking.sensors import nvml
from tracking.sensors.windows import STEADY_SECONDS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not nvml.names(), reason="NVML shows no GPU on this machine"),
]
MAX_JAX_BYTES = (
    3e9  # the context and a small array; three quarters of a data centre's GPU are far more
)
UUID = "import torch; print('GPU-' + str(torch.cuda.get_device_properties(0).uuid), torch.cuda.device_count())"
HELD = """
import jax, os, pynvml
jax.numpy.ones(1000).block_until_ready()
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByUUID(os.environ["CUDA_VISIBLE_DEVICES"])
print(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
"""


def python(script: str, device: str, gpus: tuple[str, ...] = ()) -> str:
    """Run a script with the environment variables of a cell and return what it prints."""
    placed = devices.variables_of_cell(device, gpus)
    kept = {name: text for name, text in os.environ.items() if name not in placed}
    variables = kept | {name: text for name, text in placed.items() if text is not None}
    done = subprocess.run(
        [sys.executable, "-c", script], env=variables, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_cuda_and_nvml_mean_the_same_card() -> None:
    for card in nvml.visible():
        if not card.parent:  # PyTorch gives the GPU's UUID for a MIG instance
            assert python(UUID, "cuda", (card.uuid,)) == f"{card.uuid} 1"


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_process_of_a_cell_on_the_cpu_sees_no_gpu() -> None:
    assert python("import torch; print(torch.cuda.is_available())", "cpu") == "False"


@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
def test_jax_does_not_preallocate() -> None:
    gpus = devices.gpus_of_cell("cuda", 1, os.environ)
    before = nvml.opened(gpus)[0].read({}, None)["memory_usage_megabytes"] * 1e6
    assert float(python(HELD, "cuda", gpus)) - before < MAX_JAX_BYTES


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_cell_begins_when_clock_and_temperature_of_its_gpu_are_steady(tmp_path: Path) -> None:
    sizes = {"models": ("resnet18",), "image_sizes": (64,), "batch_sizes": (32,)}
    result = cells.run(tmp_path, "grid", "pytorch", "cuda", seconds=2.0, **sizes)
    assert result.outcome == RunOutcome.OK, result.reason
    (file,) = tmp_path.rglob(cells.RECORDS)
    records = map(from_line, file.read_text().splitlines())
    tags = dict[str, str]()
    for record in records:
        tags |= record.values if isinstance(record, Tags) else {}
    for phase in ("inference", "train"):
        assert tags[f"warmup.{phase}"] in (warm_up.STEADY, warm_up.LIMIT)
        assert result.metrics[f"check/{phase}_warmup_seconds"] >= STEADY_SECONDS

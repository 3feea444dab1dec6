"""What only a GPU shows: PyTorch's optimizer kernels, its device memory, and the device's own clock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HAS_GPU = Path("/dev/nvidia0").exists() or Path("/proc/driver/nvidia/version").exists()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="no NVIDIA GPU here")]
OPENED = """
import json
import torch
from torch import nn
from models.contract import ModelError, OptimizerConfig
from models.frameworks import open_framework
framework = open_framework("pytorch", device="cuda", threads=1, precision=PRECISION, seed=0)
"""
MEBIBYTE = 2**20


def result(script: str, precision: str = "float32") -> Any:
    pytest.importorskip("torch")
    whole = OPENED.replace("PRECISION", repr(precision)) + script
    done = subprocess.run(
        [sys.executable, "-c", whole], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


KERNELS = """
from torch.profiler import ProfilerActivity, profile
network = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)).cuda()
def kernels(optimizer):
    for _ in range(2):
        network(torch.ones(4, 32, device="cuda")).sum().backward()
        optimizer.step()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        optimizer.step()
        torch.cuda.synchronize()
    return sorted(one.name for one in seen.events() if one.device_type == torch.autograd.DeviceType.CUDA)
stock = framework.optimizer(network, OptimizerConfig("adam-stock", 0.1))
default = torch.optim.Adam(network.parameters(), lr=0.1)
print(json.dumps([framework.optimizer_implementation(stock), kernels(stock), kernels(default)]))
"""


def test_adam_stock_launches_the_kernels_of_pytorchs_default() -> None:
    name, stock, default = result(KERNELS)
    assert name == "torch.optim.Adam: foreach"
    assert stock
    assert stock == default


PEAKS = f"""
def take(mebibytes):
    return torch.empty(mebibytes * {MEBIBYTE}, dtype=torch.uint8, device="cuda")
kept = take(64)
first = take(1024)
del first
whole = framework.peak_device_bytes()
assert framework.reset_peak()
again = framework.peak_device_bytes()
second = take(128)
del second
print(json.dumps([value / {MEBIBYTE} for value in (whole, again, framework.peak_device_bytes())]))
"""


def test_the_peak_counts_from_its_reset_on() -> None:
    assert result(PEAKS) == pytest.approx([1088, 64, 192], abs=1)


LSTM = """
from models.frameworks.pytorch.adapter import check_autocast
lstm = nn.LSTM(8, 8, batch_first=True).cuda()
with torch.autocast("cuda", torch.bfloat16):
    dtype = str(lstm(torch.ones(2, 3, 8, device="cuda"))[0].dtype)
try:
    check_autocast(lstm, "cuda")
    refused = False
except ModelError:
    refused = True
print(json.dumps([dtype, refused]))
"""


def test_an_lstm_that_autocast_would_compute_in_float16_is_refused() -> None:
    """When PyTorch computes it in bfloat16, the refusal has to go."""
    assert result(LSTM, "bfloat16") == ["torch.float16", True]


EVENTS = """
import time
product = torch.ones(4096, 4096, device="cuda")
product @ product
torch.cuda.synchronize()
events = framework.step_events(4)
time.sleep(0.5)
for _ in range(4):
    product @ product
    events.mark()
torch.cuda.synchronize()
print(json.dumps(events.seconds()))
"""


def test_the_devices_clock_leaves_out_the_idle_time_before_a_window() -> None:
    seconds = result(EVENTS)
    assert len(seconds) == 3
    assert max(seconds) < 0.25

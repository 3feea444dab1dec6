"""Device's own clock, and the warm-up of cells, beside the checks of the acceptance kit."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments.cell import warm_up
from experiments.selftest import cells
from tracking.records import RunOutcome, Tags, from_line
from tracking.sensors import nvml
from tracking.sensors.windows import STEADY_SECONDS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not nvml.names(), reason="NVML shows no GPU on this machine"),
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
]
EVENTS = """
import json
import time
import torch
from models.frameworks import open_framework
framework = open_framework("pytorch", device="cuda", threads=1, precision="float32", seed=0)
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


def test_device_clock_excludes_idle_time_before_a_window() -> None:
    command = [sys.executable, "-c", EVENTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    seconds = json.loads(done.stdout.splitlines()[-1])
    assert len(seconds) == 3
    assert max(seconds) < 0.25


def test_cell_begins_when_its_gpu_is_steady(tmp_path: Path) -> None:
    sizes = {"models": ("resnet18",), "image_sizes": (64,), "batch_sizes": (32,)}
    result = cells.run(tmp_path, "grid", "pytorch", "cuda", seconds=2.0, **sizes)
    assert result.outcome == RunOutcome.OK, result.reason
    (file,) = tmp_path.rglob(cells.RECORDS)
    tags = dict[str, str]()
    for record in map(from_line, file.read_text().splitlines()):
        tags |= record.values if isinstance(record, Tags) else {}
    for phase in ("inference", "train"):
        assert tags[f"warmup.{phase}"] in (warm_up.STEADY, warm_up.LIMIT)
        assert result.metrics[f"check/{phase}_warmup_seconds"] >= STEADY_SECONDS

"""Device's own clock, and the warm-up of cells, beside the checks of the acceptance kit."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments.cell import warm_up
from experiments.selftest import cells
from tracking import nvml
from tracking.records import RunOutcome, Tags, from_line
from tracking.sensors.windows import STEADY_SECONDS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not nvml.names(), reason="NVML shows no GPU on this machine"),
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
]


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

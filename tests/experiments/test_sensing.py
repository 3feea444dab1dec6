"""What the parent's sensors say of a cell on a GPU, on a driver that answers as told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tracking.nvml import UUIDS, Driver, driver, library  # noqa: F401

CELL = """
import json, sys, time
from experiments.run.cell_process import CellProcess
from experiments.contract import CellSpec
from tracking.records import Metrics, Tags
spec = CellSpec("run", "none", "none", "toy", DEVICE, 1, 0, {"malloc": "system"}, {}, FOLDER, "cell", FOLDER + "/checkpoint")
written = []
CellProcess(spec, written.append).run(0.05)
tags = {name: text for one in written if isinstance(one, Tags) for name, text in one.values.items()}
points = [point.key for one in written if isinstance(one, Metrics) for point in one.points]
print(json.dumps([tags, sorted({key.split("_")[1] for key in points if key.startswith("system/gpu_")})]))
"""


@pytest.mark.parametrize(("device", "uuid", "index"), [("cuda", UUIDS[2], "2"), ("cpu", None, "2")])
def test_a_run_names_its_gpu_and_has_its_sensors(
    driver: Driver,
    tmp_path: Path,
    device: str,
    uuid: str | None,
    index: str,
) -> None:
    """On the CPU, too, the GPU that CUDA would take is read: its heat is the machine's."""
    driver.answers(cards=4)
    script = CELL.replace("DEVICE", repr(device)).replace("FOLDER", repr(str(tmp_path)))
    tags, indices = json.loads(driver.python(script, CUDA_VISIBLE_DEVICES="2,0"))
    assert tags.get("gpu.uuid") == uuid
    assert indices == [index]

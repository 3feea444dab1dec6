"""A cell's process as its parent starts and ends it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments.contract import CellSpec
from experiments.run.cell_process import CellProcess
from tests.tracking.nvml import INSTANCES, UUIDS, Driver, driver, library  # noqa: F401

# Four times what a pipe holds, written after the request to end.
LINES = 4_000
LAST_WORDS = f"""#!{sys.executable}
import signal, sys, time
def end(*_):
    for number in range({LINES}):
        print('{{"progress": "' + "x" * 50 + '", "done": %d, "total": 1}}' % number)
    sys.stdout.flush()
    sys.exit()
signal.signal(signal.SIGTERM, end)
print('{{"progress": "ready", "done": -1, "total": 1}}', flush=True)
while True:
    time.sleep(1)
"""


def test_reports_during_stop_are_received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text(LAST_WORDS)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    paths = (str(tmp_path), "cell", str(tmp_path / "checkpoint"))
    spec, heard = CellSpec("run", "none", "none", "toy", "cpu", 1, 0, {}, {}, *paths), list[int]()
    with CellProcess(spec, lambda _: None, lambda _, done, __: heard.append(done)) as cell:
        cell.start()
        while not heard:
            cell.poll(1.0)
    cell.end()
    assert heard == [-1, *range(LINES)]


# ---- which device a cell sees: its process starts as the variables of this one say

ECHO = f"""#!{sys.executable}
import json, os, sys
spec = json.loads(sys.stdin.readline())
print(json.dumps({{"progress": "", "done": [dict(os.environ), spec["environment"]], "total": 1}}), flush=True)
"""
START = """
import dataclasses, json, pathlib, sys
from experiments.run.cell_process import CellProcess
from experiments.contract import CellSpec
folder = pathlib.Path(FOLDER)
sys.executable = str(folder / "program")
paths = (str(folder), "cell", str(folder / "checkpoint"))
spec = CellSpec("run", "none", "none", "toy", DEVICE, 1, 0, SETTINGS, {}, *paths)
said = []
cell = CellProcess(dataclasses.replace(spec, **MORE), lambda _: None, lambda _, done, __: said.append(done))
cell.run()
print(json.dumps([*said[0], list(cell.gpus)]))
"""


class CellStarter:
    """Start of a cell whose variables are returned with those of its treatment and the GPUs of its sensors."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self._driver, self._folder = driver, folder
        (folder / "program").write_text(ECHO)
        (folder / "program").chmod(0o755)

    def __call__(
        self,
        device: str,
        settings: Mapping[str, Any] | None = None,
        more: Mapping[str, Any] | None = None,
        **variables: str,
    ) -> tuple[dict[str, str], dict[str, str | None], list[str]]:
        told = {
            "FOLDER": str(self._folder),
            "DEVICE": device,
            "SETTINGS": dict(settings or {}),
            "MORE": dict(more or {}),
        }
        head = "".join(f"{name} = {value!r}\n" for name, value in told.items())
        seen, own, gpus = json.loads(self._driver.python(head + START, **variables))
        return seen, own, gpus


@pytest.fixture
def start(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CellStarter:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "XLA_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    driver.answers(cards=4)
    return CellStarter(driver, tmp_path)


def test_cpu_cell_sees_no_gpu(start: CellStarter) -> None:
    seen, _, gpus = start("cpu", CUDA_VISIBLE_DEVICES="1")
    assert (seen["CUDA_VISIBLE_DEVICES"], gpus) == ("", [])


@pytest.mark.parametrize(
    ("inherited", "uuid"), [("2,1", UUIDS[2]), (UUIDS[3], UUIDS[3]), (None, UUIDS[0])]
)
def test_cell_and_sensors_have_the_same_gpu(
    start: CellStarter, inherited: str | None, uuid: str
) -> None:
    seen, _, gpus = start("cuda", **({"CUDA_VISIBLE_DEVICES": inherited} if inherited else {}))
    assert (seen["CUDA_VISIBLE_DEVICES"], gpus) == (uuid, [uuid])
    assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("settings", "count"), [({"worker_count": 2}, 2), ({"worker_count": 0, "workers": [1, 3]}, 3)]
)
def test_workers_have_one_gpu_each(
    start: CellStarter, settings: Mapping[str, Any], count: int
) -> None:
    seen, _, gpus = start("cuda", settings)
    assert gpus == UUIDS[:count]
    assert seen["CUDA_VISIBLE_DEVICES"] == ",".join(gpus)


ON_DEVICES = """
import json, os
from experiments.config import devices
print(json.dumps([devices.environment_on(device, os.environ) for device in ("cpu", "cuda")]))
"""


def test_processes_of_proofs_have_the_device_of_a_cell(driver: Driver, start: CellStarter) -> None:
    variables = {"CUDA_VISIBLE_DEVICES": "2,1"}
    cells = [start(device, **variables)[0] for device in ("cpu", "cuda")]
    assert cells[1]["CUDA_VISIBLE_DEVICES"] == UUIDS[2]
    names = [name for name in cells[1] if name.startswith(("CUDA_", "XLA_"))]
    assert len(names) == 4
    expected = [{name: cell.get(name) for name in names} for cell in cells]
    environments = json.loads(driver.python(ON_DEVICES, **variables))
    assert [{name: variables.get(name) for name in names} for variables in environments] == expected


def test_treatment_may_choose_gpu(start: CellStarter) -> None:
    seen, own, gpus = start(
        "cuda", more={"environment": {"CUDA_VISIBLE_DEVICES": "3"}}, CUDA_VISIBLE_DEVICES="0"
    )
    assert (seen["CUDA_VISIBLE_DEVICES"], gpus) == (UUIDS[3], UUIDS[3:])
    assert own == {"CUDA_VISIBLE_DEVICES": UUIDS[3]}, (
        "the cell checks that its process has the variable"
    )


def test_jax_does_not_preallocate_unless_varied(start: CellStarter) -> None:
    seen, _, _ = start("cuda", XLA_PYTHON_CLIENT_PREALLOCATE="true", XLA_CLIENT_MEM_FRACTION="0.5")
    assert seen["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert seen["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.95"
    assert "XLA_CLIENT_MEM_FRACTION" not in seen, "JAX refuses both"
    own = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_CLIENT_MEM_FRACTION": "0.5"}
    seen, _, _ = start("cuda", more={"environment": own})
    assert {name: seen[name] for name in own} == own
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in seen

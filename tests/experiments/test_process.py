"""Process of a cell, as its parent starts and ends it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.config.settings import CampaignSettings
from experiments.contract import CellSpec
from experiments.run.cell_process import CellProcess
from tests.cells import cell_spec
from tests.tracking.nvml import UUIDS, Driver, driver, library  # noqa: F401
from tracking.records import RunOutcome

# Four times the capacity of a pipe, written after the request to end.
LINES = 4_000
LAST_WORDS = f"""#!{sys.executable}
import os, signal, sys, time
def end(*_):
    for number in range({LINES}):
        print('{{"progress": "' + "x" * 50 + '", "done": %d, "total": 1}}' % number)
    sys.stdout.flush()
    sys.exit()
signal.signal(signal.SIGTERM, end)
# not `print`: the signal may come before it returns, and it cannot be entered twice
os.write(1, b'{{"progress": "ready", "done": -1, "total": 1}}\\n')
while True:
    time.sleep(1)
"""


def test_reports_during_stop_are_received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text(LAST_WORDS)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    paths = (str(tmp_path), "cell", str(tmp_path / "checkpoint"))
    spec = CellSpec("run", "none", "none", "toy", "cpu", 1, 0, CampaignSettings(), {}, *paths)
    received = list[int]()
    with CellProcess(spec, lambda _: None, lambda _, done, __: received.append(done)) as cell:
        cell.start()
        while not received:
            cell.poll(1.0)
    cell.end()
    assert received == [-1, *range(LINES)]


# ---- devices: the child gets them by variables

ECHO = f"""#!{sys.executable}
import json, os, sys
spec = json.loads(sys.stdin.readline())
print(json.dumps({{"progress": "", "done": [dict(os.environ), spec["environment"]], "total": 1}}))
"""
START = """
import json, pathlib, sys
from experiments.run.cell_process import CellProcess
from experiments.contract import CellSpec
from experiments.studies.distributed import Settings
folder, device, settings, environment = json.loads(ARGUMENTS)
sys.executable = folder + "/program"
paths = (folder, "cell", folder + "/checkpoint")
settings = Settings(**{"workers": [1], **settings})
spec = CellSpec(
    *("run", "none", "none", "toy", device, 1, 0, settings, {}, *paths),
    environment=environment,
)
received = []
cell = CellProcess(spec, lambda _: None, lambda _, done, __: received.append(done))
cell.run()
print(json.dumps([*received[0], list(cell.gpus)]))
"""


class CellStarter:
    """Start of a cell; returns its variables, those of its treatment, and its sensors' GPUs."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self._driver, self._folder = driver, folder
        (folder / "program").write_text(ECHO)
        (folder / "program").chmod(0o755)

    def __call__(
        self, device: str, settings: Any = None, environment: Any = None, **variables: str
    ) -> tuple[dict[str, str], dict[str, str | None], list[str]]:
        arguments = json.dumps([str(self._folder), device, settings or {}, environment or {}])
        script = START.replace("ARGUMENTS", repr(arguments))
        child, varied, gpus = json.loads(self._driver.python(script, **variables))
        return child, varied, gpus


@pytest.fixture
def start(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CellStarter:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "XLA_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    driver.answers(cards=4)
    return CellStarter(driver, tmp_path)


@pytest.mark.parametrize(
    ("device", "inherited", "settings", "uuids"),
    [
        ("cpu", "1", {}, []),
        ("cuda", "2,1", {}, UUIDS[2:3]),
        ("cuda", UUIDS[3], {}, UUIDS[3:4]),
        ("cuda", None, {}, UUIDS[:1]),
        ("cuda", None, {"worker_count": 2}, UUIDS[:2]),
        ("cuda", None, {"worker_count": 0, "workers": [1, 3]}, UUIDS[:3]),
    ],
)
def test_cell_and_sensors_have_one_gpu_for_each_worker(
    start: CellStarter,
    device: str,
    inherited: str | None,
    settings: dict[str, Any],
    uuids: list[str],
) -> None:
    variables = {"CUDA_VISIBLE_DEVICES": inherited} if inherited else {}
    child, _, gpus = start(device, settings, **variables)
    assert gpus == uuids
    assert child["CUDA_VISIBLE_DEVICES"] == ",".join(uuids)
    assert device == "cpu" or child["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_treatment_may_choose_gpu(start: CellStarter) -> None:
    child, varied, gpus = start("cuda", environment={"CUDA_VISIBLE_DEVICES": "3"})
    assert (child["CUDA_VISIBLE_DEVICES"], gpus) == (UUIDS[3], UUIDS[3:])
    assert varied == {"CUDA_VISIBLE_DEVICES": UUIDS[3]}, "the cell checks that it has the variable"


def test_jax_does_not_preallocate_unless_varied(start: CellStarter) -> None:
    values = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_CLIENT_MEM_FRACTION": "0.5"}
    child, _, _ = start("cuda", **values)
    assert child["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert child["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.95"
    assert "XLA_CLIENT_MEM_FRACTION" not in child, "JAX refuses both"
    child, _, _ = start("cuda", environment=values)
    assert values.items() <= child.items()
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in child


SENSED_CELL = """
import json
from experiments.run.cell_process import CellProcess
from experiments.contract import CellSpec
from experiments.studies.captioning import Settings
from tracking.records import Metrics, Tags
folder, device = json.loads(ARGUMENTS)
paths = (folder, "cell", folder + "/checkpoint")
cell = ("run", "none", "none", "toy", device, 1, 0, Settings(), {}, *paths)
spec = CellSpec(*cell, study="captioning")
written = []
CellProcess(spec, written.append).run(0.05)
tags = [record.values for record in written if isinstance(record, Tags)]
points = [point for record in written if isinstance(record, Metrics) for point in record.points]
gpus = {point.key.split("_")[1] for point in points if point.key.startswith("system/gpu_")}
print(json.dumps([[each["gpu.uuid"] for each in tags if "gpu.uuid" in each], sorted(gpus)]))
"""


@pytest.mark.parametrize(("device", "uuids"), [("cuda", UUIDS[2:3]), ("cpu", [])])
def test_run_names_its_gpu_and_has_its_sensors(
    driver: Driver, tmp_path: Path, device: str, uuids: list[str]
) -> None:
    """Read the GPU that CUDA would take for cells on the CPU, too: its heat is the machine's."""
    driver.answers(cards=4)
    script = SENSED_CELL.replace("ARGUMENTS", repr(json.dumps([str(tmp_path), device])))
    output = driver.python(script, CUDA_VISIBLE_DEVICES="2,0")
    assert json.loads(output) == [uuids, ["2"]]


# ---- modules at its end: its framework, no other one, and no MLflow

# Python runs it in every process whose path has it: at its end a cell writes its modules.
WATCH = """
import atexit, pathlib, sys
atexit.register(lambda: pathlib.Path({to!r}, "modules").write_text("\\n".join(sys.modules)))
"""
OF_THE_PARENT = {"mlflow", "experiments.run", "tracking.store"}
FRAMEWORKS = {"pytorch": {"torch"}, "tensorflow": {"tensorflow", "keras"}}
# MLflow and notebooks bring them, and no framework requires one.
OF_MLFLOW = {"IPython", "matplotlib", "pandas", "scipy", "sklearn"}
OTHERS = {"jax", "torchvision"}  # LeNet needs none of them on either side
FEW = {"epochs": 1, "steps_per_epoch": 2, "warmup_steps": 1, "inference_requests": 2}


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the modules at the end of a cell that trains LeNet, by framework."""
    folder = tmp_path_factory.mktemp("cells")
    children = {}
    for name in FRAMEWORKS:
        place = folder / name
        place.mkdir()
        (place / "sitecustomize.py").write_text(WATCH.format(to=str(place)))
        spec = cell_spec(place, "lenet", name, "cpu", 1, {"threads": 1, **FEW})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(place))
            children[name] = CellProcess(spec, lambda _: None)
            children[name].start()
    for child in children.values():
        while child.open:
            child.poll(1.0)
        closed = child.end()
        assert closed is not None
        assert closed.outcome == RunOutcome.OK, closed.reason
    return {name: set((folder / name / "modules").read_text().split()) for name in FRAMEWORKS}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_cell_imports_only_its_framework(framework: str, modules: dict[str, set[str]]) -> None:
    foreign = set().union(*FRAMEWORKS.values()) - FRAMEWORKS[framework]
    needed = FRAMEWORKS[framework] | {"experiments.workloads.classification.train"}
    assert needed <= modules[framework]
    assert modules[framework] & (foreign | OTHERS | OF_MLFLOW | OF_THE_PARENT) == set()

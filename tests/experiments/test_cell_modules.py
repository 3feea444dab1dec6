"""Modules that a cell has imported by its end: its framework, no other one, and no MLflow."""

from __future__ import annotations

import pytest

from experiments.run.cell_process import CellProcess
from tests.cells import cell_spec
from tracking.records import RunOutcome

# Python runs it in every process whose path has it: at its end a cell writes its modules.
WATCH = """
import atexit, pathlib, sys
atexit.register(lambda: pathlib.Path({to!r}, "modules").write_text("\\n".join(sys.modules)))
"""
OF_THE_PARENT = {"mlflow", "experiments.run", "tracking.store"}
FRAMEWORKS = {"pytorch": {"torch"}, "tensorflow": {"tensorflow", "keras"}}
# MLflow brings them, and no framework requires one.
OF_MLFLOW = {"matplotlib", "pandas", "scipy", "sklearn"}
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

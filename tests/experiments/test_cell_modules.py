"""What a measured cell has imported by its end: its own framework, no other one, no MLflow and nothing that MLflow brings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from experiments.contract import CellSpec
from experiments.run.cell_process import CellProcess
from experiments.studies import lenet
from experiments.workloads.classification.prepare import prepare
from tracking.records import RunOutcome

# Python runs it in every process whose path has it: at its end a cell writes what it has imported.
WATCH = """
import atexit, pathlib, sys
atexit.register(lambda: pathlib.Path({to!r}, "modules").write_text("\\n".join(sys.modules)))
"""
OF_THE_PARENT = {"mlflow", "experiments.run", "tracking.store"}
FRAMEWORKS = {"pytorch": {"torch"}, "tensorflow": {"tensorflow", "keras"}}
# It brings them, and no framework here requires one. (Nor pandas, which writes the tables when all is measured.)
OF_MLFLOW = {"matplotlib", "scipy", "sklearn"}
OTHERS = {"jax", "torchvision"}  # LeNet needs none of them on either side


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Framework -> modules at the end of a cell that trains LeNet, as a campaign starts it."""
    folder = tmp_path_factory.mktemp("cells")
    settings = lenet.Settings(
        cache=str(folder), epochs=1, steps_per_epoch=2, warmup_steps=1, inference_requests=2
    )
    inputs = dict(prepare(settings, lambda *_: None).inputs)
    values = {**dataclasses.asdict(settings), "input": "stream"}
    children = {}
    for name in FRAMEWORKS:
        place = folder / name
        place.mkdir()
        (place / "sitecustomize.py").write_text(WATCH.format(to=str(place)))
        spec = CellSpec(
            *(name, lenet.STUDY.workload, "train", name, "cpu", 1, 0, values, inputs),
            *(str(place), "cell", str(place / "checkpoint")),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(place))
            children[name] = CellProcess(spec, lambda _: None)
            children[name].start()
    found = {}
    for name, child in children.items():
        while child.open:
            child.poll(1.0)
        closed = child.end()
        assert closed is not None
        assert closed.outcome == RunOutcome.OK, closed.reason
        found[name] = set(Path(folder, name, "modules").read_text().split())
    return found


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_cell_imports_its_own_framework_and_nothing_of_the_parent(
    framework: str, watched: dict[str, set[str]]
) -> None:
    foreign = set().union(*(packages for name, packages in FRAMEWORKS.items() if name != framework))
    assert (
        FRAMEWORKS[framework] | {"experiments.workloads.classification.train"} <= watched[framework]
    )
    assert watched[framework] & (foreign | OTHERS | OF_MLFLOW | OF_THE_PARENT) == set()

"""Fixtures of the tests of experiments."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import mlflow
import pytest

from experiments.cli.main import main
from experiments.comparison.statistics import power
from experiments.run.cell_process import CellProcess
from tests.conftest import Place
from tracking import clock
from tracking.records import Metrics, Point, RunClosed

CallHere = Callable[..., CompletedProcess[str]]
# Seconds of a step of each toy framework, or of one in a block, in a cell that computes nothing.
STEP_SECONDS = {"toy": 0.002, "toy+twin": 0.03}
CELL_SECONDS = 0.1


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict further blocks at a probability of 90 %: at 95 % they are rare for one outcome."""
    monkeypatch.setattr(power, "PREDICTED", 0.9)


@pytest.fixture(scope="module")
def module_place(
    tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, empty_store: Path
) -> Place:
    """Return a place for one campaign that several tests of a module look at."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copy(empty_store, folder / "mlflow.db")
    return Place(folder, shared_cache, f"sqlite:///{folder}/mlflow.db")


@pytest.fixture
def call_here(
    place: Place,
    toy_installed: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> CallHere:
    """Return a function that runs a command in this process.

    Its cells have no process: each takes a moment and reports a known time of a step.
    """
    in_a_process = CellProcess.run

    def run(cell: CellProcess, *arguments: Any, **options: Any) -> RunClosed:
        if cell.spec.stage != "train":
            return in_a_process(cell, *arguments, **options)
        time.sleep(CELL_SECONDS)
        name, block, now = cell.spec.framework, cell.spec.block, clock.now_ms()
        seconds = STEP_SECONDS.get(f"{name} {block}", STEP_SECONDS[name])
        seconds *= 1 + 0.002 * (block * len(name) % 7)
        cell.latest = {"train/step_seconds": seconds, "train/examples_per_second": 8 / seconds}
        points = [Point(key, value, 0, now) for key, value in cell.latest.items()]
        cell._write(Metrics(cell.spec.run, tuple(points)))
        return RunClosed(cell.spec.run, now, "ok")

    def call(*words: str, uri: str = place.uri) -> CompletedProcess[str]:
        mlflow.set_tracking_uri(uri)
        code, output = main(words), capsys.readouterr()
        return CompletedProcess(words, code, output.out, output.err)

    monkeypatch.setattr(CellProcess, "run", run)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place.uri)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(place.folder)
    return call

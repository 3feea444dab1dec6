"""Fixtures of the tests of experiments."""

import io
import json
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest

from experiments import studies
from experiments.cell.output import Emitter
from experiments.cli.main import main
from experiments.comparison.statistics import power
from experiments.contract import CellSpec
from experiments.run import cell_process
from experiments.run.cell_process import CellProcess
from experiments.workloads import __main__ as workloads
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


class ThreadedChild:
    """Stand-in for the child of a cell that works in a thread of this process."""

    def __init__(self, *_: object, **__: object) -> None:
        self.pid, self.open = os.getpid(), True
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def send(self, line: str) -> None:
        threading.Thread(target=self._work, args=(json.loads(line),)).start()

    def _work(self, values: dict[str, Any]) -> None:
        spec: Any = CellSpec.from_values(values, studies.load(values["study"]).settings)
        stream: Any = SimpleNamespace(write=self._lines.put, flush=lambda: None)
        output = Emitter(spec, stream, io.StringIO())
        output.record(workloads.run(spec, output))
        self._lines.put("")

    def receive(self, timeout_seconds: float) -> list[str]:
        try:
            line = self._lines.get(timeout=timeout_seconds)
        except queue.Empty:
            return []
        self.open = bool(line)
        return [line] if line else []

    def close_input(self) -> None: ...

    def wait(self) -> int:
        return 0

    poll = wait

    def last_lines(self) -> list[str]:
        return ["no output"]


@pytest.fixture
def local_cells(toy_installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run commands of a place and their cells of the toy framework in this process."""

    def call(place: Place, *command: str) -> CompletedProcess[str]:
        output, errors = io.StringIO(), io.StringIO()
        variables = {"MLFLOW_TRACKING_URI": place.uri, "COLUMNS": "200"}
        with monkeypatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
            patch.chdir(place.folder)
            for name, text in variables.items():
                patch.setenv(name, text)
            mlflow.set_tracking_uri(place.uri)
            code = main(command[3:])
        return CompletedProcess(command, code, output.getvalue(), errors.getvalue())

    monkeypatch.setattr(Place, "call", call)
    monkeypatch.setattr(cell_process, "Child", ThreadedChild)


@pytest.fixture
def call_here(place: Place, local_cells: None, monkeypatch: pytest.MonkeyPatch) -> CallHere:
    """Return a function that runs a command in this process.

    Its cells compute nothing: each takes a moment and reports a known time of a step.
    """
    compute = CellProcess.run

    def run(cell: CellProcess, *arguments: Any, **options: Any) -> RunClosed:
        if cell.spec.stage != "train":
            return compute(cell, *arguments, **options)
        time.sleep(CELL_SECONDS)
        name, block, now = cell.spec.framework, cell.spec.block, clock.now_ms()
        seconds = STEP_SECONDS.get(f"{name} {block}", STEP_SECONDS[name])
        seconds *= 1 + 0.002 * (block * len(name) % 7)
        cell.latest = {"train/step_seconds": seconds, "train/examples_per_second": 8 / seconds}
        points = [Point(key, value, 0, now) for key, value in cell.latest.items()]
        cell._write(Metrics(cell.spec.run, tuple(points)))
        return RunClosed(cell.spec.run, now, "ok")

    monkeypatch.setattr(CellProcess, "run", run)
    return lambda *words, uri=place.uri: replace(place, uri=uri).call("", "", "", *words)

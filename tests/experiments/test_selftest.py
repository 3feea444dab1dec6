"""Acceptance kit without a GPU: checks that run on the CPU, skipped checks, and the result file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from experiments.selftest import catalogue, cells, children
from experiments.selftest.catalogue import CHECKS, NO_TF32
from experiments.selftest.checks import (
    FAILED,
    NEEDS_GPU,
    PASSED,
    SKIPPED,
    Check,
    Context,
    Skip,
    run_check,
)
from tests.conftest import ROOT
from tracking import provenance
from tracking.errors import ErrorCode
from tracking.records import Metrics, RunOutcome, Tags, from_line

ON_THE_CPU = (2, 7, 12, 13, 14, 16)
# Packages that a machine with a GPU may lack.
ABSENT = ("mlflow", "tensorflow", "keras", "optuna", "jax", "pandas")
HIDE = f"""
import sys
from importlib.machinery import PathFinder

class Hide:
    def find_spec(self, name, path=None, target=None):
        return None if name in {ABSENT!r} else PathFinder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(PathFinder, name)

sys.meta_path[:] = [Hide() if finder is PathFinder else finder for finder in sys.meta_path]
"""
SIZES = {"models": ("lenet",), "image_sizes": (28,), "batch_sizes": (4,), "seconds": 0.05}


def run_without_packages(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a module in a process that finds no package of `ABSENT`, nor do its children."""
    (folder / "sitecustomize.py").write_text(HIDE)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_command_measures_known_work_without_mlflow(tmp_path: Path) -> None:
    options = ("--device=cpu", "--checks=2,7,10,12", f"--output={tmp_path}")
    frameworks = "--frameworks=pytorch,keras-torch,tensorflow"
    done = run_without_packages(tmp_path, "experiments", "selftest", *options, frameworks)
    assert done.returncode == 0, done.stdout + done.stderr
    values = json.loads((tmp_path / "selftest.json").read_text())
    statuses = {check["number"]: check["status"] for check in values["checks"]}
    assert statuses == {2: PASSED, 7: PASSED, 10: SKIPPED, 12: PASSED}
    assert values["counts"] == {PASSED: 3, FAILED: 0, SKIPPED: 1}
    assert "host" not in values["machine"]  # the file is made to be sent
    for check in values["checks"]:
        assert (check["status"] == SKIPPED) == bool(check["reason"])
        assert all(figure["holds"] is None or figure["limit"] for figure in check["figures"])
    figures = {figure["name"]: figure for figure in values["checks"][0]["figures"]}
    for name in ("keras-torch", "tensorflow"):
        assert figures[name]["holds"] is None
        assert figures[name]["reason"]
    assert figures["pytorch, float32, matmul, error"]["holds"]
    assert 1e-3 < figures["pytorch, bfloat16, lstm, error"]["value"] < 0.1
    assert figures["pytorch, tf32"]["reason"] == NO_TF32


def test_gpu_tests_need_no_other_package(tmp_path: Path) -> None:
    words = ("pytest", "-m", "gpu", "tests/gpu", "-p", "no:cacheprovider", "-q")
    done = run_without_packages(tmp_path, *words)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    if not provenance.gpus():
        (skipped,) = re.findall(r"(\d+) skipped", done.stdout.splitlines()[-1])
        assert int(skipped) >= 16
        assert "passed" not in done.stdout


def test_checks_that_need_a_gpu_are_skipped_on_the_cpu(tmp_path: Path) -> None:
    assert [check.number for check in CHECKS] == list(range(1, 17))
    assert tuple(check.number for check in CHECKS if check.on_cpu) == ON_THE_CPU
    context = Context("cpu", ("pytorch",), tmp_path)
    results = [run_check(check, context) for check in CHECKS if not check.on_cpu]
    assert {(result.status, result.reason) for result in results} == {(SKIPPED, NEEDS_GPU)}


def fail(_: Context) -> None:
    raise RuntimeError("the driver\nhas gone")


def skip(_: Context) -> None:
    raise Skip("no such card")


@pytest.mark.parametrize(
    ("function", "status", "reason"),
    [
        (lambda context: context.at_most("a", 1.0, 2.0), PASSED, ""),
        (lambda context: context.at_most("a", 3.0, 2.0), FAILED, "does not hold: a"),
        (lambda context: context.at_most("a", float("nan"), 2.0), FAILED, "does not hold: a"),
        (lambda context: context.report("a", None, "missing"), SKIPPED, "missing"),
        (lambda _: None, SKIPPED, "nothing was measured"),
        (fail, FAILED, "RuntimeError: the driver has gone"),
        (skip, SKIPPED, "no such card"),
    ],
)
def test_every_end_of_a_check_is_a_result(
    function: Callable[[Context], None], status: str, reason: str, tmp_path: Path
) -> None:
    check = Check(1, "a", "a", function, on_cpu=True)
    result = run_check(check, Context("cpu", (), tmp_path))
    assert (result.status, result.reason) == (status, reason)


def test_failed_check_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(CHECKS[6], function=lambda context: context.at_most("a", 3.0, 2.0))
    monkeypatch.setattr(catalogue, "CHECKS", (broken,))
    assert main.main(["selftest", "--device=cpu", f"--output={tmp_path}"]) == 1
    values = json.loads((tmp_path / "selftest.json").read_text())
    assert values["counts"] == {PASSED: 0, FAILED: 1, SKIPPED: 0}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("profiler", {"device": "cpu", "side": "wide"}),  # raises
        ("device_of", {"device": "cpu"}),  # lacks an option
    ],
)
def test_probe_error_is_passed_on(name: str, options: dict[str, str]) -> None:
    with pytest.raises(children.ProbeError) as error:
        children.probe(name, **options)
    assert error.value.code is ErrorCode.CHILD_FAILED
    assert name in str(error.value)


@pytest.mark.skipif(bool(provenance.gpus()), reason="there is a GPU")
def test_missing_gpu_is_a_wrong_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["selftest", "--device=cuda", f"--output={tmp_path}"]) == 2
    assert "device=cuda" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def recorded(folder: Path) -> list[Any]:
    (file,) = folder.glob(f"cells/*/{cells.RECORDS}")
    return [from_line(line) for line in file.read_text().splitlines()]


@pytest.mark.usefixtures("toy_installed")
def test_cell_runs_without_a_campaign(tmp_path: Path) -> None:
    result = cells.run(tmp_path, "grid", "toy", "cpu", **SIZES)
    assert (result.outcome, result.reason) == (RunOutcome.OK, "")
    assert {"train/examples_per_second", "inference/examples_per_second"} <= result.metrics.keys()
    records = [record for record in recorded(tmp_path) if isinstance(record, Metrics)]
    points = {point.key for record in records for point in record.points}
    assert "system/cpu_utilization_percentage" in points
    assert list(tmp_path.glob("cells/*/values.parquet"))


@pytest.mark.usefixtures("toy_installed")
def test_cell_out_of_memory_has_its_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps({"toy": {"row_bytes": 10**15}}))
    phases = ("inference", "train")
    result = cells.run(tmp_path, "grid", "toy", "cpu", phases=phases, **SIZES)
    assert (result.outcome, result.phase) == (RunOutcome.OUT_OF_MEMORY, "inference")
    tags = [record.values for record in recorded(tmp_path) if isinstance(record, Tags)]
    assert {"phase": "inference"} in tags


@pytest.mark.slow
@pytest.mark.parametrize("number", [*ON_THE_CPU, 5])
def test_every_check_of_the_cpu_passes(number: int, tmp_path: Path) -> None:
    context = Context("cpu", ("pytorch", "pytorch+compile", "keras-torch"), tmp_path)
    result = run_check(replace(CHECKS[number - 1], on_cpu=True), context)
    assert (result.status, result.reason) == (PASSED, "")

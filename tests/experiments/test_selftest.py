"""The acceptance kit without a GPU: what it measures here, what it skips, what its files hold."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.selftest import cells, running
from experiments.selftest.catalogue import CHECKS, NO_TF32, ON_A_GPU
from experiments.selftest.checks import (
    FAILED,
    PASSED,
    SKIPPED,
    Check,
    Context,
    Figure,
    Skip,
    at_most,
    equal,
    reported,
    unmeasured,
)
from tests.conftest import ROOT
from tracking import provenance
from tracking.records import Metrics, RunOutcome, Tags, from_line

ON_THE_CPU = (2, 4, 5, 7, 12, 13, 14, 16)
# What a machine with a GPU may lack.
ABSENT = ("mlflow", "tensorflow", "keras", "optuna", "jax", "pandas")


@pytest.fixture(scope="module")
def bare_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which Python finds none of `ABSENT`, in children too."""
    folder = tmp_path_factory.mktemp("bare")
    finder = f"""
import sys
from importlib.machinery import PathFinder

class Hide:
    def find_spec(self, name, path=None, target=None):
        return None if name in {ABSENT!r} else PathFinder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(PathFinder, name)

sys.meta_path[:] = [Hide() if finder is PathFinder else finder for finder in sys.meta_path]
"""
    (folder / "sitecustomize.py").write_text(finder)
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.fixture(scope="module")
def run_values(
    bare_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Results of the quick checks where PyTorch is the only framework, from the command."""
    folder = tmp_path_factory.mktemp("selftest")
    options = [
        "--device=cpu",
        "--checks=2,7,10,12",
        "--frameworks=pytorch,keras-torch,tensorflow",
        f"--output={folder}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "selftest", *options],
        cwd=ROOT,
        env=bare_environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    values: dict[str, Any] = json.loads((folder / "selftest.json").read_text())
    return {**values, "markdown": (folder / "selftest.md").read_text(), "output": done.stdout}


def test_the_command_needs_no_mlflow_and_measures_known_work(run_values: dict[str, Any]) -> None:
    statuses = {check["number"]: check["status"] for check in run_values["checks"]}
    assert statuses == {2: PASSED, 7: PASSED, 10: SKIPPED, 12: PASSED}
    assert run_values["counts"] == {PASSED: 3, FAILED: 0, SKIPPED: 1}


def test_a_framework_that_is_not_installed_is_skipped_with_a_reason(
    run_values: dict[str, Any],
) -> None:
    figures = {figure["name"]: figure for figure in run_values["checks"][0]["figures"]}
    for name in ("keras-torch", "tensorflow"):
        assert (figures[name]["value"], figures[name]["holds"]) == (None, None)
        assert "is not installed" in figures[name]["reason"]
    assert figures["pytorch, float32, matmul, error"]["holds"]
    assert 1e-3 < figures["pytorch, bfloat16, lstm, error"]["value"] < 0.1
    assert figures["pytorch, tf32"]["reason"] == NO_TF32


def test_the_files_have_every_figure_with_its_limit(run_values: dict[str, Any]) -> None:
    for check in run_values["checks"]:
        assert check["must_hold"]
        assert (check["status"] == SKIPPED) == bool(check["reason"])
        for figure in check["figures"]:
            assert figure["holds"] is None or figure["limit"]
            assert f"| {check['number']} | {figure['name']} |" in run_values["markdown"]
    assert "3 passed, 0 failed, 1 skipped" in run_values["markdown"]
    assert "host" not in run_values["machine"]  # the files are made to be sent
    assert "selftest.json" in run_values["output"]


def test_the_checks_are_those_of_the_table() -> None:
    assert [check.number for check in CHECKS] == list(range(1, 17))
    assert tuple(check.number for check in CHECKS if check.on_cpu) == ON_THE_CPU
    assert sum(check.seconds for check in CHECKS) <= 600


def test_what_needs_a_gpu_is_skipped_on_the_cpu(tmp_path: Path) -> None:
    numbers = [check.number for check in CHECKS if not check.on_cpu]
    results = running.run_checks(numbers, Context("cpu", ("pytorch",), tmp_path))
    assert {(result.status, result.reason) for result in results} == {(SKIPPED, running.NEEDS_GPU)}


def failing(_: Context) -> list[Figure]:
    raise RuntimeError("the driver\nhas gone")


def skipping(_: Context) -> list[Figure]:
    raise Skip("no such card")


@pytest.mark.parametrize(
    ("function", "status", "reason"),
    [
        (lambda _: [at_most("a", 1.0, 2.0)], PASSED, ""),
        (lambda _: [at_most("a", 3.0, 2.0), equal("b", 1, 1)], FAILED, "does not hold: a"),
        (lambda _: [at_most("a", float("nan"), 2.0)], FAILED, "does not hold: a"),
        (lambda _: [unmeasured("a", "not installed")], SKIPPED, "not installed"),
        (lambda _: [], SKIPPED, "nothing was measured"),
        (failing, FAILED, "RuntimeError: the driver has gone"),
        (skipping, SKIPPED, "no such card"),
    ],
)
def test_however_a_check_ends_is_a_result(
    function: Any, status: str, reason: str, tmp_path: Path
) -> None:
    result = running.run_check(
        Check(1, "a", 1, "a", function, on_cpu=True), Context("cpu", (), tmp_path)
    )
    assert (result.status, result.reason) == (status, reason)
    values = running.as_values([result], "cpu")
    assert json.loads(running.as_json(values))["checks"][0]["status"] == status
    assert f"| {status} |" in running.as_markdown(values)


def test_a_row_states_its_limit_or_why_there_is_none(tmp_path: Path) -> None:
    figures = [at_most("a", 1.0, 2.0), reported("b", 3.0), unmeasured("c", "not installed")]
    check = Check(1, "known work", 1, "a below 2", lambda _: figures, on_cpu=True)
    results = [running.run_check(check, Context("cpu", (), tmp_path))]
    lines = running.as_markdown(running.as_values(results, "cpu")).splitlines()
    assert lines[-3:] == [
        "| 1 | a | 1 | at most 2 | yes |",
        "| 1 | b | 3 | none, reported only | – |",
        "| 1 | c | not measured: not installed | – | – |",
    ]
    assert any(
        line.startswith("| 1 | known work | passed |") and "a below 2" in line for line in lines
    )


def test_the_contract_suite_is_skipped_without_pytest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pytest", None)  # "not installed", to an import
    result = running.run_check(CHECKS[3], Context("cpu", ("pytorch",), tmp_path))
    assert (result.status, result.reason.split(",")[0]) == (SKIPPED, "pytest is not installed")


def test_a_failed_check_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.cli import main

    broken = replace(CHECKS[6], function=lambda _: [at_most("a", 3.0, 2.0)])
    monkeypatch.setattr(running, "CHECKS", (broken,))
    assert main.main(["selftest", "--device=cpu", f"--output={tmp_path}"]) == 1
    assert json.loads((tmp_path / "selftest.json").read_text())["counts"] == {
        PASSED: 0,
        FAILED: 1,
        SKIPPED: 0,
    }


@pytest.mark.skipif(bool(provenance.gpus()), reason="there is a GPU")
def test_a_gpu_that_is_missing_is_a_wrong_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments.cli import main

    assert main.main(["selftest", "--device=cuda", f"--output={tmp_path}"]) == 2
    assert "device=cuda" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("toy_installed")
def test_a_cell_runs_without_a_campaign(tmp_path: Path) -> None:
    sizes = {"models": ("lenet",), "image_sizes": (28,), "batch_sizes": (4,), "seconds": 0.05}
    result = cells.run(tmp_path, "grid", "toy", "cpu", **sizes)
    assert (result.outcome, result.reason) == (RunOutcome.OK, "")
    assert {"train/examples_per_second", "inference/examples_per_second"} <= result.metrics.keys()
    (file,) = tmp_path.glob(f"cells/*/{cells.RECORDS}")
    records = [from_line(line) for line in file.read_text().splitlines()]
    points = {
        point.key for record in records if isinstance(record, Metrics) for point in record.points
    }
    assert "system/cpu_utilization_percentage" in points
    assert list(tmp_path.glob("cells/*/values.parquet"))


@pytest.mark.usefixtures("toy_installed")
def test_a_cell_that_does_not_fit_has_its_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps({"toy": {"row_bytes": 10**15}}))
    sizes = {"models": ("lenet",), "image_sizes": (28,), "batch_sizes": (4,), "seconds": 0.05}
    result = cells.run(tmp_path, "grid", "toy", "cpu", phases=("inference", "train"), **sizes)
    assert (result.outcome, result.phase) == (str(RunOutcome.OUT_OF_MEMORY), "inference")
    lines = next(tmp_path.glob(f"cells/*/{cells.RECORDS}")).read_text().splitlines()
    assert any(
        record.values.get("phase") == "inference"
        for line in lines
        if isinstance(record := from_line(line), Tags)
    )


def test_the_kit_on_a_gpu_needs_nothing_of_the_other_tests(
    bare_environment: dict[str, str],
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", "-p", "no:cacheprovider", "-q"],
        cwd=ROOT,
        env=bare_environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    if not provenance.gpus():
        (skipped,) = re.findall(r"(\d+) skipped", done.stdout.splitlines()[-1])
        assert int(skipped) >= 16
        assert "passed" not in done.stdout
        assert "no NVIDIA GPU answers" in done.stdout


@pytest.mark.slow
def test_every_check_of_the_cpu_passes(tmp_path: Path) -> None:
    names = ("pytorch", "pytorch+compile", "keras-torch")
    results = running.run_checks(ON_THE_CPU, Context("cpu", names, tmp_path))
    assert {result.number: (result.status, result.reason) for result in results} == dict.fromkeys(
        ON_THE_CPU, (PASSED, "")
    )
    left_out = {
        result.number: [one.name for one in result.figures if one.reason == ON_A_GPU]
        for result in results
    }
    assert left_out[4] == ["pytorch+compile", "keras-torch"]
    assert left_out[5] == ["caption_decoder", "bert"]

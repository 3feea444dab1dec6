"""A framework whose processes another interpreter runs: here a virtual environment above this one's packages."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from experiments import studies
from experiments.cli.codes import WRONG_CALL
from experiments.cli.main import main
from experiments.config import interpreters
from experiments.config import settings as settings_
from experiments.run import plan as plan_
from models import frameworks
from models.errors import NoDevice
from models.frameworks import devices
from tests.conftest import PYTHONPATH, ROOT, Place
from tests.experiments.test_until_settled import TOYS
from tracking import provenance
from tracking.errors import UsageError
from tracking.store import Store

PACKAGE, VERSION = (
    "sacrebleu",
    "99.1",
)  # of which the other environment seems to have another version


def environment(folder: Path) -> Path:
    """Make a virtual environment without any package; returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """An interpreter with this one's packages but for one version, which lists in `calls` what it was started with."""
    python = environment(tmp_path / "other")
    (site,) = (tmp_path / "other" / "lib").glob("python*/site-packages")
    (site / "below.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n"
    )
    info = site / f"{PACKAGE}-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n")
    listing = tmp_path / "other" / "listing"
    listing.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path / "calls"}\nexec {python} "$@"\n')
    listing.chmod(0o755)
    return listing


def test_one_framework_of_a_campaign_runs_there(place: Place, other: Path, tmp_path: Path) -> None:
    done = place.run(**TOYS, blocks="2", pythons=f"toy+twin={other}", timing="step")
    assert done.returncode in (0, 3), done.stdout + done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert sum("-m experiments.cell" in call for call in calls) == 3, (
        "the check of the device and two cells"
    )
    assert sum("-m models.parity" in call for call in calls) == 1

    (folder,) = place.journal.iterdir()
    cells = [run for run in Store(place.uri).runs(["captioning"]) if run.tags.get("kind") == "cell"]
    assert len(cells) == 4
    ours = provenance.packages(frameworks.distributions())[PACKAGE]
    for run in cells:
        twin = run.params["framework"] == "toy+twin"
        assert run.tags.get("interpreter", "") == (str(other) if twin else "")
        assert run.tags[f"version.{PACKAGE}"] == (VERSION if twin else ours)
        found = json.loads(
            next(folder.glob(f"cells/*/{run.tags['origin'][:8]}/environment.json")).read_text()
        )
        assert found["packages"][PACKAGE] == run.tags[f"version.{PACKAGE}"]
    assert len({run.tags["environment"] for run in cells}) == 1, (
        "blocks of both interpreters are of one environment"
    )
    report = json.loads((folder / "report" / "comparison.json").read_text())
    assert {
        level: facts[f"version.{PACKAGE}"] for level, facts in report["environment"].items()
    } == {
        "toy": ours,
        "toy+twin": VERSION,
    }
    assert "environments (machine and packages)" not in done.stdout
    assert VERSION in (folder / "report" / "report.md").read_text()


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        ("tensorflow", "/a"),
        ("tensorflow+xla", "/b"),
        ("tensorflow+eager", "/a"),
        ("keras-tensorflow", ""),
        ("pytorch", ""),
    ],
)
def test_a_frameworks_interpreter_is_its_variants_too(framework: str, expected: str) -> None:
    pythons = ("tensorflow=/a", "tensorflow+xla=/b")
    assert interpreters.separate(framework, pythons) == expected
    assert interpreters.executable(framework, pythons) == (expected or sys.executable)


@pytest.mark.parametrize("command", [["lenet"], ["parity", "--models=lenet"]])
@pytest.mark.parametrize(
    ("pythons", "said"),
    [
        (
            "tensorflow",
            "pythons=tensorflow is not a framework with its interpreter; write tensorflow=/PATH/bin/python",
        ),
        ("tensorflow=", "pythons=tensorflow= is not a framework"),
        (
            "tensorflow=bin/python",
            "pythons: tensorflow=bin/python is not an absolute path; write tensorflow=/",
        ),
        ("tensorflow=/a,tensorflow=/b", "pythons: tensorflow is named twice; keep one"),
        ("tensorflo=/a", "no framework 'tensorflo'; did you mean tensorflow"),
        (
            "tensorflow=/nowhere/python",
            "pythons: tensorflow=/nowhere/python cannot be run: No such file or directory",
        ),
        (
            "tensorflow=/bin/true",
            "pythons: tensorflow=/bin/true does not run this project's code: its output is not",
        ),
        ("tensorflow=/bin/ls", "pythons: tensorflow=/bin/ls does not run this project's code: "),
    ],
)
def test_what_is_no_interpreter_is_refused(
    command: list[str], pythons: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folders = [f"--journal={tmp_path}/j", f"--cache={tmp_path}/c"] if command[0] == "lenet" else []
    assert (
        main([*command, f"--pythons={pythons}", "--frameworks=pytorch,tensorflow", *folders])
        == WRONG_CALL
    )
    error = capsys.readouterr().err
    assert error.startswith(f"evenhand: {said}"), error
    assert error.count("\n") == 1


def test_an_environment_without_the_framework_says_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    python = environment(tmp_path / "bare")
    reason = interpreters.missing("pytorch", [f"pytorch={python}"])
    assert reason is not None
    assert reason.startswith("pytorch: torch is not installed: pip install")
    assert reason.endswith(f"(pythons: with {python} -m pip)")


def test_the_interpreter_is_no_setting_of_a_cell() -> None:
    module = studies.load("lenet")
    settings = settings_.parse(module.settings, module.presets, {"vary": "pythons=a|b"})
    with pytest.raises(UsageError, match="vary: pythons is a setting of the campaign"):
        plan_.of_study(module, settings)


@pytest.mark.skipif(bool(provenance.gpus()), reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("framework", "word"),
    [
        ("pytorch", "NVIDIA driver"),
        pytest.param("tensorflow", "cuda", marks=pytest.mark.slow),
    ],
)
def test_a_framework_without_a_gpu_gives_its_own_reason(framework: str, word: str) -> None:
    if reason := frameworks.missing(framework):
        pytest.skip(reason)
    script = f"""
from models.errors import NoDevice
from models.frameworks import open_framework
try:
    open_framework({framework!r}, device="cuda", threads=1, precision="float32", seed=0)
except NoDevice as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    library = framework.replace("pytorch", "torch")
    reason, _, own = done.stdout.partition(f". {library} reports: ")
    assert reason == f"device 'cuda': {library} sees no GPU here; use cpu or auto"
    assert word in own
    assert own.count("\n") == 1
    assert framework != "tensorflow" or "cuda" in done.stderr, "the whole text is in the log"


def test_a_reason_is_of_one_line_and_bounded() -> None:
    with pytest.raises(NoDevice) as error:
        devices.resolve("cuda", False, "tensorflow", "float32", "cannot load\n" + "x" * 9_000)
    assert "tensorflow reports: cannot load xxx" in str(error.value)
    assert len(str(error.value)) < 700

"""Frameworks with a separate interpreter: here a virtual environment over this one's packages."""

from __future__ import annotations

import json
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from experiments.config import interpreters
from models import frameworks
from tests.conftest import PYTHONPATH, Place
from tests.experiments.datasets.folders import refused
from tests.experiments.small_campaigns import comparison, measure
from tests.experiments.test_blocks import TOYS
from tests.models.children import run_python
from tracking import provenance
from tracking.errors import ErrorCode
from tracking.store import Store

# The other environment seems to have another version of this package.
PACKAGE, VERSION = "sacrebleu", "99.1"


def environment(folder: Path) -> Path:
    """Make a virtual environment without any package; returns its interpreter."""
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Return an interpreter with another version of one package, which records its calls."""
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


def test_framework_of_a_campaign_has_its_interpreter(
    place: Place, other: Path, tmp_path: Path
) -> None:
    measure(place, **TOYS, blocks="1", pythons=f"toy+twin={other}", timing="step")
    calls = (tmp_path / "calls").read_text().splitlines()
    # the check of the device and a cell
    assert sum("-m experiments.workloads" in call for call in calls) == 2
    assert sum("-m models.parity" in call for call in calls) == 1
    (folder,) = place.journal.iterdir()
    cells = [run for run in Store(place.uri).runs(["captioning"]) if run.tags.get("kind") == "cell"]
    assert len(cells) == 2
    ours = provenance.packages(frameworks.distributions())[PACKAGE]
    for run in cells:
        is_twin = run.params["framework"] == "toy+twin"
        assert run.tags.get("interpreter", "") == (str(other) if is_twin else "")
        assert run.tags[f"version.{PACKAGE}"] == (VERSION if is_twin else ours)
        (path,) = folder.glob(f"cells/*/{run.tags['origin'][:8]}/environment.json")
        assert json.loads(path.read_text())["packages"][PACKAGE] == run.tags[f"version.{PACKAGE}"]
    assert len({run.tags["environment"] for run in cells}) == 1, "blocks have one environment"
    facts = comparison(place)["environment"]
    versions = {level: values[f"version.{PACKAGE}"] for level, values in facts.items()}
    assert versions == {"toy": ours, "toy+twin": VERSION}
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
def test_variants_have_the_interpreter_of_their_framework(framework: str, expected: str) -> None:
    pythons = ("tensorflow=/a", "tensorflow+xla=/b")
    assert interpreters.separate(framework, pythons) == expected
    assert interpreters.executable(framework, pythons) == (expected or sys.executable)


@pytest.mark.parametrize(
    ("pythons", "code"),
    [
        ("tensorflow", ErrorCode.INVALID_VALUE),
        ("tensorflow=", ErrorCode.INVALID_VALUE),
        ("tensorflow=bin/python", ErrorCode.INVALID_VALUE),
        ("tensorflow=/a,tensorflow=/b", ErrorCode.DUPLICATE),
        ("tensorflow=/nowhere/python", ErrorCode.NOT_FOUND),
        ("tensorflow=/bin/true", ErrorCode.NOT_INSTALLED),
        ("tensorflow=/bin/ls", ErrorCode.NOT_INSTALLED),
    ],
)
def test_unusable_interpreter_is_refused(pythons: str, code: ErrorCode) -> None:
    with refused(code, "pythons", "tensorflow"):
        interpreters.missing("tensorflow", pythons.split(","))


def test_environment_without_the_framework_names_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    python = environment(tmp_path / "bare")
    reason = interpreters.missing("pytorch", [f"pytorch={python}"]) or ""
    assert "pip install" in reason
    assert f"{python} -m pip" in reason


@pytest.mark.skipif(bool(provenance.gpus()), reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("framework", "word"),
    [
        ("pytorch", "NVIDIA driver"),
        pytest.param("tensorflow", "cuda", marks=pytest.mark.slow),
    ],
)
def test_framework_without_a_gpu_reports_its_reason(framework: str, word: str) -> None:
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
    done = run_python("-c", script)
    reason, _, detail = done.stdout.partition(" reports: ")
    assert "device 'cuda'" in reason
    assert word in detail
    assert detail.count("\n") == 1
    assert framework != "tensorflow" or "cuda" in done.stderr, "the whole text is in the log"

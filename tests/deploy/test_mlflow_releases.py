"""Tests of tracking and of the guard, run with the newest and the oldest MLflow that is allowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.conftest import ROOT

# Gigabytes, and none of these tests imports one.
FRAMEWORKS = {"keras", "tensorflow", "torch", "torchvision"}
EXTRAS = ("postgresql", "server", "slurm", "test")
DEPLOYED = ("test_guard.py", "test_fields.py", "test_teams.py", "test_searches.py")


def requirements() -> Iterator[Requirement]:
    """Yield the packages of `requirements.txt` and of the tests, without frameworks and pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    for text in (*lines, *(line for name in EXTRAS for line in extras[name])):
        requirement = Requirement(text)
        if requirement.name not in {*FRAMEWORKS, "evenhand"}:
            yield requirement


def run(command: Iterable[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as in an activated environment of this folder."""
    inherited = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("MLFLOW_", "PYTEST_", "PYTHON"))
    }
    path = f"{folder / 'bin'}{os.pathsep}{inherited['PATH']}"
    return subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={**inherited, "PATH": path},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("release", ["newest", "oldest"])
def test_other_releases_of_mlflow_pass_the_suite(
    release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Install from the index into a new environment, without `constraints.txt`."""
    packages = {requirement.name: requirement for requirement in requirements()}
    allowed = packages["mlflow"].specifier
    (lowest,) = (bound.version for bound in allowed if bound.operator == ">=")
    if release == "oldest":
        packages["mlflow"] = Requirement(f"mlflow=={lowest}")
    python = tmp_path / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path)], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = run([*pip, *map(str, packages.values())], tmp_path)
    assert done.returncode == 0, done.stderr
    done = run([*pip, "--no-deps", "--editable", ROOT], tmp_path)  # with its plugins of MLflow
    assert done.returncode == 0, done.stderr
    listing = run([python, "-m", "pip", "list", "--format", "json"], tmp_path)
    versions = {line["name"]: line["version"] for line in json.loads(listing.stdout)}
    installed = Version(versions["mlflow"])
    assert installed in allowed
    assert (installed == Version(lowest)) or release == "newest"
    with capsys.disabled():
        print(f"\n{release} MLflow that installs within {allowed}: {installed}")
    files = ["tests/tracking", *(f"tests/deploy/{name}" for name in DEPLOYED)]
    pytest_ = [python, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider"]
    suite = run([*pytest_, *files], tmp_path)
    assert suite.returncode == 0, suite.stdout[-5_000:]
    with capsys.disabled():
        print(suite.stdout.splitlines()[-1])

"""Tests of tracking and of the guard, run with the newest and the oldest MLflow that is allowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT

# Gigabytes, and none of these tests imports one.
FRAMEWORKS = {"keras", "tensorflow", "torch", "torchvision"}
EXTRAS = ("postgresql", "server", "slurm", "test")
DEPLOYED = (
    "test_guard.py",
    "test_fields.py",
    "test_floods.py",
    "test_teams.py",
    "test_searches.py",
)


def requirements(release: str) -> Iterator[Requirement]:
    """Yield the packages of `requirements.txt` and of the tests, without frameworks and pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    lines += [line for name in EXTRAS for line in project["optional-dependencies"][name]]
    for requirement in map(Requirement, lines):
        if requirement.name == "mlflow" and release == "oldest":
            (lowest,) = (it.version for it in requirement.specifier if it.operator == ">=")
            yield Requirement(f"mlflow=={lowest}")
        elif requirement.name not in {*FRAMEWORKS, "evenhand"}:
            yield requirement


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("release", ["newest", "oldest"])
def test_other_releases_of_mlflow_pass_the_suite(
    release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Install from the index into a new environment, without `constraints.txt`."""
    other = ("MLFLOW_", "PYTEST_", "PYTHON")
    env = {name: text for name, text in os.environ.items() if not name.startswith(other)}
    env["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{env['PATH']}"

    def run(*command: str) -> str:
        """Run a module as in the activated environment, and return its output."""
        python = [str(tmp_path / "bin" / "python"), "-m", *command]
        done = subprocess.run(python, cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-5_000:] + done.stderr
        return done.stdout

    packages = {requirement.name: requirement for requirement in requirements(release)}
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path)], check=True)
    run("pip", "install", "--quiet", *map(str, packages.values()))
    run("pip", "install", "--quiet", "--no-deps", "--editable", str(ROOT))  # MLflow's plugins
    listing = json.loads(run("pip", "list", "--format", "json"))
    (installed,) = (line["version"] for line in listing if line["name"] == "mlflow")
    assert installed in packages["mlflow"].specifier
    files = ["tests/tracking", *(f"tests/deploy/test_{name}.py" for name in DEPLOYED)]
    summary = run("pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *files).splitlines()[-1]
    with capsys.disabled():
        print(f"\n{release} allowed MLflow: {installed}: {summary}")

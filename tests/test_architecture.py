"""Import contracts of pyproject.toml, and rules that such contracts cannot express."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from experiments import studies
from tests.conftest import ROOT

PACKAGES = ("experiments", "models", "tracking")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_imports_keep_contracts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlinter.cli import lint_imports

    monkeypatch.chdir(ROOT)
    broken = lint_imports(config_filename="pyproject.toml", no_cache=True)
    assert not broken, capsys.readouterr().out


def test_command_line_imports_no_heavy_package() -> None:
    """Import the module: contracts do not tell imports of functions from those of modules."""
    unwanted = {"mlflow", "torch", "tensorflow", "keras", "jax", "pandas", "scipy", "rich"}
    script = f"import sys, experiments.__main__; print(*sorted({unwanted!r} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_device_is_tested_without_mlflow_and_other_frameworks() -> None:
    absent = ["mlflow", "optuna", "pandas", "tensorflow", "keras", "jax"]
    script = f"import sys; sys.modules.update(dict.fromkeys({absent!r}))\n"
    script += "import tests.device.test_device"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_package_is_installed() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    of_server = ["deploy", "deploy.guard"]
    assert sorted(patterns) == of_server + [f"{package}*" for package in PACKAGES]
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]


def test_every_study_is_an_entry_point() -> None:
    entry_points = (ROOT / "MLproject").read_text()
    assert [
        name for name in studies.available() if f'python -m experiments {name}"' not in entry_points
    ] == []

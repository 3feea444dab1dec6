"""Imports go down only and each outside library has one owner: contracts in pyproject.toml. Here: what contracts cannot say."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from experiments import studies
from tests.conftest import ROOT

PACKAGES = ("experiments", "models", "tracking")
NAMES = {
    "PIL": "Pillow",
    "jinja2": "Jinja",
    "pynvml": "nvidia-ml-py",
}  # where it is not called as it is imported
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_imports_keep_their_contracts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlinter.cli import lint_imports

    monkeypatch.chdir(ROOT)
    broken = lint_imports(config_filename="pyproject.toml", no_cache=True)
    assert not broken, capsys.readouterr().out


def test_what_the_command_line_imports_by_itself() -> None:
    """Contracts see every import; whether it waits inside a function shows only when the module is imported."""
    unwanted = {"mlflow", "torch", "tensorflow", "keras", "jax", "pandas", "scipy", "rich"}
    script = f"import sys, experiments.__main__; print(*sorted({unwanted!r} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_owners_name_their_library_in_their_first_line() -> None:
    contract = next(
        one
        for one in PYPROJECT["tool"]["importlinter"]["contracts"]
        if one["name"] == "An outside library has one owner"
    )
    owned: dict[str, list[str]] = {}
    for line in contract["ignore_imports"]:
        module, library = line.split(" -> ")
        owned.setdefault(module.removesuffix(".*"), []).append(NAMES.get(library, library))
    for module, libraries in owned.items():
        path = ROOT / module.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        first = file.read_text().splitlines()[0].lower()
        assert any(library.lower() in first for library in libraries), f"{module}: {libraries}"


def test_every_package_is_installed() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert sorted(patterns) == [f"{package}*" for package in PACKAGES]
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]


def test_every_study_is_an_entry_point() -> None:
    entry_points = (ROOT / "MLproject").read_text()
    assert [
        name for name in studies.available() if f'python -m experiments {name}"' not in entry_points
    ] == []

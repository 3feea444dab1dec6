"""Imports go down only, each outside library has one owner, and no framework is imported where it must not be."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGES = ("experiments", "models", "tracking")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
FRAMEWORKS = {"torch", "torchvision", "tensorflow", "keras", "jax"}
OWNERS = {
    "mlflow": {"tracking/store.py"},
    "pynvml": {"tracking/sensors/nvml.py", "tracking/provenance.py"},
    "optuna": {"experiments/sweep/"},
    "matplotlib": {"experiments/comparison/figures/"},
    "ruptures": {"experiments/comparison/steady.py"},
}
# Above ← may import → below.
FORBIDDEN = {
    "models/": ("tracking", "experiments"),
    "tracking/": ("models", "experiments"),
    "experiments/datasets/": ("experiments.workloads", "experiments.campaign", "experiments.comparison"),
    "experiments/comparison/": (
        "models",
        "experiments.campaign",
        "experiments.workloads",
        "experiments.studies",
        "tracking.store",
    ),
    "experiments/workloads/": (
        "experiments.campaign",
        "experiments.launch",
        "experiments.conclude",
        "experiments.comparison.verdict",
    ),
    "experiments/cell.py": ("experiments.campaign", "experiments.launch"),
    "experiments/measure.py": ("tracking.store", "experiments.campaign"),
    "experiments/runner.py": ("experiments.campaign", "experiments.launch", "experiments.sweep"),
    "experiments/campaign.py": ("experiments.launch", "experiments.conclude", "experiments.sweep"),
    "experiments/launch.py": ("experiments.conclude", "experiments.sweep"),
    "experiments/conclude.py": ("experiments.launch", "experiments.sweep"),
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(path: Path, *, at_top: bool = False) -> set[str]:
    """Modules that a file imports: all, or only those that importing it imports."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if at_top else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_go_down_only(path: Path) -> None:
    for above, below in FORBIDDEN.items():
        if name(path).startswith(above):
            wrong = {module for module in imported(path) if any(module == one or module.startswith(one + ".") for one in below)}
            assert not wrong


@pytest.mark.parametrize("path", FILES, ids=name)
def test_one_owner_for_each_outside_library(path: Path) -> None:
    for library, owners in OWNERS.items():
        uses = any(module.split(".")[0] == library for module in imported(path))
        assert not uses or name(path) in owners or f"{name(path.parent)}/" in owners


@pytest.mark.parametrize("path", FILES, ids=name)
def test_frameworks_are_imported_in_models_alone_and_never_two_in_an_architecture(path: Path) -> None:
    used = {module.split(".")[0] for module in imported(path)} & FRAMEWORKS
    if not name(path).startswith("models/"):
        assert not used
    if path.name in ("pytorch.py", "keras.py") and path.parent.name != "frameworks":
        assert used <= ({"torch", "torchvision"} if path.name == "pytorch.py" else {"keras"})


def test_the_measured_process_does_not_import_mlflow_by_itself() -> None:
    assert not {
        module for module in imported(ROOT / "experiments" / "cell.py", at_top=True) if module.startswith("tracking.store")
    }


def test_every_package_is_installed() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert sorted(patterns) == [f"{package}*" for package in PACKAGES]
    assert not [path for path in FILES if not (path.parent / "__init__.py").is_file()]


def test_every_study_is_an_entry_point_and_lists_what_the_campaign_needs() -> None:
    from experiments import studies

    entry_points = (ROOT / "MLproject").read_text()
    for study in studies.available():
        module = studies.load(study)
        assert f"python -m experiments {study}" in entry_points
        assert "demo" in module.PRESETS
        for part in ("TITLE", "WORKLOAD", "MODEL", "Settings", "OUTCOMES", "PUBLISHED", "SOURCE"):
            assert hasattr(module, part)

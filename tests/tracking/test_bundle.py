"""Package of the code that travels with a logged model."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from experiments.contract import CellSpec
from experiments.workloads import served
from models import frameworks
from tracking import bundle, limits
from tracking.records import ModelSaved

# What a captioner needs to be loaded, framework and all but its weights.
LOAD = """
import sys
from importlib import import_module, metadata
name, *required = sys.argv[1:]

class NotRequired:
    installed = {
        package
        for package, distributions in metadata.packages_distributions().items()
        if not set(required) & {name.lower() for name in distributions}
    }

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in cls.installed - {"models", "experiments", "tracking"}:
            raise ModuleNotFoundError(f"{name} is no requirement")

sys.meta_path.insert(0, NotRequired)
import models, experiments, tracking
assert models.MINE and experiments.MINE and tracking.MINE
captioner = import_module(f"{name}.experiments.workloads.captioning.captioner")
classifier = import_module(f"{name}.experiments.workloads.classification.classifier")
import_module(f"{name}.models.frameworks").check("pytorch")
networks = import_module(f"{name}.models")
print(networks.spec("lenet").Spec.__module__)
ours = ("models.", "experiments.", "tracking.")
assert not [module for module in sys.modules if module.startswith(ours)]
"""


def imported(source: str) -> set[str]:
    """Return the packages that a module imports by their absolute names."""
    packages = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            packages.add(str(node.module).partition(".")[0])
        elif isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
    return packages


def test_no_module_imports_a_package_of_an_application(tmp_path: Path) -> None:
    name = bundle.write(tmp_path)
    modules = list((tmp_path / name).rglob("*.py"))
    assert len(modules) > 200
    for module in modules:
        assert not imported(module.read_text(encoding="utf-8")) & set(bundle.PACKAGES), module


def test_bundle_loads_with_its_requirements_next_to_packages_of_its_names(
    tmp_path: Path,
) -> None:
    name = bundle.write(tmp_path / "code")
    for package in bundle.PACKAGES:
        (tmp_path / "application" / package).mkdir(parents=True)
        (tmp_path / "application" / package / "__init__.py").write_text("MINE = True\n")
    environment = {
        "PYTHONPATH": f"{tmp_path}/application:{tmp_path}/code",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-c", LOAD, name, *served.REQUIRED]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name}.models.lenet.spec")


def test_servers_take_the_model_names_of_every_framework() -> None:
    for framework in frameworks.available():
        cell = cast(
            CellSpec,
            SimpleNamespace(study="captioning", settings={"preset": "demo"}, framework=framework),
        )
        name = served.name(cell, "captioner")
        record = ModelSaved("r", name, "loader", "data", {}, "caption", ())
        assert limits.acceptable_part(record) == (record, [])


def test_the_same_code_has_the_same_name(tmp_path: Path) -> None:
    assert bundle.write(tmp_path / "a") == bundle.write(tmp_path / "b")

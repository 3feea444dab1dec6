"""The code that travels with a logged model: a package of its own name, which an application's own packages do not touch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.workloads import served
from models import frameworks
from tracking import bundle, limits
from tracking.records import ModelSaved

# What a captioner needs to be loaded, framework and all but its weights.
LOAD = """
import sys
from importlib import import_module
name = sys.argv[1]
import models, experiments, tracking
assert models.MINE and experiments.MINE and tracking.MINE
captioner = import_module(f"{name}.experiments.workloads.captioning.captioner")
classifier = import_module(f"{name}.experiments.workloads.classification.classifier")
import_module(f"{name}.models.frameworks").check("pytorch")
networks = import_module(f"{name}.models")
print(networks.spec("lenet").Spec.__module__)
assert not [module for module in sys.modules if module.startswith(("models.", "experiments.", "tracking."))]
"""


def imported(source: str) -> set[str]:
    """The packages that a module imports by their absolute names."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).partition(".")[0])
        elif isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
    return found


def test_no_module_imports_a_package_of_an_application(tmp_path: Path) -> None:
    name = bundle.write(tmp_path)
    modules = list((tmp_path / name).rglob("*.py"))
    assert len(modules) > 200
    for module in modules:
        assert not imported(module.read_text(encoding="utf-8")) & set(bundle.PACKAGES), module


def test_it_loads_beside_packages_that_are_called_as_ours_are(tmp_path: Path) -> None:
    name = bundle.write(tmp_path / "code")
    for package in bundle.PACKAGES:
        (tmp_path / "application" / package).mkdir(parents=True)
        (tmp_path / "application" / package / "__init__.py").write_text("MINE = True\n")
    environment = {
        "PYTHONPATH": f"{tmp_path}/application:{tmp_path}/code",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-c", LOAD, name]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name}.models.lenet.spec")


@pytest.mark.parametrize("framework", frameworks.available())
def test_every_framework_gives_a_model_a_name_that_servers_take(framework: str) -> None:
    record = ModelSaved(
        "r", served.name("captioner", framework, 1), "loader", "data", {}, "caption", ()
    )
    assert limits.taken(record) == (record, [])


def test_the_same_code_has_the_same_name(tmp_path: Path) -> None:
    assert bundle.write(tmp_path / "a") == bundle.write(tmp_path / "b")

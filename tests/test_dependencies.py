"""Pins: complete, exact, installed, above known advisories, under allowed licences."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from tests import licences
from tests.conftest import ROOT, Place

PINS = licences.pins()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ADVISORIES: list[dict[str, str]] = tomllib.loads((ROOT / "tests" / "advisories.toml").read_text())[
    "advisory"
]


def requirements() -> list[Requirement]:
    """Return the requirements of requirements.txt and of each extra."""
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    lines = [*(ROOT / "requirements.txt").read_text().splitlines(), *extras]
    named = map(Requirement, lines)
    return [requirement for requirement in named if requirement.name != PROJECT["name"]]


def test_pins_are_exact_sorted_and_meet_the_requirements() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pin = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*==[0-9][a-z0-9.]*")
    assert [line for line in lines if not pin.fullmatch(line)] == []
    assert [version for version in PINS.values() if str(Version(version)) != version] == []
    assert lines == sorted(set(lines))
    assert len(PINS) == len(lines)
    for requirement in requirements():
        assert PINS[licences.normal(requirement.name)] in requirement.specifier


def test_requirements_of_pins_are_pinned() -> None:
    """Follow the requirements of installed packages."""
    waiting, seen, unpinned = requirements(), set[tuple[str, str]](), list[str]()
    while waiting:
        requirement = waiting.pop()
        name = licences.normal(requirement.name)
        unpinned += [] if name in PINS else [str(requirement)]
        for extra in {"", *requirement.extras}:
            package = licences.installed(name)
            if package and (name, extra) not in seen:
                seen.add((name, extra))
                for item in map(Requirement, package.requires or []):
                    if not item.marker or item.marker.evaluate({"extra": extra}):
                        waiting.append(item)
    assert not unpinned


def test_installed_versions_are_the_pins() -> None:
    packages = {name: licences.installed(name) for name in PINS}
    have = {name: package.version for name, package in packages.items() if package}
    assert have == {name: PINS[name] for name in have}, (
        "pip install -c constraints.txt -e '.[test]'"
    )


@pytest.mark.skipif(find_spec("pip") is None, reason="pip is not installed in this environment")
def test_installed_packages_fit_together() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("advisory", ADVISORIES, ids=lambda advisory: advisory["id"])
def test_pin_is_above_the_advisory(advisory: dict[str, str]) -> None:
    pinned = Version(PINS[advisory["package"]])
    if "fixed" in advisory:
        assert pinned >= Version(advisory["fixed"]), advisory["about"]
    else:
        assert pinned > Version(advisory["last_affected"]), advisory["about"]


def test_licences_page_lists_the_pins_with_licences_that_are_allowed() -> None:
    lines = (ROOT / "docs" / "licences.md").read_text().splitlines()
    table = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    rows = {name: (version, licence, kind) for name, version, licence, kind in table}
    hint = "python -m tests.licences > docs/licences.md"
    assert {name: version for name, (version, _, _) in rows.items()} == PINS, hint
    for name, (_, licence, kind) in rows.items():
        package = licences.installed(name)
        assert not package or licences.declared(package) == licence, hint
        assert kind == licences.kind(licence) != "", name
        assert kind != "NVIDIA's own" or name.startswith("nvidia-")


@pytest.mark.parametrize(
    ("licence", "kind"),
    [
        ("Apache-2.0 AND MIT", "permissive"),
        ("Mozilla Public License 2.0 (MPL 2.0)", "weak copyleft"),
        ("MIT AND LGPL-2.1-or-later", "weak copyleft"),
        ("MIT AND GPL-2.0-only", ""),
        ("GNU General Public License v3 (GPLv3)", ""),
        ("GNU Affero General Public License v3", ""),
        ("All rights reserved; use is not permit", ""),
        ("", ""),
    ],
)
def test_licence_has_its_kind(licence: str, kind: str) -> None:
    assert licences.kind(licence) == kind


def test_frameworks_are_an_extra_that_mlflow_run_and_the_image_of_campaigns_install() -> None:
    extra = PROJECT["optional-dependencies"]["frameworks"]
    names = {Requirement(line).name for line in extra}
    assert names == {"jax", "keras", "tensorflow", "torch", "torchvision"}
    plain = (ROOT / "requirements.txt").read_text().splitlines()
    assert not names & {Requirement(line).name for line in plain}
    environment = yaml.safe_load((ROOT / "python_env.yaml").read_text())
    assert environment["dependencies"] == ["-r requirements.txt", *extra]
    image = (ROOT / "deploy/kubernetes/campaign/Dockerfile").read_text()
    assert names <= set(image.split())


# Runs at the start of each process: frameworks seem not installed.
WITHOUT_FRAMEWORKS = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
names = {"jax", "keras", "tensorflow", "torch", "torchvision"}
PathFinder.find_spec = lambda name, *rest: None if name in names else find(name, *rest)
"""
CALLS = """
import sys
from experiments.cli.main import main
quick = ["--cool_down_seconds=0", "--others_limit_percent=100", "--figures=false"]
levels = [f"--level={name}={sys.executable} -c pass" for name in "ab"]
print(main(["race", *levels, "--blocks=2", *quick]), file=sys.stderr)
compared = ["--experiment=race", "--factor=level", "--outcomes=wall_seconds", "--figures=false"]
print(main(["compare", *compared]), file=sys.stderr)
print(main(["captioning", "--dry_run=true"]), file=sys.stderr)
"""


def test_races_and_comparisons_need_no_framework_and_a_study_names_the_extra(place: Place) -> None:
    (place.folder / "sitecustomize.py").write_text(WITHOUT_FRAMEWORKS)
    path = os.pathsep.join([str(place.folder), str(ROOT)])
    environment = {**place.environment, "PYTHONPATH": path}
    options = {"cwd": place.folder, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([sys.executable, "-c", CALLS], env=environment, **options)
    *codes, error, last = done.stderr.splitlines()
    assert (codes, last) == (["3", "3"], "2"), done.stderr  # two blocks: no verdict
    assert error.endswith("is not installed: pip install -c constraints.txt -e '.[frameworks]'")

"""Pins: complete, exact, installed, above known advisories, under allowed licences."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests import licences
from tests.conftest import ROOT

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


def test_pins_are_exact_unique_and_sorted() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert not [
        line for line in lines if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*==[0-9][a-z0-9.]*", line)
    ]
    assert [version for version in PINS.values() if str(Version(version)) != version] == []
    assert lines == sorted(set(lines))
    assert len(PINS) == len(lines)


def test_pins_meet_the_requirements() -> None:
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


def listed() -> dict[str, tuple[str, str, str]]:
    """Return version, licence and kind by name, from docs/licences.md."""
    lines = (ROOT / "docs" / "licences.md").read_text().splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ")
    ][1:]
    return {name: (version, licence, kind) for name, version, licence, kind in rows}


def test_licences_page_lists_the_pins() -> None:
    rows = listed()
    assert {name: version for name, (version, _, _) in rows.items()} == PINS, (
        "python -m tests.licences > docs/licences.md"
    )
    packages = {name: licences.installed(name) for name in PINS}
    declared = {name: licences.declared(item) for name, item in packages.items() if item}
    assert {name: rows[name][1] for name in declared} == declared


def test_licences_are_allowed() -> None:
    rows = listed()
    assert [
        name
        for name, (_, licence, kind) in rows.items()
        if not kind or kind != licences.kind(licence)
    ] == []
    assert {name for name, (_, _, kind) in rows.items() if kind == "NVIDIA's own"} <= {
        name for name in PINS if name.startswith("nvidia-")
    }


@pytest.mark.parametrize(
    ("licence", "kind"),
    [
        ("Apache-2.0 AND MIT", "permissive"),
        ("Mozilla Public License 2.0 (MPL 2.0)", "weak copyleft"),
        ("MIT AND LGPL-2.1-or-later", "weak copyleft"),
        ("GPL-3.0-only", ""),
        ("MIT AND GPL-2.0-only", ""),
        ("AGPL-3.0-or-later", ""),
        ("GNU General Public License v3 (GPLv3)", ""),
        ("GNU Affero General Public License v3", ""),
        ("SSPL-1.0", ""),
        ("All rights reserved; use is not permit", ""),
        ("", ""),
    ],
)
def test_licence_has_its_kind(licence: str, kind: str) -> None:
    assert licences.kind(licence) == kind

"""What is pinned, without a network: complete, exact, installed as written, above known advisories, under licences that fit."""

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


def asked_for() -> list[Requirement]:
    """What the project itself names: requirements.txt and every extra."""
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    named = [
        Requirement(line)
        for line in [*(ROOT / "requirements.txt").read_text().splitlines(), *extras]
    ]
    return [one for one in named if one.name != PROJECT["name"]]


def test_every_pin_is_one_version_once_and_in_order() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert not [
        line for line in lines if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*==[0-9][a-z0-9.]*", line)
    ]
    assert [version for version in PINS.values() if str(Version(version)) != version] == []
    assert lines == sorted(set(lines))
    assert len(PINS) == len(lines)


@pytest.mark.parametrize("wanted", asked_for(), ids=str)
def test_what_the_project_asks_for_is_pinned_to_a_version_that_will_do(wanted: Requirement) -> None:
    assert PINS[licences.normal(wanted.name)] in wanted.specifier


def test_what_the_pinned_ask_for_is_pinned_too() -> None:
    """On this machine, as far as installed: nothing comes in by itself."""
    waiting, seen, unpinned = asked_for(), set[tuple[str, str]](), list[str]()
    while waiting:
        wanted = waiting.pop()
        name = licences.normal(wanted.name)
        unpinned += [] if name in PINS else [str(wanted)]
        for extra in {"", *wanted.extras}:
            found = licences.installed(name)
            if found and (name, extra) not in seen:
                seen.add((name, extra))
                asked = map(Requirement, found.requires or [])
                waiting += [
                    one for one in asked if not one.marker or one.marker.evaluate({"extra": extra})
                ]
    assert not unpinned


def test_what_is_installed_is_what_is_pinned() -> None:
    have = {name: found.version for name in PINS if (found := licences.installed(name))}
    assert have == {name: PINS[name] for name in have}, (
        "pip install -c constraints.txt -e '.[test]'"
    )


@pytest.mark.skipif(find_spec("pip") is None, reason="pip is not installed in this environment")
def test_what_is_installed_fits_together() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("advisory", ADVISORIES, ids=lambda one: one["id"])
def test_no_pin_is_one_that_an_advisory_names(advisory: dict[str, str]) -> None:
    pinned = Version(PINS[advisory["package"]])
    if "fixed" in advisory:
        assert pinned >= Version(advisory["fixed"]), advisory["about"]
    else:
        assert pinned > Version(advisory["last_affected"]), advisory["about"]


def listed() -> dict[str, tuple[str, str, str]]:
    """Name → version, licence and kind, from docs/licences.md."""
    lines = (ROOT / "docs" / "licences.md").read_text().splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ")
    ][1:]
    return {name: (version, licence, kind) for name, version, licence, kind in rows}


def test_the_list_of_licences_is_that_of_the_pins() -> None:
    rows = listed()
    assert {name: version for name, (version, _, _) in rows.items()} == PINS, (
        "python -m tests.licences > docs/licences.md"
    )
    declared = {
        name: licences.declared(found) for name in PINS if (found := licences.installed(name))
    }
    assert {name: rows[name][1] for name in declared} == declared


def test_every_licence_is_one_that_the_rule_allows() -> None:
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
def test_a_licence_is_of_the_kind_it_is(licence: str, kind: str) -> None:
    assert licences.kind(licence) == kind

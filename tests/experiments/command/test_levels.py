"""Versions of a package in one campaign: an environment each, in the same blocks."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from experiments import studies
from experiments.config import settings as settings_
from experiments.config import variation, virtual_environments
from experiments.config.settings import CampaignSettings
from experiments.config.virtual_environments import VirtualEnvironment
from experiments.planning import treatments
from experiments.run import preparation
from experiments.workloads.command import environments
from tests.conftest import Place
from tests.experiments.command.packages import (
    install_only_from,
    make_tiny,
    make_wheel,
    packages_of_this,
)
from tests.experiments.comparison.campaigns import STEP
from tests.experiments.test_blocks import TOYS
from tracking.errors import ErrorCode, UsageError
from tracking.store import Store

TOY = {**TOYS, "frameworks": "toy", "blocks": "1", "timing": "step"}
LEVELS = "tiny==1.0,tiny==2.0"
SLOWER = {"toy": {"step": 0.03}}


def settings(**options: str) -> CampaignSettings:
    study = studies.load("captioning")
    return settings_.parse(study.settings, study.presets, options)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with what a cell of the toy needs, and with two versions of `tiny`.

    The second makes the toy slower.
    """
    folder = tmp_path / "wheels"
    packages_of_this(folder)
    make_tiny(folder, "1.0")
    set_costs = f"import os; os.environ['EVENHAND_TOY_COSTS'] = {json.dumps(SLOWER)!r}\n"
    make_tiny(folder, "2.0", pth=set_costs)
    install_only_from(folder, monkeypatch)
    return folder


def test_versions_share_blocks_through_extension(place: Place, wheels: Path) -> None:
    local = Place(place.folder, place.folder / "cache", place.uri)  # its environments
    assert local.run(**TOY, levels=LEVELS, dry_run="true").returncode == 0
    assert not local.cache.exists()
    done = local.run(**TOY, levels=LEVELS)
    assert done.returncode == 3, done.stdout + done.stderr
    places = list((local.cache / virtual_environments.FOLDER).glob("*/evenhand.json"))
    assert len(places) == 2
    places[0].unlink()  # as a removed or killed environment: it is made again
    done = local.resume(blocks="2")
    assert done.returncode == 3, done.stdout + done.stderr
    runs = [run for run in Store(place.uri).runs("captioning") if run.tags.get("kind") == "cell"]
    cells = sorted((run.tags["block"], run.params["version"]) for run in runs)
    assert cells == [(block, f"tiny=={version}.0") for block in "12" for version in "12"]
    for run in runs:
        assert run.params["version"] == f"tiny=={run.tags['version.tiny']}"
        assert run.tags["interpreter"].startswith(str(local.cache))
        assert run.params["levels"] == LEVELS
    assert len({run.tags["environment"] for run in runs}) == 1, "blocks have one environment"
    assert len({run.tags["settings_hash"] for run in runs}) == 2
    (folder,) = place.journal.iterdir()
    result = json.loads((folder / "report" / "comparison.json").read_text())
    versions = {level: facts["version.tiny"] for level, facts in result["environment"].items()}
    assert versions == {"tiny==1.0": "1.0", "tiny==2.0": "2.0"}
    (row,) = (row for row in result["rows"] if row["metric"] == STEP)
    assert (row["factor"], row["a"], row["b"]) == ("version", "tiny==1.0", "tiny==2.0")
    assert row["n_blocks"] == 2
    slower = [run.metrics[STEP] for run in runs if run.tags["version.tiny"] == "2.0"]
    assert min(slower) >= SLOWER["toy"]["step"]
    # both versions went through the parity gate
    (parity,) = folder.glob("parity.json")
    sides = {(row["reference"], row["framework"]) for row in json.loads(parity.read_text())}
    assert sides == {("toy, tiny==1.0", "toy, tiny==2.0")}


def test_version_that_cells_would_not_see_is_refused(
    wheels: Path, tmp_path: Path, toy_installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = tmp_path / "shadow"
    shutil.unpack_archive(make_tiny(tmp_path / "others", "9.0"), shadow, "zip")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(shadow), os.environ["PYTHONPATH"]]))
    named = settings(frameworks="toy", levels=LEVELS, cache=str(tmp_path / "cache"))
    with pytest.raises(UsageError) as error:
        preparation.make_environments(named, lambda *_: None)
    assert error.value.code is ErrorCode.CONFLICT
    assert "9.0" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "code", "part"),
    [
        ({"levels": "tiny==1.0"}, ErrorCode.TOO_FEW, "tiny==1.0"),
        ({"levels": "a-b==1.0,A_b==1.0"}, ErrorCode.TOO_FEW, "a-b==1.0"),
        ({"levels": "tiny==1.0,tiny"}, ErrorCode.INVALID_VALUE, "torch==2.14"),
        ({"levels": "tiny>=1.0,tiny==2.0"}, ErrorCode.INVALID_VALUE, "tiny>=1.0"),
        ({"levels": LEVELS, "vary": "threads=1,2"}, ErrorCode.CONFLICT, "vary"),
        ({"levels": LEVELS, "pythons": "pytorch=/a/python"}, ErrorCode.CONFLICT, "pythons"),
    ],
)
def test_wrong_levels_are_refused(options: dict[str, str], code: ErrorCode, part: str) -> None:
    with pytest.raises(UsageError) as error:
        variation.based(settings(**options), options)
    assert error.value.code is code
    assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_levels_compare_the_frameworks_that_have_the_package() -> None:
    named = settings(frameworks="pytorch,tensorflow,keras-torch", levels="torch==2.14,torch==2.15")
    assert virtual_environments.frameworks_of_levels(named) == ("pytorch", "keras-torch")
    for_all = settings(levels="numpy==2.3.5,numpy==2.4.6")
    assert virtual_environments.frameworks_of_levels(for_all) == for_all.frameworks


def test_treatments_have_versions_and_a_control_the_baseline() -> None:
    study = studies.load("captioning")
    both = treatments.list_treatments(study, settings(frameworks="pytorch", levels=LEVELS, aa="1"))
    assert {treatment.name: treatment.version for treatment in both} == {
        "pytorch · tiny==1.0": "tiny==1.0",
        "pytorch A/A · tiny==1.0": "tiny==1.0",
        "pytorch · tiny==2.0": "tiny==2.0",
    }


def test_cells_need_their_packages_and_prefer_the_constraints() -> None:
    """An extra of a package is part of its level."""
    text = "torch[all]==2.14.1 keras==3.15.1"
    assert variation.check_pins(text) == {"torch": "2.14.1", "keras": "3.15.1"}
    environment = virtual_environments.of_framework("pytorch", "cpu", text)
    assert environment.requirements[:2] == ("torch[all]==2.14.1", "keras==3.15.1")
    assert {"torchvision", *virtual_environments.OF_CELLS} <= set(environment.requirements)
    assert "torch" not in environment.requirements
    constraints = virtual_environments.CONSTRAINTS.read_text().split()
    free = set(constraints) - set(environment.preferred)
    assert {line.partition("==")[0] for line in free} == {"torch", "torchvision", "keras"}


def test_preferred_versions_hold_where_the_level_allows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Release a framework with its parts, as torch with triton, and another package."""
    for number in (1, 2):
        needs = (f"inner=={number}", "shared")
        make_wheel(tmp_path / "wheels", "framework", f"{number}.0", requires=needs)
        make_wheel(tmp_path / "wheels", "beside", f"{number}.0", (f"framework=={number}",))
        for name in ("inner", "shared"):
            make_wheel(tmp_path / "wheels", name, f"{number}.0")
    install_only_from(tmp_path / "wheels", monkeypatch)
    preferred = tuple(f"{name}==1.0" for name in ("beside", "framework", "inner", "shared"))
    for version in ("1.0", "2.0"):
        lines = (f"framework=={version}", "beside")
        environment = VirtualEnvironment(lines, preferred, folder=tmp_path)
        place = environments.make_virtual(environment, tmp_path, lambda _: None)
        installed = virtual_environments.installed(virtual_environments.python_of(place))
        expected = dict.fromkeys(("beside", "framework", "inner"), version) | {"shared": "1.0"}
        assert installed.items() >= expected.items()

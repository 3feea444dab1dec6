"""Races of versions: packages in environments, and commits in worktrees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.config import settings as settings_
from experiments.config import virtual_environments
from experiments.studies import race
from experiments.studies.race import Settings
from experiments.workloads.command import environments, prepare
from tests.conftest import ROOT, Place
from tests.experiments.command import repository
from tests.experiments.command.packages import install_only_from, make_tiny, make_wheel
from tests.experiments.race import races

RELEASES = ("2.3.5", "2.4.6")  # of NumPy
RACE = """
[defaults]
cwd = "project"
[levels.old]
command = "python work.py"
commit = "v1"
requirements = ["tiny==1.0"]
[levels.new]
command = "python work.py"
commit = "v2"
requirements = ["-c constraints.py", "tiny"]
[levels.dirty]
command = "python work.py"
"""


def test_levels_run_in_their_environments_at_their_commits(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, project = place.folder / "wheels", place.folder / "project"
    for version in ("1.0", "2.0"):
        make_tiny(wheels, version)
    install_only_from(wheels, monkeypatch)
    texts = [f"import tiny; assert tiny.VERSION == '{number}.0'\n" for number in (1, 2)]
    old = repository.commit(project, "v1", work=texts[0])
    new = repository.commit(project, "v2", work=texts[1], constraints="tiny==2.0\n")
    (project / "work.py").write_text("pass\n")
    (place.folder / "race.toml").write_text(RACE)
    cache = place.folder / "cache"  # its environments
    races.run(place, file="race.toml", cache=str(cache))

    levels = {name: races.tags(run) for name, run in races.by_level(place).items()}
    columns = ("outcome", "mlflow.source.git.commit")
    assert {name: tuple(tags[key] for key in columns) for name, tags in levels.items()} == {
        "old": ("ok", old),
        "new": ("ok", new),
        "dirty": ("ok", new),
    }
    commits = [levels[name]["level.commit"] for name in ("old", "new", "dirty")]
    assert commits[:2] == [old, new]
    assert commits[2].startswith(f"{new}+changes.")
    facts = races.comparison(place)["environment"]
    versions = {level: values.get("version.tiny") for level, values in facts.items()}
    assert versions == {"old": "1.0", "new": "2.0", "dirty": None}
    assert repository.worktrees(project) == []
    assert len(list((cache / virtual_environments.FOLDER).glob("*/pyvenv.cfg"))) == 2


def test_files_of_the_how_to_are_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "how-to" / "versions.md").read_text()
    packages, commits = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    for version in RELEASES:
        make_wheel(tmp_path / "wheels", "numpy", version)
    install_only_from(tmp_path / "wheels", monkeypatch)
    project = tmp_path / "project"
    head = repository.commit(project, "v1.4", train="print('old')\n")
    (project / "train.py").write_text("print('new')\n")
    (project / "requirements.txt").write_text("numpy\n")
    for text, tag, values in (
        (packages, "version.numpy", RELEASES),
        (commits, "level.commit", [head, f"{head}+changes."]),
    ):
        (project / "race.toml").write_text(text)
        options = {"file": str(project / "race.toml"), "cache": str(tmp_path / "cache")}
        settings = settings_.parse(Settings, race.STUDY.presets, options)
        prepared = prepare.prepare(settings, lambda *_: None)
        recorded = [data.tags[tag] for data in prepared.of_treatment.values()]
        assert all(map(str.startswith, recorded, values)), recorded
    environments.remove_worktrees(project)

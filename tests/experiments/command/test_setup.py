"""Environments that `evenhand setup` makes, and campaigns that use them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from experiments import studies
from experiments.config import interpreters
from tests.conftest import Place
from tests.experiments.command.packages import install_only_from, packages_of_this
from tests.experiments.test_blocks import TOYS
from tracking.errors import ErrorCode, UsageError
from tracking.store import Store


def test_campaigns_of_a_folder_use_its_setup(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages_of_this(tmp_path / "wheels")
    install_only_from(tmp_path / "wheels", monkeypatch)
    words = ("setup", "--frameworks=toy", "--device=cpu", f"--cache={place.cache}")
    for _ in range(2):  # the second finds it complete
        made = place.call(sys.executable, "-m", "experiments", *words)
        assert made.returncode == 0, made.stdout + made.stderr
    setup = place.folder / interpreters.SETUP
    lines = json.loads(setup.read_text())["pythons"]
    pythons = dict(line.split("=", 1) for line in lines)
    assert set(pythons) == {"toy", "toy+twin", "toy+stock"}
    (python,) = set(pythons.values())
    assert python.startswith(str(place.cache))
    done = place.run(**{**TOYS, "frameworks": "toy"}, blocks="1")
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"toy runs with {python}" in done.stdout
    (cell,) = (run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "cell")
    assert cell.tags["interpreter"] == python


def test_setup_is_left_out_where_a_call_has_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    interpreters.SETUP.parent.mkdir()
    interpreters.SETUP.write_text('{"pythons": ["pytorch=/setup/python"]}')
    (tmp_path / "levels.json").write_text('{"levels": ["torch==2.14", "torch==2.15"]}')

    def pythons(**options: str) -> tuple[str, ...]:
        return studies.parse_settings(studies.load("captioning"), options).pythons

    assert pythons() == ("pytorch=/setup/python",)
    assert pythons(pythons="pytorch=/call/python") == ("pytorch=/call/python",)
    assert pythons(settings="levels.json") == pythons(resume="last") == ()
    interpreters.SETUP.write_text('{"batch_size": 4}')
    with pytest.raises(UsageError) as error:
        pythons()
    assert error.value.code is ErrorCode.UNREADABLE

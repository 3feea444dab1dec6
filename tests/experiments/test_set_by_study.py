"""Settings that a study sets for each cell: users cannot set them, and its cells still have them."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from docs import hooks
from experiments import studies
from experiments.cli import arguments, completion
from experiments.cli.codes import DONE, WRONG_CALL
from experiments.cli.main import main
from experiments.config import settings as settings_
from experiments.config.settings import SET_BY_STUDY
from experiments.planning import treatments
from experiments.run import resume
from tests.conftest import ROOT
from tracking.errors import WrongCall

FIELDS = [
    (study, field)
    for study in studies.available()
    for field in dataclasses.fields(studies.load(study).Settings)
    if field.metadata["group"] == SET_BY_STUDY
]
EVERY = pytest.mark.parametrize(("study", "field"), FIELDS, ids=[f"{study}-{field.name}" for study, field in FIELDS])
STUDIES = sorted({study for study, _ in FIELDS})


def value_of(field: dataclasses.Field[object]) -> str:
    return str(max(1, field.metadata["minimum"] or 0)) if isinstance(field.default, int) else "fp16"


def test_there_are_such_settings() -> None:
    assert {"distributed", "grid", "graph", "lstm", "overhead", "conv_algorithm", "training_speed"} == set(STUDIES)
    assert ("distributed", "hook") in {(study, field.name) for study, field in FIELDS}


@EVERY
def test_a_user_is_told_what_to_set_instead(
    study: str, field: dataclasses.Field[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {one.name for one in settings_.for_users(studies.load(study).Settings)}
    assert field.metadata["instead"]
    assert set(field.metadata["instead"]) <= names, "what it names, users can set"
    right = " or ".join(field.metadata["instead"])
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({field.name: value_of(field)}))
    for words in (
        [f"--{field.name}={value_of(field)}"],
        [f"--settings={file}"],
        [f"--{field.name}={value_of(field)}", "--dry_run"],
    ):
        assert main([study, *words]) == WRONG_CALL
        assert capsys.readouterr().err == f"evenhand: {field.name} is set by the study, cell by cell; set {right} instead\n"


@EVERY
def test_a_search_refuses_them_too(study: str, field: dataclasses.Field[object], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", f"--experiment={study}", "--search=seed=1|2", f"--{field.name}={value_of(field)}"]) == WRONG_CALL
    assert f"{field.name} is set by the study" in capsys.readouterr().err


@EVERY
def test_neither_help_nor_completion_nor_reference_has_them(
    study: str, field: dataclasses.Field[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([study, "--help"]) == DONE
    assert not re.search(rf"^  --{field.name}\b", capsys.readouterr().out, re.MULTILINE)
    assert field.name not in arguments.of(study)
    assert f"--{field.name}" not in {one.value for one in completion.candidates([study], "--")}
    section = hooks.all_settings().partition(f"\n## {study}\n")[2].partition("\n## ")[0]
    assert section
    assert f"`{field.name}`" not in [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]
    assert f"-P {field.name}=" not in (ROOT / "MLproject").read_text()


def cell_settings(study: str) -> list[set[str]]:
    module = studies.load(study)
    settings = settings_.parse(module.Settings, module.PRESETS, {"workers": "1"} if study == "distributed" else {})
    return [set(one.settings) for one in treatments.of(module, settings)]


@pytest.mark.parametrize("study", STUDIES)
def test_cells_still_have_them(study: str) -> None:
    mine = {field.name for name, field in FIELDS if name == study}
    assert all(mine <= own for own in cell_settings(study))


@pytest.mark.parametrize("study", studies.available())
def test_no_setting_of_the_user_is_overwritten_by_a_study(study: str) -> None:
    """What a study sets for each cell of its own is either such a setting, or what the user has set."""
    module = studies.load(study)
    settings = settings_.parse(module.Settings, module.PRESETS, {"workers": "1"} if study == "distributed" else {})
    mine = {field.name for name, field in FIELDS if name == study}
    for treatment in treatments.of(module, settings):
        for name in treatment.settings.keys() - mine - {"inject_delay"}:  # the delay is the controls' alone
            given = getattr(settings, name)
            assert not given or treatment.settings[name] in (given, *(given if isinstance(given, tuple) else ())), name


@EVERY
def test_a_campaign_that_began_with_one_is_resumed(study: str, field: dataclasses.Field[object]) -> None:
    """Its journal has what was given, which the study has overwritten in every cell; no new call may repeat it."""
    module = studies.load(study)
    before = dataclasses.asdict(settings_.parse(module.Settings, module.PRESETS, {}))
    given = settings_.convert(field.name, value_of(field), type(field.default)) if field.default != () else ("pruning",)
    before[field.name] = given
    assert getattr(resume.same_settings(study, before, {"blocks": "9"}), field.name) == given
    with pytest.raises(WrongCall, match=f"{field.name} is set by the study"):
        resume.same_settings(study, before, {field.name: value_of(field)})
    words = resume.options(settings_.as_text(settings_.from_values(module.Settings, before)), study)
    assert not [word for word in words if word.startswith(f"--{field.name}=")]

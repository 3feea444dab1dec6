"""Parameters that a study sets for each cell: users cannot set them, and its cells have them."""

from __future__ import annotations

import dataclasses
import re

import pytest

from experiments import studies
from experiments.cli import completion, entries
from experiments.cli.codes import DONE, WRONG_CALL
from experiments.cli.main import main
from experiments.config import settings as settings_
from experiments.config.settings import CellParameters
from experiments.planning import treatments

PARAMETERS = [
    (name, field)
    for name in studies.available()
    for field in dataclasses.fields(studies.load(name).settings.parameters)
]
EVERY = pytest.mark.parametrize(
    ("study", "field"), PARAMETERS, ids=[f"{study}-{field.name}" for study, field in PARAMETERS]
)


def value_of(field: dataclasses.Field[object]) -> str:
    return "1" if isinstance(field.default, int) else "fp16"


@EVERY
def test_a_user_cannot_pass_one(
    study: str, field: dataclasses.Field[object], capsys: pytest.CaptureFixture[str]
) -> None:
    names = entries.load(study).fields.keys()
    assert field.metadata["instead"]
    assert names >= set(field.metadata["instead"]), "what it names, users can set"
    assert field.name not in names
    assert f"--{field.name}" not in {one.value for one in completion.candidates([study], "--")}
    value = f"--{field.name}={value_of(field)}"
    for words in (
        [study, value],
        [study, f"--vary={field.name}=1,2"],
        ["sweep", f"--experiment={study}", "--search=seed=1|2", value],
    ):
        assert main(words) == WRONG_CALL
        (line,) = capsys.readouterr().err.splitlines()
        right = " or ".join(field.metadata["instead"])
        assert f"{field.name} is set by the study, cell by cell; set {right} instead" in line
    assert main([study, "--help", "all"]) == DONE
    assert not re.search(rf"^  --{field.name}\b", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("study", studies.available())
def test_cells_have_them_and_no_setting_of_the_user_is_overwritten(study: str) -> None:
    module = studies.load(study)
    settings = settings_.parse(
        module.settings, module.presets, {"workers": "1"} if study == "distributed" else {}
    )
    parameters = {field.name for field in dataclasses.fields(module.settings.parameters)}
    for treatment in treatments.list_treatments(module, settings):
        merged = treatment.merged(settings)
        assert isinstance(merged, module.settings)
        assert isinstance(merged, module.settings.parameters)
        assert parameters <= treatment.settings.keys()
        for name in (
            treatment.settings.keys() - parameters - {"inject_delay"}
        ):  # the delay is the controls' alone
            given = getattr(settings, name)
            assert not given or treatment.settings[name] in (
                given,
                *(given if isinstance(given, tuple) else ()),
            ), name
    assert not isinstance(settings, CellParameters), "a user's settings are of another type"

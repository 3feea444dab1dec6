"""Parameters that a study sets for each cell, which users cannot set."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from experiments import studies
from experiments.cli import entries
from experiments.cli.codes import DONE, WRONG_CALL
from experiments.cli.main import main
from experiments.config import settings as settings_
from experiments.planning import treatments
from tests.experiments.small_campaigns import required

PARAMETERS = {
    f"{study}-{field.name}": (study, field)
    for study in studies.available()
    for field in dataclasses.fields(studies.load(study).settings)
    if field.metadata.get("instead")
}


@pytest.mark.parametrize(("study", "field"), PARAMETERS.values(), ids=PARAMETERS)
def test_parameter_cannot_be_set_by_users(
    study: str, field: dataclasses.Field[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names, instead = entries.load(study).fields.keys(), set(field.metadata["instead"])
    assert instead
    assert instead <= names - {field.name}
    value = "1" if isinstance(field.default, int) else "fp16"
    (tmp_path / "settings.json").write_text(json.dumps({field.name: value}))
    for words in (
        [study, f"--{field.name}={value}"],
        [study, f"--settings={tmp_path / 'settings.json'}"],
        [study, f"--vary={field.name}=1,2"],
        ["sweep", f"--experiment={study}", "--search=seed=1|2", f"--{field.name}={value}"],
    ):
        assert main(words) == WRONG_CALL
        (line,) = capsys.readouterr().err.splitlines()
        assert all(name in line for name in (field.name, *field.metadata["instead"]))
    assert main([study, "--help", "all"]) == DONE
    assert not re.search(rf"^  --{field.name}\b", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("study", studies.available())
def test_cells_overwrite_no_setting_of_the_user(study: str) -> None:
    module = studies.load(study)
    options = {"workers": "1"} if study == "distributed" else required(study)
    settings = settings_.parse(module.settings, module.presets, options)
    parameters = settings_.parameter_names(settings)
    for treatment in treatments.list_treatments(module, settings):
        assert isinstance(treatment.merged(settings), module.settings)
        assert parameters <= treatment.settings.keys()
        # only controls have a delay
        # `level` has NAME=COMMAND, of which a cell has the name
        for name in treatment.settings.keys() - parameters - {"inject_delay", "level"}:
            value = getattr(settings, name)
            levels = value if isinstance(value, tuple) else ()
            assert not value or treatment.settings[name] in (value, *levels), name

"""Values of one setting in the same blocks of a campaign: parsing, cells and comparison."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from experiments import studies
from experiments.config import settings as settings_
from experiments.config import variation
from experiments.planning.design import Cell
from experiments.run.plan import Plan
from tests.conftest import Place
from tests.experiments.small_campaigns import cells, measure
from tests.experiments.test_blocks import TOYS
from tests.experiments.test_cell_settings import report_of
from tracking.errors import UsageError
from tracking.store import Store

TOY = {**TOYS, "frameworks": "toy", "blocks": "1"}
INVALID = """
threads · threads= · =1,2 · threads=1 · threads=1,,2 · threads=1,1 · threads=1,x · threads=1,5000
threads=0,2 · device=auto,cpu · malloc=keep,other · tread=1,2 · blocks=1,2
seed=1,2 · executor=local,slurm · journal=a,b · frameworks=a,b · framework=a,b · vary=a,b
threads=1,2,malloc=system,keep · threads=1,2,env.A=1 · env.=1,2 · env.a b=1,2
env.MLFLOW_TRACKING_URI=a,b · env.PYTHONPATH=a,b · max_broken_images=0,1
"""
STEP = "train/step_seconds"


def settings(study: str = "captioning", **options: str) -> Any:
    module = studies.load(study)
    return settings_.parse(module.settings, module.presets, options)


def plan(study: str, **options: str) -> Plan:
    return Plan.of_study(studies.load(study), settings(study, **options))


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("threads=1|2", "threads", [1, 2]),
        ("learning_rate=0.01, 1e-3", "learning_rate", [0.01, 0.001]),
        ("inference_batch_sizes=1,8|1,32", "inference_batch_sizes", [(1, 8), (1, 32)]),
        ("inference_batch_sizes=1,8", "inference_batch_sizes", [(1,), (8,)]),
    ],
)
def test_values_have_the_type_of_the_setting(text: str, name: str, values: Sequence[Any]) -> None:
    varied = variation.parse(settings(vary=text))
    assert varied is not None
    assert [level.settings for level in varied.levels] == [{name: value} for value in values]
    assert variation.parse(settings(vary=str(varied))) == varied


def test_cells_of_every_value_have_separate_folders() -> None:
    for text in ("env.A=a_b,a-b", "env.A=1|2,3", "env.A=x/y,x:y", f"data={'a' * 70},{'b' * 70}"):
        treatments = plan("captioning", vary=text, frameworks="pytorch").treatments
        assert len({Cell(treatment.name, 1, 0).key for treatment in treatments}) == 2


@pytest.mark.parametrize(
    ("study", "text"),
    [
        ("grid", "batch_size=1,2"),
        *(("captioning", text) for text in re.split(r" · |\n", INVALID.strip())),
    ],
)
def test_invalid_variation_is_one_line(study: str, text: str) -> None:
    with pytest.raises(UsageError, match=r"^[^\n]+$"):
        variation.parse(settings(study, vary=text))


@pytest.mark.parametrize("study", sorted(set(studies.available()) - {"race"}))
def test_every_study_can_vary_a_setting(study: str) -> None:
    """Check that each treatment has both values, and the study's factor is a stratum."""
    plain = plan(study, threads="1")
    both = plan(study, threads="1", vary="malloc=system,keep")
    count = len(plain.treatments)
    assert (both.factor, both.baseline) == ("malloc", "system")
    assert len({treatment.name for treatment in both.treatments}) == 2 * count
    base = settings(study, threads="1")
    values = [treatment.merged(base).malloc for treatment in both.treatments]
    assert values == ["system"] * count + ["keep"] * count
    frameworks = {treatment.framework for treatment in plain.treatments}
    is_stratum = len(frameworks) > 1 or plain.factor != "framework"
    assert set(plain.strata) <= set(both.strata)
    assert (plain.factor in both.strata) == is_stratum
    groups = {treatment.group for treatment in plain.treatments}
    assert {treatment.group for treatment in both.treatments} == groups


@pytest.mark.parametrize(
    ("text", "steps", "is_rates_only"),
    [
        ("batch_size=8,16", "4", True),
        ("batch_size=8,16", "0", False),
        ("learning_rate=0.1,0.01", "4", False),
    ],
)
def test_trainings_of_different_length_are_compared_by_rates(
    text: str, steps: str, *, is_rates_only: bool
) -> None:
    varied = plan("captioning", vary=text, steps_per_epoch=steps, epochs="2")
    assert bool(varied.rates_only) == is_rates_only


# ---- campaigns


def reports(place: Place) -> dict[str, Mapping[str, Any]]:
    """Return the toy's report of the first block's cells, by the name of their treatment."""
    folders = place.journal.glob("*/cells/block-001-*/*/")
    return {folder.parent.name.removeprefix("block-001-"): report_of(folder) for folder in folders}


def rows(place: Place) -> list[dict[str, Any]]:
    (path,) = place.journal.glob("*/report/comparison.json")
    table: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return table


@pytest.fixture(autouse=True)
def toy_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_TOY_SEEN", "1")


@pytest.mark.usefixtures("local_cells")
def test_two_values_share_blocks_through_extension_and_resume(place: Place) -> None:
    measure(place, **TOY, vary="vocabulary=60,70")
    assert {name: report["spec"]["vocabulary"] for name, report in reports(place).items()} == {
        "toy-vocabulary-60": "60",
        "toy-vocabulary-70": "70",
    }
    done = place.resume(blocks="2")
    assert done.returncode == 3, done.stdout + done.stderr
    changed = place.resume(vary="vocabulary=60,80")
    assert (changed.returncode, changed.stderr.count("\n")) == (2, 1), changed.stderr
    runs = [run.data for run in cells(place)]
    blocks = sorted((run.tags["block"], run.params["vocabulary"]) for run in runs)
    assert blocks == [("1", "60"), ("1", "70"), ("2", "60"), ("2", "70")]
    assert {run.params["vary"] for run in runs} == {"vocabulary=60,70"}
    assert len({run.tags["settings_hash"] for run in runs}) == 2
    (row,) = (row for row in rows(place) if row["metric"] == STEP)
    assert (row["factor"], row["a"], row["b"], row["n_blocks"]) == ("vocabulary", "60", "70", 2)


def test_frameworks_can_be_compared_at_each_value(place: Place) -> None:
    """Let the cells take turns, with a control."""
    settings = {**TOYS, "pairing": "interleaved", "aa": "true", "vary": "malloc=system,keep"}
    measure(place, **settings, blocks="1")
    tags = [run.tags for run in Store(place.uri).runs("captioning", "tags.kind = 'cell'")]
    assert sorted(each["treatment"] for each in tags) == [
        "toy A/A · malloc=system",
        "toy · malloc=keep",
        "toy · malloc=system",
        "toy+twin · malloc=keep",
        "toy+twin · malloc=system",
    ]
    assert len({each["turns"] for each in tags}) == 1
    for name, report in reports(place).items():
        assert (report["faults"] < 100) == name.endswith("keep")
    assert {(row["factor"], row["stratum"]) for row in rows(place)} == {
        ("malloc", "framework=toy"),
        ("malloc", "framework=toy+twin"),
    }
    options = ("--experiment=captioning", "--format=json", "--figures=false", "--strata=malloc")
    output = f"--output={place.folder}/comparisons"
    done = place.call(sys.executable, "-m", "experiments", "compare", output, *options)
    compared = [row for row in json.loads(done.stdout)["rows"] if row["metric"] == STEP]
    blocks = {row["stratum"]: row["n_blocks"] for row in compared}
    assert blocks == {"malloc=keep": 1, "malloc=system": 1}


def test_environment_variable_reaches_cells(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "EVENHAND_TOY_WORD"
    monkeypatch.setenv(name, "of the parent")
    measure(place, **TOY, vary=f"env.{name}=none|a,b/c|d")
    words = {key: report["environment"].get(name) for key, report in reports(place).items()}
    assert words == {
        "toy-env.EVENHAND-TOY-WORD-1": None,
        "toy-env.EVENHAND-TOY-WORD-2": "a,b/c",
        "toy-env.EVENHAND-TOY-WORD-3": "d",
    }
    assert sorted(run.data.params[f"env.{name}"] for run in cells(place)) == ["a,b/c", "d", "none"]
    assert {row["factor"] for row in rows(place)} == {f"env.{name}"}

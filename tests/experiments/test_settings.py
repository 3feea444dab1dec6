"""Settings from text: presets, checks, and one line for every mistake."""

import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import studies
from experiments.cell import timing
from experiments.cell.timing import PhaseValues
from experiments.cli import entries
from experiments.cli.codes import DONE, WRONG_CALL
from experiments.cli.main import main
from experiments.config import settings as settings_
from experiments.planning import design
from experiments.planning import treatments as treatments_
from experiments.studies import captioning
from tests.experiments.datasets.folders import refused
from tests.experiments.small_campaigns import required
from tracking.errors import ErrorCode


def parse(**options: str) -> captioning.Settings:
    return settings_.parse(captioning.Settings, captioning.STUDY.presets, options)


def test_option_replaces_file_that_replaces_preset_that_replaces_default(tmp_path: Path) -> None:
    path = tmp_path / "best-settings.json"
    path.write_text('{"length": 7, "batch_size": 4, "frameworks": ["pytorch", "tensorflow+xla"]}')
    settings = parse(settings=str(path), preset="coco-paper", batch_size="5")
    assert (settings.batch_size, settings.length, settings.vocabulary) == (5, 7, 26_443)
    assert settings.frameworks == ("pytorch", "tensorflow+xla")
    assert settings == parse(**{**settings_.as_text(settings), "settings": str(path)})
    assert parse().epochs == captioning.STUDY.presets["demo"]["epochs"] != settings.epochs


@pytest.mark.parametrize(
    ("options", "code", "part"),
    [
        ({"epoch": "5"}, ErrorCode.UNKNOWN_NAME, "did you mean epochs?"),
        ({"preset": "big"}, ErrorCode.UNKNOWN_NAME, "have demo"),
        ({"epochs": "many"}, ErrorCode.INVALID_VALUE, "epochs=many"),
        ({"learning_rate": "fast"}, ErrorCode.INVALID_VALUE, "learning_rate=fast"),
        ({"batch_size": "0"}, ErrorCode.INVALID_VALUE, "at least 1"),
        ({"learning_rate": "nan"}, ErrorCode.INVALID_VALUE, "learning_rate=nan"),
        ({"margin": "3"}, ErrorCode.INVALID_VALUE, "at most 0.5"),
        ({"formulation": "words"}, ErrorCode.INVALID_VALUE, "choose prefix, sequence"),
        ({"frameworks": ""}, ErrorCode.MISSING_VALUE, "frameworks"),
        ({"frameworks": "pytorch,pytorch"}, ErrorCode.DUPLICATE, "frameworks=pytorch,pytorch"),
        ({"inference_batch_sizes": "1,x"}, ErrorCode.INVALID_VALUE, "inference_batch_sizes=x"),
    ],
)
def test_mistake_is_one_line(options: dict[str, str], code: ErrorCode, part: str) -> None:
    with refused(code, part):
        parse(**options)


@pytest.mark.parametrize(
    "attribute",
    [
        {"primary": ("train/step_second",)},
        {"grows_with": "batch_sizes"},
        {"factor": "framewrok"},
        {"allowed_to_differ": ("optimiser",)},
        {"presets": {"demo": {"epoch": 5}}},
        {"presets": {}},
        {"baselin": None},
    ],
    ids=lambda attribute: next(iter(attribute)),
)
def test_misspelt_study_is_refused(attribute: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        dataclasses.replace(captioning.STUDY, **attribute)


def orders(groups: list[list[str]], count: int, seed: int = 3) -> list[str]:
    """Return the treatments of every block as one text, in their order."""
    cells = design.blocks(groups, count, np.random.default_rng(seed))
    assert len({cell.key for cell in cells}) == len(cells)
    return [
        "".join(cell.treatment for cell in cells if cell.block == block)
        for block in range(1, count + 1)
    ]


@pytest.mark.parametrize("treatments", ["a", "ab", "abc", "abcde"])
def test_orders_are_balanced(treatments: str) -> None:
    """In n blocks of n treatments each has every place once.

    In 2 n each is as often before any other as after it.
    """
    n = len(treatments)
    blocks = orders([list(treatments)], 6 * n)
    for start in range(0, 6 * n, n):
        for place in zip(*blocks[start : start + n], strict=True):
            assert sorted(place) == list(treatments)
    pairs = itertools.combinations(treatments, 2)
    for start, (left, right) in itertools.product(range(0, 6 * n, 2 * n), pairs):
        group = blocks[start : start + 2 * n]
        assert sum(order.index(left) < order.index(right) for order in group) == n


def test_orders_are_random_and_follow_from_the_seed() -> None:
    """Check that the first of a block is a fair coin."""
    pairs = [orders([["a", "b"]], 2, seed) for seed in range(400)]
    first = sum(order[0] == "ab" for order in pairs)
    assert 150 <= first < 250  # 400 fair coins leave it once in a million
    assert all(set(order) == {"ab", "ba"} for order in pairs)
    triples = {order for seed in range(40) for order in orders([["a", "b", "c"]], 3, seed)}
    assert triples == {"abc", "acb", "bac", "bca", "cab", "cba"}
    again, other = (orders([["a", "b", "c"]], 9, seed) for seed in (5, 6))
    assert orders([["a", "b", "c"]], 9, 5) == again != other


def test_more_blocks_keep_the_first_ones_and_groups_together() -> None:
    groups = [["a", "b"], ["c", "d", "e"], ["f"]]
    blocks = orders(groups, 24)
    assert blocks[:7] == orders(groups, 7)
    assert all("".join(sorted(order)) == "abcdef" for order in blocks)
    for order, group in itertools.product(blocks, groups):
        places = sorted(map(order.index, group))
        assert places == list(range(places[0], places[0] + len(group)))
    starts = [[order.startswith("f") for order in blocks[at : at + 3]] for at in range(0, 24, 3)]
    assert [sum(group) for group in starts] == [1] * 8


def test_first_step_is_separate_and_throughput_is_total_over_total() -> None:
    values = PhaseValues("train", (9.0, 5.0, 1.0, 3.0), (10, 10, 10, 10), warmup=2)
    summary = timing.summarise_training(values, total_seconds=20.0)
    assert summary["train/first_step_seconds"] == 9.0
    assert summary["train/step_seconds"] == 2.0
    assert summary["train/examples_per_second"] == 20 / 4  # the mean of rates would be 6.67
    assert "train/step_seconds_p95" not in summary


@pytest.mark.parametrize(
    ("requests", "available"),
    [(5, set()), (6, {50}), (71, {50}), (72, {50, 95}), (368, {50, 95, 99})],
)
def test_percentiles_need_enough_requests(requests: int, available: set[int]) -> None:
    assert set(timing.percentiles([0.1] * requests)) == available
    for q in available:  # a distribution-free 95 % interval exists exactly from here on
        assert max(q / 100, 1 - q / 100) ** requests <= 0.025


# ---- parameters that a study sets for each cell, which users cannot set

PARAMETERS = {
    f"{study}-{field.name}": (study, field)
    for study in studies.available()
    for field in dataclasses.fields(studies.load(study).settings)
    if field.metadata.get("instead")
}


@pytest.mark.parametrize(("study", "field"), PARAMETERS.values(), ids=PARAMETERS)
def test_parameter_cannot_be_set_by_users(
    study: str, field: dataclasses.Field[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    for treatment in treatments_.list_treatments(module, settings):
        assert isinstance(treatment.merged(settings), module.settings)
        assert parameters <= treatment.settings.keys()
        # only controls have a delay
        # `level` has NAME=COMMAND, of which a cell has the name
        for name in treatment.settings.keys() - parameters - {"inject_delay", "level"}:
            value = getattr(settings, name)
            levels = value if isinstance(value, tuple) else ()
            assert not value or treatment.settings[name] in (value, *levels), name

"""Settings from text: presets, checks, and one line for every mistake."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from experiments.cell import timing
from experiments.cell.timing import PhaseValues
from experiments.config import settings as settings_
from experiments.planning import design
from experiments.studies import captioning
from tracking.errors import UsageError

import numpy as np  # isort: skip


def parse(**given: str) -> captioning.Settings:
    return settings_.parse(captioning.Settings, captioning.STUDY.presets, given)


def test_what_is_given_wins_over_the_preset_and_the_preset_over_the_default() -> None:
    assert parse().epochs == captioning.STUDY.presets["demo"]["epochs"]
    assert parse(epochs="5").epochs == 5
    assert parse(preset="coco-paper").epochs == 11
    assert parse(frameworks="pytorch, tensorflow+xla").frameworks == ("pytorch", "tensorflow+xla")


def test_the_papers_presets_have_the_papers_settings() -> None:
    for name in ("flickr8k-paper", "flickr30k-paper", "coco-paper"):
        settings = parse(preset=name)
        assert (
            settings.batch_size,
            settings.epochs,
            settings.image_size,
            settings.formulation,
        ) == (32, 11, 224, "prefix")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epoch": "5"}, "there is no setting 'epoch'; did you mean epochs?"),
        ({"preset": "big"}, "there is no preset 'big'; have demo"),
        ({"epochs": "many"}, "epochs=many is not a whole number"),
        ({"learning_rate": "fast"}, "learning_rate=fast is not a number"),
        ({"batch_size": "0"}, "batch_size=0 is too small; at least 1"),
        ({"learning_rate": "nan"}, "learning_rate=nan is not a finite number"),
        ({"margin": "3"}, "margin=3.0 is too large; at most 0.5"),
        ({"formulation": "words"}, "formulation=words is not known; choose prefix, sequence"),
        ({"frameworks": ""}, "frameworks is empty"),
        ({"frameworks": "pytorch,pytorch"}, "names one twice"),
        ({"inference_batch_sizes": "1,x"}, "inference_batch_sizes=x is not a whole number"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_would_be_right(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse(**given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_every_setting_becomes_text_and_comes_back() -> None:
    settings = parse(frameworks="pytorch,tensorflow", inference_batch_sizes="1,8,64")
    text = settings_.as_text(settings)
    assert text["inference_batch_sizes"] == "1,8,64"
    assert settings_.parse(captioning.Settings, captioning.STUDY.presets, text) == settings


def orders(groups: list[list[str]], count: int, seed: int = 3) -> list[str]:
    """The treatments of every block as one text, in their order."""
    cells = design.blocks(groups, count, np.random.default_rng(seed))
    assert len({cell.key for cell in cells}) == len(cells)
    return [
        "".join(cell.treatment for cell in cells if cell.block == block)
        for block in range(1, count + 1)
    ]


@pytest.mark.parametrize("treatments", ["a", "ab", "abc", "abcde"])
def test_orders_are_balanced(treatments: str) -> None:
    """In n blocks of n treatments each has every place once; in 2 n each is as often before any other as after it."""
    n = len(treatments)
    found = orders([list(treatments)], 6 * n)
    for start in range(0, 6 * n, n):
        assert all(
            sorted(places) == list(treatments)
            for places in zip(*found[start : start + n], strict=True)
        )
    for start, (one, other) in itertools.product(
        range(0, 6 * n, 2 * n), itertools.combinations(treatments, 2)
    ):
        assert (
            sum(order.index(one) < order.index(other) for order in found[start : start + 2 * n])
            == n
        )


def test_orders_are_random_and_the_seeds() -> None:
    """Whoever comes first in a block is a fair coin, and the next block's follows from it in half of the cases."""
    first = [orders([["a", "b"]], 2, seed) for seed in range(400)]
    for wanted in ("ab", "ba"):
        assert sum(order[0] == wanted for order in first) in range(
            150, 250
        )  # 400 fair coins leave it once in a million
    assert all(set(order) == {"ab", "ba"} for order in first)
    every = {order for seed in range(40) for order in orders([["a", "b", "c"]], 3, seed)}
    assert every == {"abc", "acb", "bac", "bca", "cab", "cba"}
    assert (
        orders([["a", "b", "c"]], 9, 5)
        == orders([["a", "b", "c"]], 9, 5)
        != orders([["a", "b", "c"]], 9, 6)
    )


def test_more_blocks_leave_the_first_as_they_were_and_groups_together() -> None:
    groups = [["a", "b"], ["c", "d", "e"], ["f"]]
    found = orders(groups, 24)
    assert found[:7] == orders(groups, 7)
    assert all("".join(sorted(order)) == "abcdef" for order in found)
    for order, group in itertools.product(found, groups):
        places = sorted(map(order.index, group))
        assert places == list(range(places[0], places[0] + len(group)))
    assert [
        sum(order.startswith("f") for order in found[at : at + 3]) for at in range(0, 24, 3)
    ] == [1] * 8


def test_the_first_step_is_apart_and_throughput_is_total_over_total() -> None:
    values = PhaseValues("train", (9.0, 5.0, 1.0, 3.0), (10, 10, 10, 10), warmup=2)
    found = timing.summarise_training(values, total_seconds=20.0)
    assert found["train/first_step_seconds"] == 9.0
    assert found["train/step_seconds"] == 2.0
    assert found["train/examples_per_second"] == 20 / 4  # the mean of rates would be 6.67
    assert "train/step_seconds_p95" not in found


@pytest.mark.parametrize(
    ("requests", "earned"), [(5, set()), (6, {50}), (71, {50}), (72, {50, 95}), (368, {50, 95, 99})]
)
def test_percentiles_are_earned(requests: int, earned: set[int]) -> None:
    assert set(timing.percentiles([0.1] * requests)) == earned
    for q in earned:  # a distribution-free 95 % interval exists exactly from here on
        assert max(q / 100, 1 - q / 100) ** requests <= 0.025

"""Learning curves, times to an accuracy and hypotheses, from runs whose answers are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import Evidence, hypotheses, learning, survival
from experiments.comparison.analyses.survival import Reached
from experiments.comparison.runs.raw import RawRun
from experiments.comparison.runs.warning import ComparisonWarning, WarningCode
from experiments.metrics import Hypothesis
from tests.experiments.comparison.campaigns import frame, paired

EPOCHS = 5


def curves(
    shift: float,
    *,
    blocks: int = 6,
    noise: float = 0.004,
    at: int = 2,
    metric: str = "val/accuracy",
    seed: int = 0,
) -> list[RawRun]:
    """Two levels that learn alike, but that b lies `shift` off in one epoch."""
    rng = np.random.default_rng(seed)
    found = []
    for block in map(str, range(1, blocks + 1)):
        common = np.linspace(0.5, 0.9, EPOCHS) + 0.02 * rng.standard_normal()
        for level in ("a", "b"):
            values = common + noise * rng.standard_normal(EPOCHS)
            values[at] += shift * (level == "b")
            found.append(RawRun(f"{level}{block}", level, "", block, {}, epochs={metric: values}))
    return found


def said(raw: list[RawRun]) -> tuple[list[ComparisonWarning], list[str]]:
    """Return warnings and sentences."""
    evidence = Evidence(compare(paired([1.0, 2.0], [1.0, 2.0])), raw=raw)
    return learning.warnings(evidence), learning.sentences(evidence)


def test_curves_that_overlap_are_told_to() -> None:
    raw = curves(0.0, noise=0.002)
    (one,) = learning.agreements(raw, "a")
    assert (one.metric, one.a, one.b, one.n_blocks, one.n_epochs, one.alike) == (
        "val/accuracy",
        "a",
        "b",
        6,
        EPOCHS,
        True,
    )
    loud, plain = said(raw)
    assert loud == []
    assert plain[0].startswith(
        "Learning curves, b against a: they overlap. In each of 5 epochs the validation accuracy is equivalent"
    )


def test_curves_that_part_are_told_first() -> None:
    (one,) = learning.agreements(curves(-0.05), "a")
    assert (one.alike, one.epoch) == (False, 3)
    assert one.estimate.value == pytest.approx(-0.05, abs=0.01)
    loud, plain = said(curves(-0.05))
    assert [warning.code for warning in loud] == [WarningCode.LEARNING_DIFFERS]
    assert "differs in epoch 3 by −0.0" in loud[0].text
    assert plain == []


def test_a_shift_inside_the_margin_is_no_difference() -> None:
    (one,) = learning.agreements(
        curves(0.006, noise=0.0005), "a"
    )  # certain, but less than one point
    assert one.alike is True


def test_few_blocks_say_nothing_and_loss_stands_in_for_accuracy() -> None:
    few, two = curves(-0.5, blocks=5, metric="val/loss"), curves(-0.5, blocks=2)
    (one,) = learning.agreements(few, "a")
    assert (one.metric, one.alike) == ("val/loss", None)
    assert "5 blocks are too few" in said(few)[1][0]
    (one,) = learning.agreements(two, "a")
    assert (one.epoch, one.estimate, one.alike) == (None, None, None)
    assert said(two)[1][0].endswith(": 2 blocks are too few to say whether they overlap.")
    assert learning.agreements(curves(0.0, blocks=1), "a") == []
    assert learning.agreements([], "a") == []


def with_times(never: int) -> pd.DataFrame:
    """Eight blocks; tensorflow needs twice as long to 90 %, and `never` of its runs do not get there."""
    table = frame(blocks=8, params={"thresholds": "0.9,0.95"})
    rows = table["framework"] == "tensorflow"
    blocks = table["block"].astype(int)
    table["train/total_seconds"] = 100.0 + blocks
    table["train/to_accuracy_90_percent_seconds"] = np.where(rows, 40.0 + blocks, 20.0 + blocks)
    table.loc[rows & (blocks < never), "train/to_accuracy_90_percent_seconds"] = np.nan
    return table


def test_runs_that_never_get_there_count_as_censored() -> None:
    comparison = compare(with_times(3), baseline="pytorch", outcomes=["train/total_seconds"])
    told = {(one.percent, one.level): one for one in survival.reached(comparison)}
    assert set(told) == {
        (percent, level) for percent in ("90", "95") for level in ("pytorch", "tensorflow")
    }
    late = told["90", "tensorflow"]
    assert (late.reached.sum(), len(late.reached)) == (5, 8)
    assert sorted(late.seconds[~late.reached]) == [100, 101, 102]  # their whole training
    (section,) = survival.table(Evidence(comparison))
    rows = {row[:2]: row for row in section.rows}
    # when the fourth of eight got there, those that never did among them
    assert rows["90 %", "pytorch"][2:5] == ("8", "8 of 8", "23 s")
    assert rows["90 %", "tensorflow"][2:5] == ("8", "5 of 8", "46 s")
    assert (
        rows["90 %", "tensorflow"][6] == "0.0078"
    )  # 2 of 2⁸ choices of sides; that of 95 %, which none reached, does not count
    assert rows["95 %", "tensorflow"][3:] == ("0 of 8", "never", "—", "—")


def names(size: int) -> tuple[str, ...]:
    """Labels of blocks."""
    return tuple(map(str, range(size)))


def two_sides(rng: np.random.Generator, blocks: int, slower: float = 1.0) -> list[Reached]:
    """Two levels and three thresholds that nearly all reach, in blocks that share most of what spreads them."""
    shared = rng.normal(0, 0.5, blocks)
    seconds = {
        level: 10 * factor * np.exp(shared + rng.normal(0, 0.1, blocks))
        for level, factor in (("a", 1), ("b", slower))
    }
    return [
        Reached(percent, "", level, np.minimum(late * own, 60), late * own < 60, names(blocks))
        for percent, late in (("80", 1.0), ("85", 1.5), ("90", 2.0))
        for level, own in seconds.items()
    ]


def test_which_runs_share_a_block_counts() -> None:
    a, b = two_sides(np.random.default_rng(1), 14, 1.2)[-2:]
    swapped = replace(b, blocks=tuple(reversed(b.blocks)))
    paired, unpaired = (survival.median_times([a, one])[1].log_rank_p for one in (b, swapped))
    assert paired < unpaired


@pytest.mark.parametrize("sides", [(1, 1), (5, 5), (8, 5), (6, 6)])
def test_a_log_rank_test_and_an_interval_need_six_runs_a_side(sides: tuple[int, int]) -> None:
    found = [
        Reached("90", "", level, start + np.arange(size), np.ones(size, bool), names(size))
        for level, start, size in zip("ab", (10.0, 100.0), sides, strict=True)
    ]
    first, second = survival.median_times(found)
    assert (second.log_rank_p is None) is (min(sides) < 6)
    assert [np.isnan(one.low) for one in (first, second)] == [size < 6 for size in sides]


def test_times_need_no_total_among_the_outcomes() -> None:
    asked, unasked = (
        compare(with_times(3), baseline="pytorch", outcomes=[one])
        for one in ("train/total_seconds", "val/loss")
    )
    assert survival.table(Evidence(unasked)) == survival.table(Evidence(asked)) != []
    without = with_times(3).drop(columns="train/total_seconds")
    assert survival.table(Evidence(compare(without, baseline="pytorch"))) == []


HYPOTHESES = (
    Hypothesis("H1", "Does one take less time?", "learning", "train/total_seconds", "3.90e-18"),
    Hypothesis("H2", "Is one cooler?", "learning", "gpu/temperature_celsius_mean", "0.5"),
    Hypothesis(
        "H3", "Is one cooler?", "inference", "inference/cpu/temperature_celsius_mean", "0.5"
    ),
)


def test_hypotheses_are_answered_one_by_one() -> None:
    table = frame(blocks=8)
    rng = np.random.default_rng(1)
    table["train/total_seconds"] = np.where(
        table["framework"] == "tensorflow", 20.0, 10.0
    ) * np.exp(0.01 * rng.standard_normal(len(table)))
    table["tags.not_available.gpu"] = "no NVIDIA device: NVML Shared Library Not Found"
    outcomes = [one.metric for one in HYPOTHESES]
    comparison = compare(table, baseline="pytorch", outcomes=outcomes)
    time, gpu, cpu = hypotheses.answered(HYPOTHESES, comparison)
    assert (
        hypotheses.text(time) == "H0 rejected: tensorflow is slower, by more than the margin (±3 %)"
    )
    assert (
        hypotheses.text(gpu) == "not testable here: no NVIDIA device: NVML Shared Library Not Found"
    )
    assert hypotheses.text(cpu) == "not testable here: no two runs of one block have it"
    assert hypotheses.sentence([time, gpu, cpu]) == (
        "Of 3 null hypotheses 1 rejected, 0 confirmed as equal, 0 open, 2 not testable here. "
        "Of those rejected: 1 by more than the margin."
    )
    assert [row.split(",")[0] for row in hypotheses.as_csv([time, gpu, cpu]).splitlines()] == [
        "hypothesis",
        "H1",
        "H2",
        "H3",
    ]
    assert hypotheses.cells(time)[-1] == "3.90e-18"


@pytest.mark.parametrize(
    ("ratio", "spread", "said", "counted"),
    [
        (
            1.035,
            0.01,
            "H0 rejected: b is slower, whether by more than the margin is open (±3 %)",
            "1 rejected, 0 confirmed",
        ),
        (
            1.01,
            0.002,
            "H0 rejected: b is slower, by less than the margin (±3 %)",
            "1 rejected, 0 confirmed",
        ),
        (1.0, 0.01, "H0 stands: equivalent within the margin (±3 %)", "0 rejected, 1 confirmed"),
        (1.0, 0.0, "H0 stands: identical in all 12 blocks", "0 rejected, 1 confirmed"),
        (
            2.0,
            0.0,
            "H0 rejected: b is slower, by more than the margin (±3 %)",
            "1 rejected, 0 confirmed",
        ),
        (
            1.01,
            0.0,
            "H0 rejected: b is slower, by less than the margin (±3 %)",
            "1 rejected, 0 confirmed",
        ),
    ],
)
def test_a_null_hypothesis_is_one_question_and_the_margin_another(
    ratio, spread, said, counted
) -> None:
    """Log-ratios at exactly the stated mean and SD: what is shown of both questions is known."""
    noise = np.random.default_rng(0).permutation(
        np.linspace(-1, 1, 12)
    )  # in random order: blocks know nothing of each other
    values = ratio * np.exp(spread * noise / noise.std(ddof=1))
    comparison = compare(paired([1.0] * 12, values, "train/total_seconds"))
    found = hypotheses.answered(HYPOTHESES[:1], comparison)
    assert hypotheses.text(found[0]) == said
    assert counted in hypotheses.sentence(found)

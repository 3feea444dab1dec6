"""Order and time: pairs ran side by side, or there is a warning or a refusal."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.runs import order
from experiments.comparison.runs.pairing import Mismatch
from experiments.comparison.runs.warning import WarningCode
from experiments.comparison.verdicts.decision import Withheld
from experiments.comparison.verdicts.findings import Comparison
from tests.experiments.comparison.campaigns import ORIGIN_MS, STEP, frame

MINUTE, DAY = 60_000, 24 * 3_600_000


def timed(starts: dict[str, list[int]], campaign: str = "c1") -> pd.DataFrame:
    """Return a campaign whose runs took half a minute from these milliseconds, block by block."""
    blocks, slower = len(starts["pytorch"]), {"tensorflow": 1.2}
    table = frame(blocks=blocks, factors=slower, campaign=campaign).drop(columns="order_in_block")
    cells = table.itertuples()
    begins = [ORIGIN_MS + starts[cell.framework][int(cell.block)] for cell in cells]
    return table.assign(start_ms=begins, end_ms=[begin + MINUTE // 2 for begin in begins])


def side_by_side(blocks: int, a_first: int) -> dict[str, list[int]]:
    """Return starts of a block's runs a minute apart, of blocks five; a is first in `a_first`."""
    begins = {"pytorch": [], "tensorflow": []}
    for block in range(blocks):
        first, second = 5 * block * MINUTE, (5 * block + 1) * MINUTE
        is_first = (block * 7) % blocks < a_first
        begins["pytorch"].append(first if is_first else second)
        begins["tensorflow"].append(second if is_first else first)
    return begins


def judge(table: pd.DataFrame, **options: object) -> Comparison:
    return compare(table, baseline="pytorch", outcomes=[STEP], **options)  # type: ignore[arg-type]


def test_one_side_first_is_a_warning_and_later_a_refusal():
    """Fair coins give 8 of 8 in 1 of 128 campaigns, 12 of 12 in 1 of 2,048."""
    few, many = judge(timed(side_by_side(8, 8))), judge(timed(side_by_side(12, 12)))
    (warning,) = few.warnings
    assert (few.rows[0].verdict, warning.code) == ("slower", WarningCode.UNBALANCED_ORDER)
    assert "pytorch ran first in 8 of 8" in warning.text
    assert many.findings[0].mismatch is Mismatch.ORDER
    assert "pytorch ran first in 12 of 12" in many.rows[0].reason


def test_recorded_order_counts_without_times():
    table = frame(blocks=12).drop(columns=["start_ms", "end_ms"])
    table["order_in_block"] = (table["framework"] == "pytorch").astype(int)
    comparison = judge(table)
    assert comparison.findings[0].mismatch is Mismatch.ORDER
    assert "tensorflow ran first in 12 of 12" in comparison.rows[0].reason


@pytest.mark.parametrize(("later", "pause"), [(11 * DAY, "11 days"), (40 * MINUTE, "40 minutes")])
def test_one_side_after_the_other_is_refused(later, pause):
    starts = [5 * at * MINUTE for at in range(8)]
    comparison = judge(timed({"pytorch": starts, "tensorflow": [later + at for at in starts]}))
    assert comparison.findings[0].mismatch is Mismatch.ORDER
    assert f"8 of 8 blocks (up to {pause}" in comparison.rows[0].reason


@pytest.mark.parametrize(
    ("again", "verdict"), [(1, "slower"), (3, "slower"), (4, "not comparable")]
)
def test_later_runs_of_one_side_are_named_up_to_a_quarter(again, verdict):
    """Drift in between weighs at most a quarter in the mean."""
    starts = side_by_side(12, 6)
    later = [start + DAY if at < again else start for at, start in enumerate(starts["tensorflow"])]
    comparison = judge(timed({**starts, "tensorflow": later}))
    assert comparison.rows[0].verdict == verdict
    codes = [warning.code for warning in comparison.warnings]
    text = comparison.warnings[codes.index(WarningCode.NOT_SIDE_BY_SIDE)].text
    assert f" {again} block" in text
    assert ("(0)" if again == 1 else "(0, 1, 2") in text


def test_order_is_counted_over_strata():
    """Six of six is a warning, eighteen of eighteen no accident."""
    tables = [timed(side_by_side(6, 6), f"c{at}").assign(machine=f"m{at}") for at in range(3)]
    comparison = judge(pd.concat(tables), strata=["machine"])
    assert [row.verdict for row in comparison.rows] == ["slower"] * 3
    (warning,), (summary,) = comparison.warnings, comparison.summaries
    assert (warning.code, summary.withheld) == (WarningCode.UNBALANCED_ORDER, Withheld.ORDER)
    assert "18 of 18" in warning.text
    assert "18 of 18" in summary.row.reason


def test_shuffled_campaigns_have_few_warnings():
    """Six to thirty fair coins, weighed with their chance; one in a thousand is refused."""
    for n in range(6, 31):
        chances = {
            order.Order("a", "b", n_ordered=n, a_first=k): math.comb(n, k) / 2**n
            for k in range(n + 1)
        }
        warned = sum(chance for coins, chance in chances.items() if coins.p < order.UNBALANCED)
        assert warned <= 0.05
        assert sum(chance for coins, chance in chances.items() if coins.refused) <= 0.001


def test_separate_campaigns_are_paired_in_the_order_of_time():
    """Block numbers of two campaigns have nothing in common."""
    first = frame(levels=["pytorch"], seed=1)
    second = frame(levels=["pytorch"], seed=2, campaign="c2", factors={"pytorch": 1.2})
    second["block"] += 50
    second["start_ms"] += DAY
    comparison = compare(pd.concat([first, second]), factor="campaign", outcomes=[STEP])
    assert [(row.n_blocks, row.verdict) for row in comparison.rows] == [(8, "slower")]
    assert [warning.code for warning in comparison.warnings] == [WarningCode.SEPARATE_CAMPAIGNS]

"""Order and time: what is paired ran side by side, or it is said, or refused."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.runs import order
from experiments.comparison.runs.warning import WarningCode
from experiments.comparison.verdicts.findings import Comparison
from tests.experiments.comparison.campaigns import ORIGIN_MS, STEP, frame

MINUTE, DAY = 60_000, 24 * 3_600_000


def timed(starts: dict[str, list[int]], campaign: str = "c1") -> pd.DataFrame:
    """A campaign of which each level's runs began at these milliseconds, block by block, and took half a minute."""
    table = frame(
        blocks=len(starts["pytorch"]), factors={"tensorflow": 1.2}, campaign=campaign
    ).drop(columns="order_in_block")
    table["start_ms"] = [
        ORIGIN_MS + starts[run.framework][int(run.block)] for run in table.itertuples()
    ]
    return table.assign(end_ms=table["start_ms"] + MINUTE // 2)


def side_by_side(blocks: int, a_first: int) -> dict[str, list[int]]:
    """Runs of a block a minute apart, blocks five; a first in so many of them, the others in between."""
    ahead = [(at * 7) % blocks < a_first for at in range(blocks)]
    return {
        "pytorch": [5 * at * MINUTE + (0 if first else MINUTE) for at, first in enumerate(ahead)],
        "tensorflow": [
            5 * at * MINUTE + (MINUTE if first else 0) for at, first in enumerate(ahead)
        ],
    }


def told(table: pd.DataFrame, **how: object) -> Comparison:
    return compare(table, baseline="pytorch", outcomes=[STEP], **how)  # type: ignore[arg-type]


def test_one_side_always_first_is_a_warning_and_from_eleven_blocks_on_a_refusal():
    """Fair coins give 8 of 8 in 1 of 128 campaigns, 12 of 12 in 1 of 2,048."""
    few = told(timed(side_by_side(8, 8)))
    assert few.rows[0].verdict == "slower"
    (warning,) = few.warnings
    assert warning.code is WarningCode.UNBALANCED_ORDER
    assert "pytorch ran first in 8 of 8 blocks" in warning.text
    many = told(timed(side_by_side(12, 12)))
    assert many.rows[0].verdict == "not comparable"
    assert many.rows[0].reason.startswith("pytorch ran first in 12 of 12 blocks")


def test_where_times_are_missing_the_recorded_order_counts():
    table = frame(blocks=12).drop(columns=["start_ms", "end_ms"])
    table["order_in_block"] = (table["framework"] == "pytorch").astype(int)
    assert told(table).rows[0].reason.startswith("tensorflow ran first in 12 of 12 blocks")


@pytest.mark.parametrize(("later", "pause"), [(11 * DAY, "11 days"), (40 * MINUTE, "40 minutes")])
def test_all_of_a_and_later_all_of_b_is_refused(later, pause):
    starts = [5 * at * MINUTE for at in range(8)]
    found = told(timed({"pytorch": starts, "tensorflow": [later + one for one in starts]}))
    assert found.rows[0].verdict == "not comparable"
    assert (
        f"did not run side by side in 8 of 8 blocks (up to {pause} lie between"
        in found.rows[0].reason
    )


@pytest.mark.parametrize(
    ("again", "verdict"), [(1, "slower"), (3, "slower"), (4, "not comparable")]
)
def test_a_later_run_of_one_side_is_told_and_too_many_are_refused(again, verdict):
    """Up to a quarter of the pairs: what drifted in between then weighs at most a quarter in the mean."""
    starts = side_by_side(12, 6)
    starts["tensorflow"] = [
        one + DAY if at < again else one for at, one in enumerate(starts["tensorflow"])
    ]
    found = told(timed(starts))
    assert found.rows[0].verdict == verdict
    (warning,) = [line for line in found.warnings if line.code is WarningCode.NOT_SIDE_BY_SIDE]
    assert f" {again} block" in warning.text
    assert ("(0)" if again == 1 else "(0, 1, 2") in warning.text


def test_over_strata_the_order_is_counted_together():
    """Six of six is a warning, eighteen of eighteen no accident: the whole is not said more boldly than its strata allow."""
    tables = [timed(side_by_side(6, 6), f"c{at}").assign(machine=f"m{at}") for at in range(3)]
    found = told(pd.concat(tables), strata=["machine"])
    assert [row.verdict for row in found.rows] == ["slower"] * 3
    (warning,) = found.warnings
    assert warning.code is WarningCode.UNBALANCED_ORDER
    assert "pytorch ran first in 18 of 18 blocks" in warning.text
    (whole,) = found.summaries
    assert (whole.judged, whole.row.verdict) == (False, "inconclusive")
    assert whole.row.reason.startswith("pytorch ran first in 18 of 18 blocks")


def test_shuffled_campaigns_are_warned_of_in_at_most_five_of_a_hundred():
    """Every count of six to thirty fair coins, weighed with its chance; one in a thousand is refused."""
    for n in range(6, 31):
        chances = {
            order.Order("a", "b", known=n, a_first=k): math.comb(n, k) / 2**n for k in range(n + 1)
        }
        assert sum(chance for one, chance in chances.items() if one.p < order.UNBALANCED) <= 0.05
        assert sum(chance for one, chance in chances.items() if one.refused) <= 0.001


def test_campaigns_are_paired_in_the_order_of_time_and_that_is_said():
    """As teams are: block numbers of two campaigns have nothing in common."""
    first = frame(levels=["pytorch"], seed=1)
    second = frame(levels=["pytorch"], seed=2, campaign="c2", factors={"pytorch": 1.2}).assign(
        block=lambda runs: runs["block"] + 50
    )
    second["start_ms"] += DAY
    found = compare(pd.concat([first, second]), factor="campaign", outcomes=[STEP])
    assert [(row.n_blocks, row.verdict) for row in found.rows] == [(8, "slower")]
    assert WarningCode.SEPARATE_CAMPAIGNS in {warning.code for warning in found.warnings}

"""What is made of cells that took turns: simulated campaigns whose runs say so."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.runs.environment import seconds_of_a_block
from experiments.comparison.verdicts.verdict import TOOK_TURNS
from tests.experiments.comparison.campaigns import STEP, frame

FIRST, TOTAL, CALL = (
    "train/first_step_seconds",
    "train/total_seconds",
    "inference/batch_8/first_call_seconds",
)


def in_turns(blocks: int = 8) -> pd.DataFrame:
    table = frame(blocks=blocks, factors={"tensorflow": 2.0}, params={"pairing": "interleaved"})
    more = dict.fromkeys((FIRST, TOTAL, CALL), 3 * table[STEP])
    return table.assign(**more, **{"tags.turns": [f"turns-{block}" for block in table["block"]]})


def test_the_beginning_and_whole_times_are_not_judged_of_cells_that_took_turns() -> None:
    together = {row.metric: row for row in compare(in_turns()).rows}
    alone = {
        row.metric: row
        for row in compare(in_turns().assign(**{"params.pairing": "sequential"})).rows
    }
    for metric in (FIRST, TOTAL, CALL):
        assert (together[metric].verdict, together[metric].reason, together[metric].estimate) == (
            "not comparable",
            TOOK_TURNS.text,
            None,
        )
        assert alone[metric].verdict == "slower"
    assert together[STEP].verdict == alone[STEP].verdict == "slower"
    assert together[STEP].estimate == alone[STEP].estimate


def test_runs_that_were_paired_in_different_ways_are_not_compared() -> None:
    table = in_turns()
    mixed = table.assign(
        **{
            "params.pairing": [
                "sequential" if one == "pytorch" else "interleaved" for one in table["framework"]
            ]
        }
    )
    rows = compare(mixed).rows
    assert {row.verdict for row in rows} == {"not comparable"}
    assert "pairing (interleaved, sequential)" in rows[0].reason


def test_cells_that_took_turns_with_others_are_no_pair() -> None:
    """Of a block that was resumed one cell is of the first time and one of the second: its pair did not share its time."""
    table = in_turns()
    table.loc[(table["block"] == 3) & (table["framework"] == "pytorch"), "tags.turns"] = "earlier"
    found = compare(table)
    assert next(row.n_blocks for row in found.rows if row.metric == STEP) == 7
    assert {one.reason for one in found.excluded} == {
        "turns differ inside the block (earlier, turns-3)",
    }


@pytest.mark.parametrize(
    ("apart_ms", "seconds"),
    [(1_000, 1.8), (0, 0.9), (400, 1.3)],
    ids=["after", "together", "partly"],
)
def test_time_that_both_runs_of_a_block_share_counts_once(apart_ms: int, seconds: float) -> None:
    table = pd.DataFrame({"start_ms": [0, 60_000], "end_ms": [900, 60_900]})
    assert seconds_of_a_block(table, table + apart_ms) == pytest.approx(seconds)

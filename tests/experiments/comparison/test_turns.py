"""Cells that took turns: simulated campaigns with interleaved pairs."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.runs.environment import block_seconds
from experiments.comparison.runs.pairing import ExclusionCode, Mismatch
from tests.experiments.comparison.campaigns import STEP, frame

# Valid only for a process that has the machine for itself.
ISOLATED = (
    "train/first_step_seconds",
    "train/total_seconds",
    "inference/batch_8/first_call_seconds",
)


def in_turns(**columns: object) -> pd.DataFrame:
    table = frame(blocks=8, factors={"tensorflow": 2.0}, params={"pairing": "interleaved"})
    turns = [f"turns-{block}" for block in table["block"]]
    metrics = dict.fromkeys(ISOLATED, 3 * table[STEP])
    return table.assign(**{**metrics, "tags.turns": turns, **columns})


def test_first_and_whole_times_are_not_judged_in_turns() -> None:
    together = {finding.row.metric: finding for finding in compare(in_turns()).findings}
    table = in_turns(**{"params.pairing": "sequential"})
    apart = {finding.row.metric: finding for finding in compare(table).findings}
    for metric in ISOLATED:
        assert together[metric].mismatch is Mismatch.TURNS
        assert together[metric].row.estimate is None
        assert apart[metric].row.verdict == "slower"
    assert together[STEP].row.verdict == apart[STEP].row.verdict == "slower"
    assert together[STEP].row.estimate == apart[STEP].row.estimate


def test_both_ways_of_pairing_are_not_compared() -> None:
    table = in_turns()
    pairing = table["framework"].map({"pytorch": "sequential", "tensorflow": "interleaved"})
    for finding in compare(table.assign(**{"params.pairing": pairing})).findings:
        assert finding.mismatch is Mismatch.SETTINGS
        assert "pairing (interleaved, sequential)" in finding.row.reason


def test_cells_of_different_turns_are_no_pair() -> None:
    """In a block that was resumed one cell may be of the first time and one of the second."""
    table = in_turns()
    table.loc[(table["block"] == 3) & (table["framework"] == "pytorch"), "tags.turns"] = "earlier"
    comparison = compare(table, outcomes=[STEP])
    assert comparison.rows[0].n_blocks == 7
    assert {run.cause for run in comparison.excluded} == {ExclusionCode.UNLIKE_PARTNER}
    assert all("(earlier, turns-3)" in run.reason for run in comparison.excluded)


@pytest.mark.parametrize(
    ("apart_ms", "seconds"),
    [(1_000, 1.8), (0, 0.9), (400, 1.3)],
    ids=["after", "together", "partly"],
)
def test_shared_time_of_a_block_counts_once(apart_ms: int, seconds: float) -> None:
    table = pd.DataFrame({"start_ms": [0, 60_000], "end_ms": [900, 60_900]})
    assert block_seconds(table, table + apart_ms) == pytest.approx(seconds)

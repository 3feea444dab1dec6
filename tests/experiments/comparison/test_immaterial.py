"""Settings in which pooled runs may differ, and headlines of subjects."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.report import wording
from experiments.comparison.runs.pairing import Mismatch
from experiments.metrics import KNOWN, outcome
from tests.experiments.comparison.campaigns import LATENCY, RATE, RSS, STEP, frame


def two_campaigns(name: str, before: str = "1", after: str = "2") -> pd.DataFrame:
    """Return eight blocks in each of two campaigns with these values of a param."""
    first = frame(seed=1, params={name: before})
    second = frame(seed=2, campaign="c2", params={name: after})
    return pd.concat([first, second], ignore_index=True)


@pytest.mark.parametrize("name", ["team", "margin", "preset", "blocks", "frameworks"])
def test_settings_of_a_campaign_may_differ(name: str) -> None:
    comparison = compare(two_campaigns(name), outcomes=[STEP])
    rows = [(row.stratum, row.n_blocks) for row in comparison.rows]
    assert rows == [("campaign=c1", 8), ("campaign=c2", 8)]
    assert len(comparison.summaries[0].across.names) == 2


@pytest.mark.parametrize(
    ("before", "after", "matters"),
    [("16,32", "32,64", False), ("32", "16,32", False), ("16,32", "16,64", True), ("3", "5", True)],
)
def test_lists_with_the_value_of_the_run_may_differ(before: str, after: str, matters: bool) -> None:
    findings = compare(two_campaigns("batch_sizes", before, after)).findings
    assert {finding.mismatch for finding in findings} == {Mismatch.SETTINGS if matters else None}


@pytest.mark.parametrize("name", ["learning_rate", "inject_delay", "phases", "remark"])
def test_settings_of_a_cell_differ_only_where_the_study_allows(name: str) -> None:
    table = two_campaigns(name)
    assert {finding.mismatch for finding in compare(table).findings} == {Mismatch.SETTINGS}
    assert {row.n_blocks for row in compare(table, allowed_to_differ=(name,)).rows} == {8}


def test_headline_of_a_subject_ranks_first() -> None:
    def headlines(*outcomes: object) -> list[str]:
        comparison = compare(frame(), outcomes=outcomes)  # type: ignore[arg-type]
        return [finding.row.metric for finding in wording.headlines(comparison)]

    assert headlines(STEP, RSS, RATE, LATENCY) == [RATE, LATENCY, RSS]
    assert headlines(STEP, RSS) == [STEP, RSS]
    assert headlines(replace(outcome(STEP), headline=("training", 0)), RATE) == [STEP]
    assert headlines(replace(outcome(STEP), headline=("a step", 1)), RATE) == [RATE, STEP]


def test_ranks_of_headlines_are_unique() -> None:
    ranks = [metric.headline for metric in KNOWN if metric.headline]
    assert len(ranks) == len(set(ranks))
    assert outcome("inference/batch_8/latency_seconds_p50").headline is None

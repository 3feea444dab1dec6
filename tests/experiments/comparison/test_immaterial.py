"""In which settings runs may differ and still be pooled, and which outcome is the headline of its subject."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.report import wording
from experiments.metrics import KNOWN, outcome
from tests.experiments.comparison.campaigns import LATENCY, RATE, RSS, STEP, frame


def two_campaigns(**differs: str) -> pd.DataFrame:
    """Eight blocks in each, the second with other params. Each is a stratum, and they are summarised."""
    tables = [
        frame(seed=1, params=dict.fromkeys(differs, "1")),
        frame(seed=2, campaign="c2", params=differs),
    ]
    return pd.concat(tables, ignore_index=True)


@pytest.mark.parametrize("name", ["team", "margin", "preset", "blocks", "frameworks"])
def test_what_is_no_cells_does_not_matter(name: str) -> None:
    found = compare(two_campaigns(**{name: "2"}))
    assert {(row.stratum, row.n_blocks) for row in found.rows} == {
        ("campaign=c1", 8),
        ("campaign=c2", 8),
    }
    assert {len(one.across.names) for one in found.summaries if one.across} == {2}


@pytest.mark.parametrize(
    ("before", "after", "matters"),
    [("16,32", "32,64", False), ("32", "16,32", False), ("16,32", "16,64", True), ("3", "5", True)],
)
def test_a_list_of_what_is_compared_does_not_matter_where_it_names_the_runs_value(
    before: str, after: str, matters: bool
) -> None:
    tables = [
        frame(seed=1, params={"batch_sizes": before}),
        frame(seed=2, campaign="c2", params={"batch_sizes": after}),
    ]
    verdicts = {row.verdict for row in compare(pd.concat(tables, ignore_index=True)).rows}
    assert (verdicts == {"not comparable"}) is matters


@pytest.mark.parametrize(
    "name", ["learning_rate", "inject_delay", "inference_batch_sizes", "phases", "remark"]
)
def test_everything_else_matters_unless_its_study_says_that_it_does_not(name: str) -> None:
    table = two_campaigns(**{name: "2"})
    assert {row.verdict for row in compare(table).rows} == {"not comparable"}
    assert {row.n_blocks for row in compare(table, allowed_to_differ=(name,)).rows} == {8}


def test_the_headline_of_a_subject_is_what_ranks_first_of_what_was_measured() -> None:
    def told(*outcomes: object) -> list[str]:
        return [
            finding.row.metric for finding in wording.headlines(compare(frame(), outcomes=outcomes))
        ]  # type: ignore[arg-type]

    assert told(STEP, RSS, RATE, LATENCY) == [RATE, LATENCY, RSS]
    assert told(STEP, RSS) == [STEP, RSS]
    assert told(replace(outcome(STEP), headline=("training", 0)), RATE) == [STEP]
    assert told(replace(outcome(STEP), headline=("a step", 1)), RATE) == [RATE, STEP]


def test_ranks_within_a_subject_are_told_apart_and_a_batch_size_is_no_headline() -> None:
    ranked = [one.headline for one in KNOWN if one.headline]
    assert len(ranked) == len(set(ranked))
    assert outcome("inference/batch_8/latency_seconds_p50").headline is None

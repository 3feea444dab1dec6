"""What a cell costs as campaigns grow: the synthetic campaign is one that journal, store and comparison take for a real one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.comparison.judgement import ComparisonSpec, judged
from experiments.comparison.runs.query import table
from experiments.run import journal_runs
from experiments.run.journal_runs import cell_results
from tests.benchmarks import scale
from tracking.journal import Journal
from tracking.records import RunOutcome


def test_a_synthetic_campaign_is_read_and_judged_as_a_real_one(tmp_path: Path) -> None:
    records = Journal(tmp_path)
    for record in scale.records(24, np.random.default_rng(0)):
        records.append(record)
    records.close()
    ends = cell_results(tmp_path)
    assert len(ends) == 24
    assert {end.outcome for end in ends.values()} == {RunOutcome.OK}
    found = judged(ComparisonSpec(), table(list(journal_runs.stored(tmp_path))))
    ratios = {one.metric: one.estimate for one in found.rows if one.metric == "train/step_seconds"}
    # drawn with a ratio of 1.05 and a spread of 2 %: twelve pairs leave it uncertain by 0.02 * sqrt(2 / 12), here times four
    assert ratios["train/step_seconds"] == pytest.approx(1.05, rel=4 * 0.02 * (2 / 12) ** 0.5)


def test_the_command_measures_every_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert scale.main(["--cells", "12,14", "--store-up-to", "12", "--samples", "16"]) == 0
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in capsys.readouterr().out.splitlines()
    ]
    assert [len(row) for row in rows] == [2 + len(scale.STAGES)] * 5
    assert float(rows[2][4]) > 0  # twelve cells went to a store
    assert rows[3][4] == "–"  # fourteen did not

"""Synthetic campaigns pass journal, store and comparison as real ones; costs by size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.comparison.judgement import ComparisonSpec, judged
from experiments.comparison.runs.query import table
from experiments.run import journal_runs
from experiments.run.journal_runs import cell_results
from tests.benchmarks import scale
from tests.benchmarks.scale import Costs
from tracking.journal import Journal
from tracking.records import RunOutcome


def test_synthetic_campaigns_are_judged(tmp_path: Path) -> None:
    records = Journal(tmp_path)
    for record in scale.records(24, np.random.default_rng(0)):
        records.append(record)
    records.close()
    ends = cell_results(tmp_path)
    assert len(ends) == 24
    assert {end.outcome for end in ends.values()} == {RunOutcome.OK}
    comparison = judged(ComparisonSpec(), table(list(journal_runs.stored(tmp_path))))
    ratios = {row.metric: row.estimate for row in comparison.rows}
    # ratio of 1.05, spread of 2 %: the standard error of twelve pairs is 0.02 * sqrt(2 / 12)
    assert ratios["train/step_seconds"] == pytest.approx(1.05, rel=4 * 0.02 * (2 / 12) ** 0.5)


def test_growth_is_the_power_of_the_cost() -> None:
    linear = [
        Costs(cells, {"journal": 0.002, "compare": 0.002 * cells}, 1.0)
        for cells in (10, 100, 1_000)
    ]
    assert scale.growth(linear, "journal") == pytest.approx([1.0, 1.0])
    # as many milliseconds a cell as there are cells
    assert scale.growth(linear, "compare") == pytest.approx([2.0, 2.0])


@pytest.mark.parametrize(
    ("store", "is_sent"), [("0", False), pytest.param("12", True, marks=pytest.mark.slow)]
)
def test_command_measures_the_stages(
    store: str, is_sent: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scale.main(["--cells", "12,14", "--store-up-to", store, "--samples", "16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [len(row) for row in rows] == [2 + len(scale.STAGES)] * 5
    assert (rows[2][4] != "–") is is_sent
    assert rows[3][4] == "–"

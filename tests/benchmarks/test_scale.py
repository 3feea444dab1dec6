"""What a cell costs as campaigns grow: the synthetic campaign is one that journal, store and comparison take for a real one."""

from __future__ import annotations

import pytest

from tests.benchmarks import scale


def test_the_command_measures_every_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert scale.main(["--cells", "12,14", "--store-up-to", "12", "--samples", "16"]) == 0
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in capsys.readouterr().out.splitlines()
    ]
    assert [len(row) for row in rows] == [2 + len(scale.STAGES)] * 5
    assert float(rows[2][4]) > 0  # twelve cells went to a store
    assert rows[3][4] == "–"  # fourteen did not

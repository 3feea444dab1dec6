"""Tests of the breakdown of a step's time, and of the warning on eager runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import Evidence, breakdown, published
from experiments.comparison.analyses.breakdown import PARTS, breakdowns
from experiments.comparison.judgement import ComparisonSpec, ReportOptions, answer
from experiments.comparison.report.sections import Cell
from experiments.comparison.runs.warning import WarningCode
from experiments.studies.training_speed import SHARES, SOURCE
from tests.experiments.comparison.campaigns import frame

MODELS = ("gnmt", "vgg16")


def profiled() -> pd.DataFrame:
    """Return two networks in two frameworks; one cannot count, and one run has no profile."""
    rng, tables = np.random.default_rng(0), []
    for at, model in enumerate(MODELS):
        table = frame(blocks=3, params={"model": model}).assign(model=model)
        table["run_id"] += model
        table["start_ms"] += 10 * at
        parts = {f"profile/{part}_seconds": rng.uniform(0.01, 0.2, len(table)) for part in PARTS}
        is_pytorch = table["framework"] == "pytorch"
        parts |= {
            "profile/step_seconds": sum(parts.values()),
            "profile/input_seconds": 0.004,
            "profile/ops_per_step": np.where(is_pytorch, 1_234.0, np.nan),
            "tags.not_available.profile/ops_per_step": np.where(is_pytorch, None, "XLA fuses"),
        }
        tables.append(table.assign(**parts))
    table = pd.concat(tables, ignore_index=True)
    table.loc[0, [name for name in table.columns if name.startswith("profile/")]] = np.nan
    return table


def test_breakdown_has_a_row_for_each_level() -> None:
    comparison = compare(profiled(), strata=("model",))
    (section,) = breakdown.table(Evidence(comparison))
    names = [column.name for column in section.columns]
    for line, result in zip(section.lines, breakdowns(comparison), strict=True):
        row = [cell.text for cell in line if isinstance(cell, Cell)]
        values = dict(zip(names, row, strict=True))
        assert row[:2] == [result.stratum, result.level]
        for part, name in PARTS.items():
            share = float(values[name].removesuffix(" %"))
            assert share == pytest.approx(100 * result.share(part), abs=0.05)
        is_counted = result.level == "pytorch"
        assert values["operators a step"] == ("1,234" if is_counted else breakdown.NOT_COUNTED)
        assert values["wait for input"] == "4.00 ms"
    assert len(section.rows) == 4
    assert breakdown.table(Evidence(compare(frame()))) == []
    assert list(comparison.missing_sensors) == ["profile/ops_per_step"]


def test_eager_level_is_a_warning(tmp_path: Path) -> None:
    table = frame(levels=["pytorch", "pytorch+compile"])
    reason = "lenet: 2 graph breaks, first: print"
    table["tags.ran_eagerly"] = np.where(table["framework"] == "pytorch+compile", reason, None)
    options = ReportOptions("A study", figures=False)
    result = answer(ComparisonSpec(), table, tmp_path, options, lambda _: [])
    warning = result.comparison.warnings[0]
    assert warning.code is WarningCode.NOT_COMPILED
    assert "pytorch+compile" in warning.text
    assert reason in warning.text
    report = (tmp_path / "report.md").read_text()
    assert report.index(reason) < report.index("##")


def test_published_shares_stand_beside_measured_ones() -> None:
    comparison = compare(profiled(), strata=("model",))
    (section,) = published.shares(comparison, SHARES, SOURCE)
    shares = {
        (result.stratum, result.level): f"{100 * result.share('op'):.2f} %"
        for result in breakdowns(comparison)
    }
    expected = [
        (model, *both, *(shares[f"model={model}", level] for level in ("pytorch", "tensorflow")))
        for model, both in (
            ("vgg16", ("99.64 %", "99.34 %")),
            ("gnmt", ("85.91 %", "96.55 %")),
        )
    ]
    assert section.rows == expected
    assert published.shares(compare(frame()), SHARES, SOURCE) == []

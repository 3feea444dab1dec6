"""Where a step's time goes, in a report: means by network and framework, a table, a figure, and what was never compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import Evidence, breakdown, published
from experiments.comparison.analyses.breakdown import PARTS, breakdowns
from experiments.comparison.judgement import ComparisonSpec, ReportOptions, answer
from experiments.comparison.runs.warning import WarningCode
from experiments.studies.training_speed import SHARES, SOURCE
from tests.experiments.comparison.campaigns import frame

MODELS = ("gnmt", "vgg16")


def profiled() -> pd.DataFrame:
    """Two networks in two frameworks, three blocks; one framework cannot count its operators, one run was not profiled."""
    rng = np.random.default_rng(0)
    found = []
    for at, model in enumerate(MODELS):
        table = frame(blocks=3, params={"model": model}).assign(model=model)
        table["run_id"] += model
        table["start_ms"] += 10 * at
        for part in PARTS:
            table[f"profile/{part}_seconds"] = rng.uniform(0.01, 0.2, len(table))
        table["profile/step_seconds"] = table[[f"profile/{part}_seconds" for part in PARTS]].sum(
            axis=1
        )
        table["profile/input_seconds"] = 0.004
        table["profile/ops_per_step"] = np.where(table["framework"] == "pytorch", 1_234.0, np.nan)
        table["tags.not_available.profile/ops_per_step"] = np.where(
            table["framework"] == "tensorflow", "XLA fuses", None
        )
        found.append(table)
    table = pd.concat(found, ignore_index=True)
    table.loc[0, [name for name in table.columns if name.startswith("profile/")]] = np.nan
    return table


def test_the_table_has_a_line_for_each_and_says_what_was_not_counted() -> None:
    comparison = compare(profiled(), strata=("model",))
    (section,) = breakdown.table(Evidence(comparison))
    lines = [
        [cell.text for cell in line]
        for line in section.lines(once=False)
        if not isinstance(line, str)
    ]
    assert [line[:2] for line in lines] == [
        [f"model={m}", level] for m in MODELS for level in ("pytorch", "tensorflow")
    ]
    names = [column.name for column in section.columns]
    for line, one in zip(lines, breakdowns(comparison), strict=True):
        told = dict(zip(names, line, strict=True))
        assert float(told["operators or kernels"].removesuffix(" %")) == pytest.approx(
            100 * one.share("op"), abs=0.05
        )
        gaps = 100 * (one.seconds["dispatch"] + one.seconds["python"]) / one.step_seconds
        assert float(told["gaps"].removesuffix(" %")) == pytest.approx(gaps, abs=0.05)
        assert told["operators a step"] == ("1,234" if one.level == "pytorch" else "not counted")
        assert told["wait for input"] == "4.00 ms"
    assert breakdown.table(Evidence(compare(frame()))) == []
    assert comparison.missing_sensors == {
        "profile/ops_per_step": "XLA fuses"
    }  # which the report's end names


def test_what_was_to_be_compiled_and_was_not_stands_on_top(tmp_path: Path) -> None:
    table = frame(levels=["pytorch", "pytorch+compile"])
    why = "lenet: 2 graph breaks, first: print"
    table["tags.ran_eagerly"] = np.where(table["framework"] == "pytorch+compile", why, None)
    found = answer(ComparisonSpec(), table, tmp_path, ReportOptions("A study"), lambda _: [])
    told = f"NOT COMPILED THROUGHOUT, pytorch+compile: {why}."
    assert found.sentences[0].startswith(told)
    assert found.comparison.warnings[0].code is WarningCode.NOT_COMPILED
    report = (tmp_path / "report.md").read_text()
    assert report.index("NOT COMPILED THROUGHOUT") < report.index("- ")


def test_published_shares_stand_beside_ours() -> None:
    comparison = compare(profiled(), strata=("model",))
    (section,) = published.shares(comparison, SHARES, SOURCE)
    ours = {
        (one.stratum, one.level): f"{100 * one.seconds['op'] / one.step_seconds:.2f} %"
        for one in breakdowns(comparison)
    }
    assert section.rows == [
        (
            "vgg16",
            "99.64 %",
            "99.34 %",
            ours["model=vgg16", "pytorch"],
            ours["model=vgg16", "tensorflow"],
        ),
        (
            "gnmt",
            "85.91 %",
            "96.55 %",
            ours["model=gnmt", "pytorch"],
            ours["model=gnmt", "tensorflow"],
        ),
    ]
    assert published.shares(compare(frame()), SHARES, SOURCE) == []

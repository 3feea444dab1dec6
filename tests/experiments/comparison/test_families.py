"""Primary outcomes: declared beforehand, tested in a separate family."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments import studies
from experiments.cli.codes import WRONG_CALL
from experiments.cli.main import main
from experiments.comparison import compare
from experiments.comparison.report import tables
from experiments.comparison.statistics.significance import holm
from experiments.config import settings as settings_
from tests.benchmarks.test_verdict_rule import NAMES, table
from tests.experiments.comparison.campaigns import LATENCY, RATE, RSS, STEP, frame
from tests.experiments.small_campaigns import required
from tracking.errors import ErrorCode, UsageError

# Twelve unrelated outcomes of twelve blocks.
TWELVE = table(np.random.default_rng(0).normal(0, 0.03, (12, 12)))


def test_holm_spans_a_family():
    comparison = compare(TWELVE, primary=NAMES[:2])
    assert comparison.primary == tuple(NAMES[:2])
    for family, names in (("primary", NAMES[:2]), ("exploratory", NAMES[2:])):
        rows = [row for row in comparison.rows if row.family == family]
        assert sorted(row.metric for row in rows) == sorted(names)
        assert [row.p_holm for row in rows] == pytest.approx(holm([row.p for row in rows]))
    families = [row.family for row in comparison.rows]
    assert families == ["primary"] * 2 + ["exploratory"] * 10


def test_without_a_declaration_there_is_one_family():
    comparison = compare(TWELVE)
    assert {row.family for row in comparison.rows} == {"exploratory"}
    expected = holm([row.p for row in comparison.rows])
    assert [row.p_holm for row in comparison.rows] == pytest.approx(expected)
    assert not [line for line in tables.verdicts(comparison).rows if isinstance(line, str)]


def test_family_of_a_primary_outcome_has_its_strata_and_pairs():
    sides = [
        frame(levels=["a", "b", "c"], seed=at, campaign=f"c{at}").assign(machine=f"m{at}")
        for at in range(3)
    ]
    comparison = compare(pd.concat(sides), strata=["machine"], all_pairs=True, primary=[STEP])
    for findings, count in ((comparison.findings, 9), (comparison.summaries, 3)):
        primary = [finding.row for finding in findings if finding.primary]
        assert [row.metric for row in primary] == [STEP] * count
        assert [row.p_holm for row in primary] == pytest.approx(holm([row.p for row in primary]))


@pytest.mark.parametrize(
    ("primary", "code", "value"),
    [
        (["train/step_second"], ErrorCode.UNKNOWN_NAME, "train/step_seconds"),
        (["zzz"], ErrorCode.UNKNOWN_NAME, "primary=zzz"),
        ([STEP, RATE, LATENCY, RSS], ErrorCode.TOO_LARGE, "4"),
    ],
)
def test_invalid_declarations_are_refused(primary, code, value):
    with pytest.raises(UsageError) as error:
        compare(frame(), primary=primary)
    assert error.value.code is code
    assert value in str(error.value)


def test_campaign_with_an_unknown_primary_outcome_does_not_begin(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["captioning", "--primary=train/speed"]) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert "primary=train/speed" in line
    assert list(tmp_path.iterdir()) == []


def test_unmeasured_primary_outcome_costs_nothing():
    table = frame(factors={"tensorflow": 1.2})
    names = [STEP, "energy/joules"]
    comparison = compare(table, outcomes=names, primary=names)
    assert (comparison.primary, comparison.unmeasured) == (tuple(names), ("energy/joules",))
    assert comparison.rows[0].p_holm == comparison.rows[0].p


@pytest.mark.parametrize("name", studies.available())
def test_studies_declare_one_to_three_of_their_outcomes(name):
    study = studies.load(name)

    def primary(**values: str) -> tuple[str, ...]:
        options = {**required(name), **values}
        return studies.primary(study, settings_.parse(study.settings, study.presets, options))

    assert 1 <= len(primary()) <= 3
    last = study.outcomes[-1].metric
    assert primary(primary=last) == (last,)
    with pytest.raises(UsageError, match="primary=train/speed") as error:
        primary(primary="train/speed")
    assert error.value.code is ErrorCode.UNKNOWN_NAME

"""Primary outcomes: declared beforehand, tested in a family of their own, and what the head of a report speaks of."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from experiments import studies
from experiments.cli.codes import WRONG_CALL
from experiments.cli.main import main
from experiments.comparison import compare
from experiments.comparison.report import tables, wording
from experiments.comparison.statistics.significance import holm
from experiments.config import settings as settings_
from tests.experiments.comparison.campaigns import LATENCY, RATE, RSS, STEP, frame
from tracking.errors import UsageError

NAMES = [f"m{at}/x_seconds" for at in range(12)]


def twelve(
    rng: np.random.Generator, shift: float = 0.0, blocks: int = 12, sd: float = 0.03
) -> pd.DataFrame:
    """Twelve unrelated outcomes; the SD is that of a log-ratio, the first outcome of b is shifted."""
    table = pd.DataFrame(
        {
            "framework": ["a", "b"] * blocks,
            "block": np.repeat(range(blocks), 2),
            "status": "FINISHED",
        }
    )
    values = rng.normal(0, sd / math.sqrt(2), (2 * blocks, 12))
    values[:, 0] += shift * (table["framework"] == "b")
    return pd.concat([table, pd.DataFrame(np.exp(values), columns=NAMES)], axis=1)


def test_holm_spans_a_family_and_no_other():
    table = twelve(np.random.default_rng(0), 0.04)
    found = compare(table, primary=NAMES[:2])
    assert found.primary == (NAMES[0], NAMES[1])
    for family, names in (("primary", NAMES[:2]), ("exploratory", NAMES[2:])):
        rows = [row for row in found.rows if row.family == family]
        assert sorted(row.metric for row in rows) == sorted(names)
        assert [row.p_holm for row in rows] == pytest.approx(holm([row.p for row in rows]))
    assert [row.family for row in found.rows] == ["primary"] * 2 + ["exploratory"] * 10


def test_without_a_declaration_all_is_one_exploratory_family():
    found = compare(twelve(np.random.default_rng(0), 0.04))
    assert {row.family for row in found.rows} == {"exploratory"}
    assert [row.p_holm for row in found.rows] == pytest.approx(holm([row.p for row in found.rows]))
    assert not [row for row in tables.verdicts(found).rows if isinstance(row, str)]


def test_strata_and_pairs_of_a_primary_outcome_are_of_its_family():
    sides = [
        frame(levels=["a", "b", "c"], seed=at, campaign=f"c{at}").assign(machine=f"m{at}")
        for at in range(3)
    ]
    found = compare(pd.concat(sides), strata=["machine"], all_pairs=True, primary=[STEP])
    for findings, count in ((found.findings, 9), (found.summaries, 3)):
        primary = [one.row for one in findings if one.primary]
        assert [row.metric for row in primary] == [STEP] * count
        assert [row.p_holm for row in primary] == pytest.approx(holm([row.p for row in primary]))


# ---- error rates


# ---- what is refused


@pytest.mark.parametrize(
    ("primary", "message"),
    [
        (
            ["train/step_second"],
            "primary=train/step_second is no outcome here; did you mean train/step_seconds",
        ),
        (["zzz"], "primary=zzz is no outcome here; have "),
        ([STEP, RATE, LATENCY, RSS], "primary names 4 outcomes; at most 3"),
    ],
)
def test_what_is_no_outcome_is_refused_in_one_line(primary, message):
    with pytest.raises(UsageError, match=message) as refused:
        compare(frame(), primary=primary)
    assert "\n" not in str(refused.value)


def test_a_campaign_that_names_what_it_does_not_judge_ends_before_it_begins(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["captioning", "--primary=train/speed"]) == WRONG_CALL
    said = capsys.readouterr().err
    assert "primary=train/speed is no outcome here" in said
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_primary_outcome_that_nobody_measured_is_said_and_costs_nothing():
    found = compare(
        frame(factors={"tensorflow": 1.2}),
        outcomes=[STEP, "energy/joules"],
        primary=["energy/joules"],
    )
    assert wording.headlines(found) == []
    (text,) = wording.sentences(found)
    assert "energy/joules" in text
    both = compare(
        frame(factors={"tensorflow": 1.2}),
        outcomes=[STEP, "energy/joules"],
        primary=[STEP, "energy/joules"],
    )
    assert both.rows[0].p_holm == both.rows[0].p


# ---- what is told


# ---- where they are declared


@pytest.mark.parametrize("name", studies.available())
def test_every_study_declares_one_to_three_of_its_outcomes(name):
    study = studies.load(name)
    settings = settings_.parse(study.settings, study.presets, {})
    assert 1 <= len(studies.primary(study, settings)) <= 3
    asked = settings_.parse(study.settings, study.presets, {"primary": study.outcomes[-1].metric})
    assert studies.primary(study, asked) == (study.outcomes[-1].metric,)
    with pytest.raises(UsageError, match="primary=train/speed is no outcome here"):
        studies.primary(
            study, settings_.parse(study.settings, study.presets, {"primary": "train/speed"})
        )

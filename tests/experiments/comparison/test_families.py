"""Primary outcomes: declared beforehand, tested in a family of their own, and what the head of a report speaks of."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from experiments import studies
from experiments.cli.codes import WRONG_CALL
from experiments.cli.main import main
from experiments.comparison import compare
from experiments.comparison.analyses import Evidence
from experiments.comparison.judgement import write
from experiments.comparison.report import tables, wording
from experiments.comparison.statistics.significance import holm
from experiments.config import settings as settings_
from tests.experiments.comparison.campaigns import BLEU, LATENCY, LOSS, RATE, RSS, STEP, frame
from tracking.errors import WrongCall

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


def shown(campaigns: int, shift: float, primary: list[str], seed: int) -> tuple[float, float]:
    """The share of reports that show the first outcome to differ, and of those that show any exploratory one."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(campaigns):
        findings = compare(twelve(rng, shift), primary=primary, baseline="a").findings
        others = [one.different for one in findings if one.row.metric != NAMES[0]]
        found.append(
            (next(one for one in findings if one.row.metric == NAMES[0]).different, any(others))
        )
    first, other = np.mean(found, axis=0)
    return float(first), float(other)


def test_one_primary_outcome_has_the_power_of_one_declared_alone():
    """3 % at an SD of 3 % and 12 blocks: found in 88 % alone, 51 % among twelve; the same 15 campaigns, so that chance is too."""
    declared, _ = shown(15, 0.03, NAMES[:1], 1)
    undeclared, _ = shown(15, 0.03, [], 1)
    rng = np.random.default_rng(1)
    alone = np.mean(
        [
            compare(twelve(rng, 0.03), outcomes=NAMES[:1], baseline="a").findings[0].different
            for _ in range(15)
        ]
    )
    assert declared == alone
    assert declared >= undeclared + 0.15


@pytest.mark.slow
def test_false_alarms_of_either_family_are_five_percent():
    """400 reports of nothing: a standard error of 1.1 points."""
    rng, alarms = np.random.default_rng(2), []
    for _ in range(400):
        findings = compare(twelve(rng), primary=NAMES[:3]).findings
        alarms.append(
            [
                any(one.different for one in findings if one.primary is family)
                for family in (True, False)
            ]
        )
    assert (np.mean(alarms, axis=0) <= 0.05 + 2.5 * 0.011).all()


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
    with pytest.raises(WrongCall, match=message) as refused:
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
    assert wording.sentences(found) == [
        "No primary outcome (energy/joules) was measured: what was is exploratory, and below."
    ]
    both = compare(
        frame(factors={"tensorflow": 1.2}),
        outcomes=[STEP, "energy/joules"],
        primary=[STEP, "energy/joules"],
    )
    assert both.rows[0].p_holm == both.rows[0].p


# ---- what is told


def test_the_head_speaks_of_primary_outcomes_only(tmp_path):
    found = compare(frame(factors={"tensorflow": 1.2}), baseline="pytorch", primary=[RSS])
    (told,) = wording.sentences(found)
    assert told.lower().startswith("peak process memory")
    write(Evidence(found), tmp_path, "A study")
    page, text = (
        (tmp_path / name).read_text(encoding="utf-8") for name in ("report.html", "report.md")
    )
    assert "trains 1." not in page
    text = text[text.index("## Verdicts") :]
    told = ["| primary |", "| peak process memory |", "| exploratory |", "| training throughput |"]
    assert [text.index(one) for one in told] == sorted(text.index(one) for one in told)
    assert (
        "at most 5 % of reports show a difference where there is none among the primary rows, declared beforehand"
        in text
    )
    published = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))
    assert published["primary"] == [RSS]
    assert [row["family"] for row in published["rows"]] == ["primary"] + ["exploratory"] * 5
    assert published["rows"][0]["metric"] == RSS


# ---- where they are declared


@pytest.mark.parametrize("name", studies.available())
def test_every_study_declares_one_to_three_of_its_outcomes(name):
    study = studies.load(name)
    settings = settings_.parse(study.settings, study.presets, {})
    assert 1 <= len(studies.primary(study, settings)) <= 3
    asked = settings_.parse(study.settings, study.presets, {"primary": study.outcomes[-1].metric})
    assert studies.primary(study, asked) == (study.outcomes[-1].metric,)
    with pytest.raises(WrongCall, match="primary=train/speed is no outcome here"):
        studies.primary(
            study, settings_.parse(study.settings, study.presets, {"primary": "train/speed"})
        )


@pytest.mark.parametrize(
    "asked",
    ["throughput", "latency", "accuracy", "energy", "train/step_secnds", "val/acuracy", "val/bleu"],
)
@pytest.mark.parametrize("which", ["outcomes", "primary"])
def test_only_metrics_that_the_runs_have_are_suggested(which, asked):
    """`train/step_seconds` and `val/accuracy` are known by name, and no run here has them."""
    table = frame().drop(columns=[STEP, RATE, BLEU])
    have = {LATENCY, RSS, LOSS}
    with pytest.raises(WrongCall) as refused:
        compare(table, **{which: [asked]})
    _, _, right = str(refused.value).partition("; ")
    named = (
        {right.removeprefix("did you mean ").removesuffix("?")}
        if right.startswith("did")
        else set(right[5:].split(", "))
    )
    assert named <= have, refused.value
    if (which, asked) == ("outcomes", "latency"):
        assert named == {LATENCY}


def test_a_primary_outcome_that_no_run_has_is_not_suggested_either():
    with pytest.raises(WrongCall) as refused:
        compare(frame().drop(columns=BLEU), outcomes=[STEP, BLEU], primary=["val/bleu3"])
    assert BLEU not in str(refused.value)
    assert compare(frame().drop(columns=BLEU), outcomes=[STEP, BLEU], primary=[BLEU]).primary == (
        BLEU,
    )

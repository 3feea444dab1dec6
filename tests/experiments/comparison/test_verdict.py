"""Gates, verdicts, invariances, and the rate of false alarms."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonSpec, judged
from experiments.comparison.report import writing
from experiments.comparison.runs.pairing import ExclusionCode
from experiments.comparison.statistics import autocorrelation
from experiments.comparison.verdicts.decision import Decision, NoEstimate
from experiments.comparison.verdicts.findings import Comparison, Finding, Row
from experiments.metrics import Outcome
from tests.experiments.comparison.campaigns import (
    BLEU,
    LATENCY,
    LOSS,
    RATE,
    RSS,
    STEP,
    frame,
    paired,
)
from tracking.errors import UsageError

OPPOSITE = {"faster": "slower", "slower": "faster", "lower": "higher", "higher": "lower"}
values = st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=12)


def row(comparison: Comparison, metric: str = STEP) -> Row:
    return next(row for row in comparison.rows if row.metric == metric)


def finding(comparison: Comparison, metric: str = STEP) -> Finding:
    return next(finding for finding in comparison.findings if finding.row.metric == metric)


# ---- verdicts


def test_a_clear_difference_is_told_of_b_against_a_with_its_direction():
    found = compare(frame(factors={"tensorflow": 1.2}), baseline="pytorch")
    assert (row(found, STEP).verdict, row(found, RATE).verdict) == ("slower", "slower")
    assert row(found, STEP).ci_low < 1.2 < row(found, STEP).ci_high
    assert row(found, STEP).estimate * row(found, RATE).estimate == pytest.approx(1)
    assert finding(found, STEP).good is finding(found, RATE).good is False
    turned = compare(frame(factors={"tensorflow": 1.2}), baseline="tensorflow")
    assert (row(turned, STEP).verdict, finding(turned, STEP).good) == ("faster", True)


def test_the_interval_is_that_of_the_mean_log_ratio():
    a, b = np.array([1.0, 2, 3, 4, 5, 6]), np.array([1.1, 2.3, 3.1, 4.6, 5.2, 6.9])
    logs = np.log(b / a)
    low, high = autocorrelation.of_series([logs])[0].interval()
    found = row(compare(paired(a, b)))
    expected = tuple(np.exp([logs.mean(), low, high]))
    assert (found.estimate, found.ci_low, found.ci_high) == pytest.approx(expected)
    t = 2 * 2.570581835636314 * logs.std(ddof=1) / math.sqrt(6)  # t(0.975, 5)
    assert found.widening == pytest.approx((high - low) / t)
    assert (found.n_blocks, found.effect_size, found.margin) == (6, pytest.approx(21 / 36), 0.03)


def test_equivalence_is_shown_not_assumed():
    rng = np.random.default_rng(0)
    a = np.exp(rng.normal(0, 0.005, 10))
    assert row(compare(paired(a, a * np.exp(rng.normal(0, 0.005, 10))))).verdict == "equivalent"
    noisy = row(compare(paired(a, a * np.exp(rng.normal(0, 0.2, 10)))))
    assert (noisy.verdict, noisy.equivalent) == ("inconclusive", False)
    assert (
        "how many more blocks would settle it cannot be predicted; longer cells, an idle machine"
        in noisy.reason
    )


def test_a_small_sure_difference_is_within_the_margin():
    rng = np.random.default_rng(1)
    a = np.exp(rng.normal(0, 0.1, 12))
    found = row(compare(paired(a, a * 1.01 * np.exp(rng.normal(0, 0.001, 12)))))
    assert (found.verdict, found.equivalent) == ("different, within margin", True)


def test_a_sure_difference_of_unsure_size_is_not_called_faster():
    rng = np.random.default_rng(2)
    a = np.exp(rng.normal(0, 0.1, 10))
    found = finding(compare(paired(a, a * 1.04 * np.exp(rng.normal(0, 0.02, 10)))))
    assert found.different
    assert found.row.verdict == "inconclusive"
    assert "slower, but whether by more than the margin is open" in found.row.reason


@pytest.mark.parametrize(
    ("b", "verdict", "reason"),
    [
        (1.0, "deterministic", "the same on both sides in all 7 blocks: nothing to test"),
        (
            1.02,
            "deterministic",
            "always different, by the same in all 7 blocks and by less than the margin: it never varied",
        ),
        (
            1.5,
            "slower",
            "always different, by the same in all 7 blocks and by more than the margin: it never varied",
        ),
        (
            0.5,
            "faster",
            "always different, by the same in all 7 blocks and by more than the margin: it never varied",
        ),
    ],
)
def test_zero_variance_is_not_tested_but_judged_by_its_size(b, verdict, reason):
    a = np.linspace(1, 2, 7)
    found = finding(compare(paired(a, a * b)))
    assert (found.row.verdict, found.row.p, found.row.minimum_detectable) == (verdict, None, 0.0)
    assert (found.row.ci_low, found.row.estimate, found.row.ci_high) == pytest.approx((b, b, b))
    assert found.row.reason.startswith(reason)
    assert (found.identical, found.different, found.judged) == (b == 1, b != 1, True)
    assert found.good is {"slower": False, "faster": True}.get(verdict)


def test_differences_are_judged_against_a_margin_in_their_unit():
    rng = np.random.default_rng(3)
    bleu = 20 + rng.normal(0, 0.1, 8)
    found = row(compare(paired(bleu, bleu + 5 + rng.normal(0, 0.1, 8), BLEU)), BLEU)
    assert (found.kind, found.margin, found.verdict) == ("difference", 1.0, "higher")
    assert found.estimate == pytest.approx(5, abs=0.2)


def test_holm_spans_the_report():
    rng = np.random.default_rng(4)
    table = pd.DataFrame({"framework": ["a"] * 8 + ["b"] * 8, "block": [*range(8), *range(8)]})
    for at in range(12):
        table[f"m{at}/x_seconds"] = np.exp(rng.normal(0, 0.05, 16))
    shift = np.exp(np.where(table["framework"] == "b", 0.06, 0.0) + rng.normal(0, 0.02, 16))
    table["m0/x_seconds"] = shift
    alone, among = (
        row(compare(table, outcomes=["m0/x_seconds"]), "m0/x_seconds"),
        row(compare(table), "m0/x_seconds"),
    )
    assert alone.p == among.p
    assert alone.p_holm == alone.p
    assert among.p_holm == pytest.approx(min(1, 12 * among.p))


# ---- gates


@pytest.mark.parametrize(
    ("blocks", "code"), [(1, "too_few_blocks"), (2, "too_few_blocks"), (5, "")]
)
def test_fewer_than_six_blocks_give_no_verdict(blocks, code):
    found = compare(frame(blocks=blocks, factors={"tensorflow": 2.0}))
    assert {(r.verdict, r.no_estimate) for r in found.rows} == {("inconclusive", code)}
    assert {one.decision for one in found.findings} == {Decision.TOO_FEW}
    assert row(found).p is None
    assert not found.has_verdict


@pytest.mark.parametrize(
    "table",
    [frame(blocks=1), frame(blocks=2), frame(blocks=2, spread=3.0), paired([0.1, 0.1], [0.1, 0.1])],
)
def test_fewer_than_three_blocks_give_the_sides_and_no_number_of_their_difference(table):
    """Of two blocks an interval is as wide as chance makes one difference: from nothing to 1.3e-05–190,000."""
    findings = compare(table).findings
    numbers = ("estimate", "ci_low", "ci_high", "p", "effect_size", "equivalent")
    numbers += ("probability_within_blocks", "minimum_detectable")
    for one in findings:
        assert (one.row.no_estimate, one.decision) == (NoEstimate.TOO_FEW_BLOCKS, Decision.TOO_FEW)
        assert {name for name in numbers if getattr(one.row, name) is not None} == set()
        assert None not in (one.a_value, one.b_value)


def test_why_there_is_no_estimate_is_a_code():
    table = frame().assign(
        **{"other/x_seconds": 0.0, "only/x_seconds": np.where(np.arange(16) % 2, 1.0, np.nan)}
    )
    table.loc[table["framework"] == "pytorch", "only/x_seconds"] = np.nan
    codes = {one.metric: one.no_estimate for one in compare(table).rows}
    assert (codes["other/x_seconds"], codes["only/x_seconds"], codes[STEP]) == (
        "no_ratio",
        "not_measured",
        "",
    )
    table.loc[table["framework"] == "pytorch", "machine"] = "other"
    assert {one.no_estimate for one in compare(table).rows} == {"not_comparable"}


def test_runs_that_did_not_end_well_are_left_out_with_their_reason():
    table = frame(blocks=9)
    table.loc[table["run_id"] == "c1-0-pytorch", ["status", "outcome", "outcome_reason"]] = [
        "FAILED",
        "out_of_memory",
        "2 GiB too few",
    ]
    table.loc[table["run_id"] == "c1-1-pytorch", ["status", "outcome"]] = ["RUNNING", None]
    table.loc[table["run_id"] == "c1-2-pytorch", ["status", "outcome"]] = ["KILLED", None]
    found = compare(table)
    assert row(found).n_blocks == 6
    assert {(e.run_id, e.cause, e.detail) for e in found.excluded} == {
        ("c1-0-pytorch", ExclusionCode.FAILED, "2 GiB too few"),
        ("c1-1-pytorch", ExclusionCode.RUNNING, ""),
        ("c1-2-pytorch", ExclusionCode.FAILED, ""),
        *((f"c1-{block}-tensorflow", ExclusionCode.NO_PARTNER, "") for block in range(3)),
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.7976931348623157e308])
def test_a_value_that_is_no_number_costs_its_block_for_that_metric_alone(bad):
    table = frame()
    table.loc[table["run_id"] == "c1-3-pytorch", STEP] = bad
    found = compare(table)
    assert (row(found, STEP).n_blocks, row(found, RATE).n_blocks) == (7, 8)
    assert [(e.run_id, e.metric) for e in found.excluded] == [("c1-3-pytorch", STEP)]


@pytest.mark.parametrize("column", ["machine", "tags.environment", "tags.commit"])
def test_a_block_on_two_machines_or_environments_is_left_out(column):
    table = frame().assign(**{"machine": "box", "tags.commit": "1234567"})
    table.loc[table["run_id"] == "c1-3-pytorch", column] = "other"
    found = compare(table, strata=())
    if column == "machine":
        assert "several machines are not pooled: machine (box, other)" in row(found).reason
        return
    assert row(found).n_blocks == 7
    assert {e.run_id for e in found.excluded} == {"c1-3-pytorch", "c1-3-tensorflow"}
    assert {e.cause for e in found.excluded} == {ExclusionCode.UNLIKE_PARTNER}


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (
            "5e6f7a8b" + "0" * 32 + "+changes",
            "commits differ inside 8 blocks (pytorch 1a2b3c4, tensorflow 5e6f7a8+changes)",
        ),
        (
            "1a2b3c4d" + "1" * 32,
            f"(pytorch 1a2b3c4d{'0' * 32}, tensorflow 1a2b3c4d{'1' * 32})",
        ),  # seven letters are too few
    ],
)
def test_pairs_of_two_commits_are_not_comparable_and_the_reason_names_both(other, told):
    table = frame()
    table["tags.commit"] = np.where(table["framework"] == "pytorch", "1a2b3c4d" + "0" * 32, other)
    found = row(compare(table))
    assert found.verdict == "not comparable"
    assert found.reason.startswith(
        "no block holds both pytorch and tensorflow under the same conditions: commits differ inside "
    )
    assert told in found.reason


def test_settings_that_differ_apart_from_the_factor_are_not_pooled():
    table = pd.concat([frame(seed=1), frame(seed=2, campaign="c2", params={"batch_size": "64"})])
    found = compare(table)
    assert {r.verdict for r in found.rows} == {"not comparable"}
    assert "batch_size (32, 64); select one, or name it in strata" in row(found).reason
    apart = compare(table, strata=["batch_size"])
    assert {r.stratum for r in apart.rows} == {"batch_size=32", "batch_size=64"}
    assert {r.n_blocks for r in apart.rows} == {8}


def test_campaigns_are_strata_and_never_pooled():
    """What a campaign does to one side, all its blocks share: ratios 1.0 and 1.5 are not 1.23 with an interval of blocks."""
    first, second = frame(seed=1), frame(seed=2, campaign="c2", factors={"tensorflow": 1.5})
    found = compare(pd.concat([first, second]), outcomes=[STEP])
    assert [(r.stratum, r.n_blocks, r.verdict) for r in found.rows] == [
        ("campaign=c1", 8, "equivalent"),
        ("campaign=c2", 8, "slower"),
    ]
    (whole,) = found.summaries
    assert (whole.row.verdict, whole.across.names) == (
        "inconclusive",
        ("campaign=c1", "campaign=c2"),
    )
    assert (whole.row.estimate, whole.row.ci_low, whole.row.no_estimate) == (
        None,
        None,
        "too_few_strata",
    )
    assert (whole.across.tau, whole.across.i_squared_percent, whole.across.q_p) == (
        None,
        None,
        None,
    )


def test_the_later_run_of_a_cell_counts():
    table = pd.concat([frame(), frame(blocks=1, seed=9)])
    table["run_id"] = [f"r{at}" for at in range(len(table))]
    table["start_ms"] = range(len(table))
    found = compare(table)
    assert row(found).n_blocks == 8
    assert len(found.excluded) == 2
    assert {e.cause for e in found.excluded} == {ExclusionCode.REPEATED}
    assert (
        finding(found).pairs[0].a
        == table[table["run_id"].isin(["r16", "r17"]) & (table["framework"] == "pytorch")][
            STEP
        ].item()
    )


def test_text_instead_of_numbers_is_told():
    table = frame().astype({LATENCY: object})
    table.loc[table["run_id"] == "c1-3-pytorch", LATENCY] = "fast"
    found = compare(table)
    assert row(found, LATENCY).n_blocks == 7
    assert [e.reason for e in found.excluded] == [
        "text instead of a number ('fast'); its block is left out of this metric"
    ]
    table.loc[table["framework"] == "pytorch", LATENCY] = "fast"
    assert row(compare(table), LATENCY).reason == "text instead of a number ('fast') on pytorch"
    table.loc[table["framework"] == "tensorflow", LATENCY] = None
    told = row(compare(table), LATENCY).reason
    assert told == "not measured on tensorflow; text instead of a number ('fast') on pytorch"


def test_unpaired_runs_are_told():
    table = frame()
    table["campaign"] = table["framework"]
    assert "no block holds both pytorch and tensorflow" in row(compare(table)).reason
    table["block"] = np.nan
    found = judged(ComparisonSpec(), table)
    assert {e.cause for e in found.excluded} == {ExclusionCode.NO_BLOCK}


def test_zero_has_no_ratio():
    a = np.linspace(0, 1, 8)
    assert "no ratio" in row(compare(paired(a, a + 1, "x/unknown")), "x/unknown").reason
    known = Outcome("x/unknown", "difference", "lower", 0.5, "x", "")
    assert (
        row(
            compare(paired(a, a + 1 + 0.01 * a**2, "x/unknown"), outcomes=[known]), "x/unknown"
        ).verdict
        == "higher"
    )


@pytest.mark.parametrize(
    ("change", "call", "message"),
    [
        (lambda t: t.head(0), {}, "no runs to compare"),
        (
            lambda t: t[t["framework"] == "pytorch"],
            {},
            "only one side: all runs have framework=pytorch",
        ),
        (lambda t: t.assign(kind="campaign"), {}, "none of those selected is a cell run"),
        (
            lambda t: t,
            {"factor": "optimizer"},
            "no column 'optimizer' in the runs; have .*params.batch_size",
        ),
        (lambda t: t, {"strata": ["x"]}, "no column 'x'"),
        (
            lambda t: t,
            {"baseline": "torch"},
            "no run has framework=torch, the baseline; have pytorch, tensorflow",
        ),
        (lambda t: t, {"margin": 3.0}, "margin=3.0 is not between 0 and 1"),
    ],
)
def test_bad_calls_are_refused_in_one_line(change, call, message):
    with pytest.raises(UsageError, match=message) as refused:
        compare(change(frame()), **call)
    assert "\n" not in str(refused.value)


# ---- other factors, several levels


def test_any_setting_can_be_the_factor():
    sides = [
        frame(levels=["pytorch"], seed=s, spread=0.01, params={"batch_size": size})
        for s, size in ((1, "8"), (2, "32"))
    ]
    table = pd.concat(sides).assign(
        run_id=[f"r{at}" for at in range(16)], settings_hash=["h8"] * 8 + ["h32"] * 8
    )
    for name in ("batch_size", "params.batch_size"):
        found = compare(table, factor=name)
        assert (found.baseline, found.levels) == ("8", ("8", "32"))
        assert row(found).n_blocks == 8


def test_every_level_is_judged_against_the_baseline_or_every_pair():
    table = frame(levels=["a", "b", "c"], factors={"b": 1.3, "c": 1.6})
    assert [(r.a, r.b) for r in compare(table, outcomes=[STEP]).rows] == [("a", "b"), ("a", "c")]
    assert [(r.a, r.b) for r in compare(table, outcomes=[STEP], all_pairs=True).rows] == [
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
    ]


def test_outcomes_come_in_the_reports_order_and_what_nobody_measured_is_named():
    found = compare(frame(), outcomes=[RSS, "energy/joules", STEP])
    assert [r.metric for r in found.rows] == [STEP, RSS]
    assert found.unmeasured == ("energy/joules",)


# ---- invariances


def _numbers(found: Row) -> dict[str, object]:
    return {k: v for k, v in dataclasses.asdict(found).items() if k not in ("a", "b")}


@settings(max_examples=15, deadline=None)
@given(values)
def test_swapping_sides_inverts_ratios_and_reverses_verdicts(pairs):
    a, b = np.array(pairs).T
    forth, back = row(compare(paired(a, b), baseline="a")), row(compare(paired(a, b), baseline="b"))
    if len(pairs) < 3:
        assert (forth.no_estimate, back.no_estimate) == ("too_few_blocks", "too_few_blocks")
        return
    assert forth.estimate * back.estimate == pytest.approx(1)
    assert back.verdict == OPPOSITE.get(forth.verdict, forth.verdict)
    assert forth.effect_size + back.effect_size == pytest.approx(1)
    assert forth.probability_within_blocks + back.probability_within_blocks == pytest.approx(1)
    assert (forth.p is None, forth.equivalent) == (back.p is None, back.equivalent)
    if forth.ci_low and back.ci_high:
        assert forth.ci_low * back.ci_high == pytest.approx(1, rel=1e-6)
    if forth.p is not None:
        assert (forth.p, forth.minimum_detectable) == pytest.approx(
            (back.p, back.minimum_detectable), rel=1e-6
        )


def test_nothing_is_nan_or_p_zero():
    table = frame(levels=["a", "b", "c"], blocks=40, factors={"b": 5.0})
    for found in compare(table, all_pairs=True).rows:
        for value in dataclasses.asdict(found).values():
            assert not (isinstance(value, float) and not math.isfinite(value))
        assert found.p is None or 0 < found.p <= found.p_holm <= 1


# ---- error rates, through the same code as real campaigns


# ---- for notebooks


def test_rows_become_a_frame_with_the_keys_of_the_published_json():
    found = compare(frame(factors={"tensorflow": 1.2}), baseline="pytorch", outcomes=[STEP, LOSS])
    table, published = found.to_frame(), writing.as_json(found)["rows"]
    assert list(table.columns) == list(published[0])
    assert len(table) == len(published) == 2
    for name in ("metric", "verdict", "reason"):
        assert table[name].tolist() == [one[name] for one in published]
    assert table["estimate"].tolist() == [one["estimate"] for one in published]
    assert np.isnan(
        table.loc[table["metric"] == LOSS, "p"].item()
    )  # nothing to test: missing, not zero

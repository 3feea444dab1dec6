"""Gates, verdicts, families and invariances of a comparison."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import studies
from experiments.cli.codes import WRONG_CALL
from experiments.cli.main import main
from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonSpec, judged
from experiments.comparison.report import writing
from experiments.comparison.runs.pairing import Mismatch
from experiments.comparison.statistics import autocorrelation
from experiments.comparison.statistics.significance import holm
from experiments.comparison.verdicts.decision import Decision, NoEstimate
from experiments.comparison.verdicts.findings import Comparison, Row
from experiments.config import settings as settings_
from experiments.metrics import Outcome
from tests.benchmarks.test_verdict_rule import NAMES, table
from tests.experiments.comparison.campaigns import (
    BLEU,
    LATENCY,
    LOSS,
    RATE,
    RSS,
    STEP,
    finding,
    frame,
    paired,
)
from tests.experiments.small_campaigns import required
from tracking.errors import ErrorCode, UsageError

OPPOSITE = {"faster": "slower", "slower": "faster", "lower": "higher", "higher": "lower"}
values = st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=12)


def row(comparison: Comparison, metric: str = STEP) -> Row:
    return finding(comparison, metric).row


# ---- verdicts


def test_clear_difference_has_a_direction():
    table = frame(factors={"tensorflow": 1.2})
    comparison = compare(table, baseline="pytorch")
    step, rate = finding(comparison, STEP), finding(comparison, RATE)
    assert (step.row.verdict, rate.row.verdict) == ("slower", "slower")
    assert step.row.ci_low < 1.2 < step.row.ci_high
    assert step.row.estimate * rate.row.estimate == pytest.approx(1)
    assert step.good is rate.good is False
    turned = finding(compare(table, baseline="tensorflow"))
    assert (turned.row.verdict, turned.good) == ("faster", True)


def test_interval_is_that_of_the_mean_log_ratio():
    a, b = np.array([1.0, 2, 3, 4, 5, 6]), np.array([1.1, 2.3, 3.1, 4.6, 5.2, 6.9])
    logs = np.log(b / a)
    low, high = autocorrelation.distributions_of([logs])[0].interval()
    step = row(compare(paired(a, b)))
    expected = tuple(np.exp([logs.mean(), low, high]))
    assert (step.estimate, step.ci_low, step.ci_high) == pytest.approx(expected)
    t = 2 * 2.570581835636314 * logs.std(ddof=1) / math.sqrt(6)  # t(0.975, 5)
    assert step.widening == pytest.approx((high - low) / t)
    assert (step.n_blocks, step.effect_size, step.margin) == (6, pytest.approx(21 / 36), 0.03)


@pytest.mark.parametrize(
    ("sd", "factor", "noise", "decision", "verdict"),
    [
        (0.005, 1.0, 0.005, Decision.EQUIVALENT, "equivalent"),
        (0.005, 1.0, 0.2, Decision.OPEN, "inconclusive"),
        (0.1, 1.01, 0.001, Decision.WITHIN_MARGIN, "different, within margin"),
        (0.1, 1.04, 0.02, Decision.SIZE_OPEN, "slower, size open"),
    ],
)
def test_small_and_noisy_differences(sd, factor, noise, decision, verdict):
    rng = np.random.default_rng(2)
    a = np.exp(rng.normal(0, sd, 10))
    step = finding(compare(paired(a, a * factor * np.exp(rng.normal(0, noise, 10)))))
    assert (step.decision, step.row.decision, step.row.verdict) == (decision, decision, verdict)
    assert step.row.equivalent is (decision in (Decision.EQUIVALENT, Decision.WITHIN_MARGIN))
    assert step.different is (decision in (Decision.SIZE_OPEN, Decision.WITHIN_MARGIN))


@pytest.mark.parametrize(("slow", "p"), [(6, 0.0256), (2, 0.494)])
def test_slow_runs_are_counted(slow: int, p: float) -> None:
    """Take 43 runs; p of a one-sided table of Fisher's exact test, doubled."""
    rng = np.random.default_rng(4)
    a, b = np.exp(rng.normal(0, 0.01, (2, 43)))
    b[rng.choice(43, slow, replace=False)] *= 1.5
    step = finding(compare(paired(a, 1.1 * b)))
    assert (step.row.verdict, step.row.slow_runs_a, step.row.slow_runs_b) == ("slower", 0, slow)
    assert step.row.slow_runs_p == pytest.approx(p, abs=5e-4)
    assert step.row.estimate == pytest.approx(1.1, abs=0.03)
    rate = finding(compare(paired(1 / a, 1 / b, RATE)), RATE)
    assert (rate.row.slow_runs_a, rate.row.slow_runs_b) == (0, slow)
    memory = finding(compare(paired(a, b, RSS)), RSS)
    assert memory.row.slow_runs_p is None


def test_steps_of_other_batch_sizes_are_not_compared() -> None:
    """A step of 8 images that takes a third of the time of one of 64 is not faster."""
    table = frame(factors={"tensorflow": 0.3}).assign(
        **{"params.batch_size": lambda runs: runs["framework"].map({"pytorch": 64}).fillna(8)}
    )
    table[RATE] = table["params.batch_size"] / table[STEP]
    comparison = compare(table, baseline="pytorch", ignore=["batch_size"])
    assert finding(comparison, STEP).mismatch is Mismatch.BATCH_SIZES
    assert row(comparison, RATE).verdict == "slower"
    assert row(comparison, LATENCY).estimate is not None


def test_metrics_of_conditions_are_primary() -> None:
    table = frame(factors={"tensorflow": 1.2}, blocks=12)

    def primary(*fail_if: str, declared: tuple[str, ...] = ()) -> tuple[str, ...]:
        spec = ComparisonSpec(primary=declared, fail_if=fail_if)
        comparison = judged(spec, table)
        assert {row.metric for row in comparison.rows if row.family == "primary"} == {
            *comparison.primary
        }
        return comparison.primary

    assert primary("slower:step") == (STEP,)
    assert primary("slower:step", declared=(RATE, LATENCY, LOSS)) == (RATE, LATENCY, LOSS, STEP)
    assert primary("worse", "slower:step") == ()
    assert primary("worse") == ()


@pytest.mark.parametrize(
    ("b", "verdict", "decision", "good"),
    [
        (1.0, "deterministic", Decision.IDENTICAL, None),
        (1.02, "deterministic", Decision.CONSTANT, None),
        (1.5, "slower", Decision.DIFFERENT, False),
        (0.5, "faster", Decision.DIFFERENT, True),
    ],
)
def test_constant_ratio_is_judged_by_its_size(b, verdict, decision, good):
    a = np.linspace(1, 2, 7)
    step = finding(compare(paired(a, a * b)))
    assert (step.row.verdict, step.decision, step.good) == (verdict, decision, good)
    assert (step.row.p, step.row.minimum_detectable) == (None, 0.0)
    assert (step.row.ci_low, step.row.estimate, step.row.ci_high) == pytest.approx((b, b, b))
    assert (step.identical, step.different, step.judged) == (b == 1, b != 1, True)


def test_differences_have_a_margin_in_their_unit():
    rng = np.random.default_rng(3)
    bleu = 20 + rng.normal(0, 0.1, 8)
    score = row(compare(paired(bleu, bleu + 5 + rng.normal(0, 0.1, 8), BLEU)), BLEU)
    assert (score.kind, score.margin, score.verdict) == ("difference", 1.0, "higher")
    assert score.estimate == pytest.approx(5, abs=0.2)


# ---- gates


@pytest.mark.parametrize(
    ("table", "code"),
    [
        (frame(blocks=1), NoEstimate.TOO_FEW_BLOCKS),
        (frame(blocks=2, spread=3.0), NoEstimate.TOO_FEW_BLOCKS),
        (paired([0.1, 0.1], [0.1, 0.1]), NoEstimate.TOO_FEW_BLOCKS),
        (frame(blocks=5, factors={"tensorflow": 2.0}), ""),
    ],
)
def test_few_blocks_have_no_verdict(table, code):
    """Fewer than three have no number of the difference; fewer than six have no test."""
    comparison = compare(table)
    assert not comparison.has_verdict
    numbers = ("estimate", "ci_low", "effect_size", "minimum_detectable")
    for result in comparison.findings:
        assert (result.row.no_estimate, result.decision) == (code, Decision.TOO_FEW)
        assert (result.row.verdict, result.row.p) == ("inconclusive", None)
        assert {getattr(result.row, name) is None for name in numbers} == {bool(code)}
        assert None not in (result.a_value, result.b_value)


def test_missing_estimates_have_a_code():
    table = frame().assign(
        **{"other/x_seconds": 0.0, "only/x_seconds": np.where(np.arange(16) % 2, 1.0, np.nan)}
    )
    is_a = table["framework"] == "pytorch"
    table.loc[is_a, "only/x_seconds"] = np.nan
    table = table.astype({LATENCY: object})
    table.loc[is_a, LATENCY] = "fast"
    comparison = compare(table)
    codes = {row.metric: row.no_estimate for row in comparison.rows}
    assert codes[LATENCY] == NoEstimate.NOT_MEASURED
    assert "'fast'" in row(comparison, LATENCY).reason
    assert codes["other/x_seconds"] == NoEstimate.NO_RATIO
    assert codes["only/x_seconds"] == NoEstimate.NOT_MEASURED
    finding = next(each for each in comparison.findings if each.row.metric == "only/x_seconds")
    assert (finding.a_value, finding.b_value) == (None, 1)
    assert codes[STEP] == ""


def test_runs_without_success_are_excluded():
    table = frame(blocks=9)
    table.loc[table["run_id"] == "c1-3-pytorch", "block"] = np.nan
    columns = ["status", "outcome", "outcome_reason"]
    table.loc[table["run_id"] == "c1-0-pytorch", columns] = ["FAILED", "out_of_memory", "2 GiB"]
    table.loc[table["run_id"] == "c1-1-pytorch", ["status", "outcome"]] = ["RUNNING", None]
    table.loc[table["run_id"] == "c1-2-pytorch", ["status", "outcome"]] = ["KILLED", None]
    comparison = compare(table)
    assert row(comparison).n_blocks == 5
    reasons = {run.run_id: run.reason.partition(": nothing")[0] for run in comparison.excluded}
    assert reasons == {
        "c1-0-pytorch": "out of memory: 2 GiB",
        "c1-1-pytorch": "still running",
        "c1-2-pytorch": "killed",
        "c1-3-pytorch": "has no block",
        **{f"c1-{at}-tensorflow": f"block {at} has no usable run of pytorch" for at in range(4)},
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.7976931348623157e308, "fast"])
def test_invalid_value_costs_its_block_for_its_metric(bad):
    table = frame().astype({STEP: object})
    table.loc[table["run_id"] == "c1-3-pytorch", STEP] = bad
    comparison = compare(table)
    assert (row(comparison, STEP).n_blocks, row(comparison, RATE).n_blocks) == (7, 8)
    (value,) = comparison.excluded
    assert (value.run_id, value.metric) == ("c1-3-pytorch", STEP)
    assert ("'fast'" in value.reason) is (bad == "fast")


@pytest.mark.parametrize("column", ["tags.environment", "tags.commit", "tags.turns"])
def test_block_of_two_environments_is_excluded(column):
    """In a block that was resumed one cell may be of the first turns and one of the second."""
    table = frame().assign(**{"tags.commit": "1234567", "tags.turns": "first"})
    table.loc[table["run_id"] == "c1-3-pytorch", column] = "other"
    comparison = compare(table)
    assert row(comparison).n_blocks == 7
    assert {run.run_id for run in comparison.excluded} == {"c1-3-pytorch", "c1-3-tensorflow"}
    assert all("differ inside the block" in run.reason for run in comparison.excluded)


@pytest.mark.parametrize(
    ("other", "values"),
    [
        ("5e6f7a8b" + "0" * 32 + "+changes", "(pytorch 1a2b3c4, tensorflow 5e6f7a8+changes)"),
        # seven letters are too few
        ("1a2b3c4d" + "1" * 32, f"(pytorch 1a2b3c4d{'0' * 32}, tensorflow 1a2b3c4d{'1' * 32})"),
    ],
)
def test_pairs_of_two_commits_are_not_comparable(other, values):
    table = frame()
    table["tags.commit"] = np.where(table["framework"] == "pytorch", "1a2b3c4d" + "0" * 32, other)
    step = finding(compare(table))
    assert (step.row.verdict, step.mismatch) == ("not comparable", Mismatch.NO_PAIR)
    assert values in step.row.reason


@pytest.mark.parametrize(
    ("change", "code", "values"),
    [
        (
            lambda table: table.assign(
                machine=table["machine"].mask(table["run_id"] == "c1-3-pytorch", "other")
            ),
            Mismatch.MACHINES,
            "machine (box, other)",
        ),
        (lambda table: table.assign(campaign=table["framework"]), Mismatch.NO_PAIR, "pytorch"),
        (
            lambda table: pd.concat(
                [table, frame(seed=2, campaign="c2", params={"batch_size": "64"})]
            ),
            Mismatch.SETTINGS,
            "batch_size (32, 64)",
        ),
        (
            lambda table: pd.concat(
                [table, table.assign(run_id=table["run_id"] + "x", x=1)]
            ).assign(**{"params.x": lambda both: both["x"].notna()}),
            Mismatch.SETTINGS,
            "x (False, True)",
        ),
    ],
)
def test_runs_that_must_not_be_pooled_are_not_comparable(change, code, values):
    comparison = compare(change(frame()))
    for result in comparison.findings:
        assert (result.mismatch, result.row.no_estimate) == (code, NoEstimate.NOT_COMPARABLE)
        assert values in result.row.reason


def test_later_run_of_a_cell_replaces_the_earlier():
    table = pd.concat([frame(), frame(blocks=1, seed=9)])
    table["run_id"] = [f"r{at}" for at in range(len(table))]
    table["start_ms"] = range(len(table))
    comparison = compare(table)
    assert row(comparison).n_blocks == 8
    later = "a later run of the same cell is used instead"
    assert [run.reason for run in comparison.excluded] == [later] * 2
    later = table[table["run_id"].isin(["r16", "r17"]) & (table["framework"] == "pytorch")]
    assert finding(comparison).pairs[0].a == later[STEP].item()


def test_zero_has_a_difference():
    a = np.linspace(0, 1, 8)
    outcome = Outcome("x/unknown", "difference", "lower", 0.5, "x", "")
    table = paired(a, a + 1 + 0.01 * a**2, outcome.metric)
    assert row(compare(table), outcome.metric).no_estimate == NoEstimate.NO_RATIO
    assert row(compare(table, outcomes=[outcome]), outcome.metric).verdict == "higher"


@pytest.mark.parametrize(
    ("change", "call", "code", "value"),
    [
        (lambda table: table.head(0), {}, ErrorCode.NO_RUNS, ""),
        (lambda table: table[table["framework"] == "pytorch"], {}, ErrorCode.ONE_SIDE, "pytorch"),
        (lambda table: table.assign(kind="campaign"), {}, ErrorCode.NO_RUNS, "kind=cell"),
        (None, {"factor": "optimizer"}, ErrorCode.UNKNOWN_NAME, "batch_size"),
        (None, {"strata": ["x"]}, ErrorCode.UNKNOWN_NAME, "'x'"),
        (None, {"baseline": "torch"}, ErrorCode.UNKNOWN_NAME, "pytorch, tensorflow"),
        (None, {"margin": 3.0}, ErrorCode.INVALID_VALUE, "margin=3.0"),
        (None, {"primary": ["train/step_second"]}, ErrorCode.UNKNOWN_NAME, f"did you mean {STEP}?"),
        (None, {"primary": ["zzz"]}, ErrorCode.UNKNOWN_NAME, "primary=zzz"),
        (None, {"primary": [STEP, RATE, LATENCY, RSS]}, ErrorCode.TOO_LARGE, "4"),
        (None, {"outcomes": ["train/step_second"]}, ErrorCode.UNKNOWN_NAME, f"did you mean {STEP}"),
        (None, {"outcomes": ["energy/joules"]}, ErrorCode.NOT_FOUND, "energy/joules"),
        (lambda _: pd.DataFrame(), {}, ErrorCode.NO_RUNS, ""),
        (lambda _: [], {}, ErrorCode.NO_RUNS, ""),
        (lambda _: 7, {}, ErrorCode.INVALID_VALUE, "mlflow.search_runs()"),
        (lambda _: [7], {}, ErrorCode.INVALID_VALUE, "7"),
        (lambda table: table.drop(columns="block"), {}, ErrorCode.MISSING_VALUE, "block"),
        (lambda table: table.assign(status="RUNNING"), {}, ErrorCode.NOT_FOUND, "16"),
        (
            lambda table: table[["run_id", "framework", "block"]],
            {},
            ErrorCode.NOT_FOUND,
            "numbers",
        ),
    ],
)
def test_bad_calls_are_refused_in_one_line(change, call, code, value):
    with pytest.raises(UsageError) as error:
        compare(change(frame()) if change else frame(), **call)
    assert error.value.code is code
    assert value in str(error.value)
    assert "\n" not in str(error.value)


# ---- factors and levels


def test_settings_can_be_the_factor():
    sides = [
        frame(levels=["pytorch"], seed=seed, spread=0.01, params={"batch_size": size})
        for seed, size in ((1, "8"), (2, "32"))
    ]
    run_ids, hashes = [f"r{at}" for at in range(16)], ["h8"] * 8 + ["h32"] * 8
    table = pd.concat(sides).assign(run_id=run_ids, settings_hash=hashes)
    for name in ("batch_size", "params.batch_size"):
        comparison = compare(table, factor=name)
        assert (comparison.baseline, comparison.levels) == ("8", ("8", "32"))
        assert row(comparison, RATE).n_blocks == 8


# ---- invariances


@settings(max_examples=15, deadline=None)
@given(values)
def test_swapping_sides_inverts_ratios_and_reverses_verdicts(pairs):
    a, b = np.array(pairs).T
    forth, back = (row(compare(paired(a, b), baseline=side)) for side in "ab")
    if len(pairs) < 3:
        assert forth.no_estimate == back.no_estimate == NoEstimate.TOO_FEW_BLOCKS
        return
    assert forth.estimate * back.estimate == pytest.approx(1)
    assert back.verdict == OPPOSITE.get(forth.verdict, forth.verdict)
    assert forth.effect_size + back.effect_size == pytest.approx(1)
    assert forth.probability_within_blocks + back.probability_within_blocks == pytest.approx(1)
    assert (forth.p is None, forth.equivalent) == (back.p is None, back.equivalent)
    if forth.ci_low and back.ci_high:
        assert forth.ci_low * back.ci_high == pytest.approx(1, rel=1e-6)
    if forth.p is not None:
        expected = (back.p, back.minimum_detectable)
        assert (forth.p, forth.minimum_detectable) == pytest.approx(expected, rel=1e-6)


def test_no_number_is_nan_and_no_p_is_zero():
    table = frame(levels=["a", "b", "c"], blocks=40, factors={"b": 5.0})
    for result in compare(table, all_pairs=True).rows:
        for value in dataclasses.asdict(result).values():
            assert not (isinstance(value, float) and not math.isfinite(value))
        assert result.p is None or 0 < result.p <= result.p_holm <= 1


def test_frame_has_the_keys_of_the_published_json():
    table = frame(factors={"tensorflow": 1.2})
    comparison = compare(table, baseline="pytorch", outcomes=[STEP, LOSS])
    rows, published = comparison.to_frame(), writing.as_json(comparison)["rows"]
    assert list(rows.columns) == list(published[0])
    assert rows["estimate"].tolist() == [row["estimate"] for row in published]
    # nothing to test: missing, not zero
    assert np.isnan(rows.loc[rows["metric"] == LOSS, "p"].item())


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

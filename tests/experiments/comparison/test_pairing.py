"""Runs that may be compared: their table, what may differ, their order in time, and turns."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.report import wording
from experiments.comparison.runs import order, sets
from experiments.comparison.runs.environment import block_seconds
from experiments.comparison.runs.pairing import Mismatch
from experiments.comparison.runs.query import table
from experiments.comparison.runs.warning import WarningCode
from experiments.comparison.verdicts.decision import Withheld
from experiments.comparison.verdicts.findings import Comparison
from experiments.metrics import KNOWN, outcome
from tests.experiments.comparison.campaigns import LATENCY, ORIGIN_MS, RATE, RSS, STEP, frame, runs
from tracking.records import StoredRun


def stored(kind: str, **metrics: float) -> StoredRun:
    tags = {"kind": kind, "framework": "jax"}
    return StoredRun("x", kind, "FINISHED", 1, None, {}, metrics, tags)


def test_missing_values_are_not_zero():
    every = table([*runs(blocks=1), stored("campaign")])
    missing = every[every["run_id"] == "x"][[STEP, "block", "end_ms", "params.batch_size"]]
    assert missing.isna().all().all()


def test_only_cells_are_compared():
    extraction = stored("extraction", **{STEP: 5.0})
    assert compare(table([*runs(), extraction])).levels == ("pytorch", "tensorflow")


def newest_last(**batch_sizes: str) -> pd.DataFrame:
    """Return newest_last one after the other, each with its batch size."""
    tables = []
    for at, (name, size) in enumerate(batch_sizes.items()):
        table = frame(blocks=2, campaign=name, params={"batch_size": size})
        tables.append(table.assign(start_ms=table["start_ms"] + at * 10**9))
    return pd.concat(tables, ignore_index=True)


def test_newest_kind_has_all_campaigns_of_its_settings() -> None:
    selection = newest_last(a="32", b="64", c="16", d="64")
    chosen, kinds = sets.choose_newest(selection, factor="framework")
    assert [(kind.campaigns, kind.differs) for kind in kinds] == [
        (("d", "b"), "batch_size=64"),
        (("c",), "batch_size=16"),
        (("a",), "batch_size=32"),
    ]
    assert sorted(chosen["campaign"].unique()) == ["b", "d"]


def test_comparable_runs_stay_together() -> None:
    alike, different = newest_last(a="32", b="32"), newest_last(a="32", b="64")
    without_campaign = newest_last(a="32", b="64", c="16")
    without_campaign.loc[without_campaign["campaign"] == "c", "campaign"] = None
    for selection, options in (
        (alike, {}),
        (different, {"strata": ["batch_size"]}),
        (different, {"allowed_to_differ": ["batch_size"]}),
        (different, {"factor": "campaign"}),
        (newest_last(a="32"), {}),
        (alike.drop(columns="campaign"), {}),
        (without_campaign, {}),
    ):
        chosen, kinds = sets.choose_newest(selection, **{"factor": "framework", **options})  # type: ignore[arg-type]
        assert kinds == []
        assert chosen is selection


def test_campaign_of_one_side_is_no_kind() -> None:
    table = newest_last(a="32", b="64", c="16")
    table = table[(table["campaign"] != "c") | (table["framework"] == "pytorch")]
    _, kinds = sets.choose_newest(table, factor="framework")
    assert kinds[0].campaigns == ("b",)


def two_campaigns(name: str, before: str = "1", after: str = "2") -> pd.DataFrame:
    """Return eight blocks in each of two campaigns with these values of a param."""
    first = frame(seed=1, params={name: before})
    second = frame(seed=2, campaign="c2", params={name: after})
    return pd.concat([first, second], ignore_index=True)


@pytest.mark.parametrize("name", ["team", "margin", "preset", "blocks", "frameworks"])
def test_settings_of_a_campaign_may_differ(name: str) -> None:
    comparison = compare(two_campaigns(name), outcomes=[STEP])
    rows = [(row.stratum, row.n_blocks) for row in comparison.rows]
    assert rows == [("campaign=c1", 8), ("campaign=c2", 8)]
    assert len(comparison.summaries[0].across.names) == 2


@pytest.mark.parametrize(
    ("before", "after", "matters"),
    [("16,32", "32,64", False), ("32", "16,32", False), ("16,32", "16,64", True), ("3", "5", True)],
)
def test_lists_with_the_value_of_the_run_may_differ(before: str, after: str, matters: bool) -> None:
    findings = compare(two_campaigns("batch_sizes", before, after)).findings
    assert {finding.mismatch for finding in findings} == {Mismatch.SETTINGS if matters else None}


@pytest.mark.parametrize("name", ["learning_rate", "inject_delay", "phases", "remark"])
def test_settings_of_a_cell_differ_only_where_the_study_allows(name: str) -> None:
    table = two_campaigns(name)
    assert {finding.mismatch for finding in compare(table).findings} == {Mismatch.SETTINGS}
    assert {row.n_blocks for row in compare(table, allowed_to_differ=(name,)).rows} == {8}


def test_headline_of_a_subject_ranks_first() -> None:
    def headlines(*outcomes: object) -> list[str]:
        comparison = compare(frame(), outcomes=outcomes)  # type: ignore[arg-type]
        return [finding.row.metric for finding in wording.headlines(comparison)]

    assert headlines(STEP, RSS, RATE, LATENCY) == [RATE, LATENCY, RSS]
    assert headlines(STEP, RSS) == [STEP, RSS]
    assert headlines(replace(outcome(STEP), headline=("training", 0)), RATE) == [STEP]
    assert headlines(replace(outcome(STEP), headline=("a step", 1)), RATE) == [RATE, STEP]


def test_ranks_of_headlines_are_unique() -> None:
    ranks = [metric.headline for metric in KNOWN if metric.headline]
    assert len(ranks) == len(set(ranks))
    assert outcome("inference/batch_8/latency_seconds_p50").headline is None


MINUTE, DAY = 60_000, 24 * 3_600_000
SAME = {"version.numpy": "2.4", "version.keras": "3", "cpu": "2 × x", "commit": "abc"}


def two_kinds(first: dict[str, str], second: dict[str, str]) -> pd.DataFrame:
    """Return a campaign of each kind, a day apart, of which the second is 20 % slower."""
    tables = []
    for at, tags in enumerate((first, second)):
        slower = {"pytorch": 1 + 0.2 * at}
        tags = {**SAME, "environment": f"e{at}", **tags}
        side = frame(["pytorch"], seed=at, campaign=f"c{at}", factors=slower, tags=tags)
        times = {name: side[name] + at * DAY for name in ("start_ms", "end_ms")}
        tables.append(side.assign(**times))
    return pd.concat(tables, ignore_index=True)


def judge_by(table: pd.DataFrame, factor: str, **options: object) -> Comparison:
    return compare(table, factor=factor, outcomes=[STEP], **options)  # type: ignore[arg-type]


BY_FACTOR = {
    "version.torch": (
        {"version.torch": "2.8", "version.torchvision": "0.23"},
        {"version.torch": "2.9", "version.torchvision": "0.24"},
    ),
    "machine": ({"machine": "box"}, {"machine": "other", "cpu": "4 × y"}),
    "cpu": ({"machine": "box"}, {"machine": "other", "cpu": "4 × y"}),
    "environment": ({"version.torch": "2.8"}, {"version.torch": "2.9", "version.numpy": "2.5"}),
    "commit": ({"environment": "e"}, {"environment": "e", "commit": "def"}),
}


@pytest.mark.parametrize("factor", BY_FACTOR)
def test_differences_that_belong_to_the_factor_are_expected(factor):
    comparison = judge_by(two_kinds(*BY_FACTOR[factor]), factor)
    assert [(row.n_blocks, row.verdict) for row in comparison.rows] == [(8, "slower")]
    codes = {warning.code for warning in comparison.warnings}
    assert WarningCode.SEPARATE_CAMPAIGNS in codes


@pytest.mark.parametrize(
    ("factor", "besides", "code", "values"),
    [
        ("version.torch", {"version.numpy": "2.5"}, Mismatch.VERSIONS, "version.numpy (2.4, 2.5)"),
        ("version.torch", {"machine": "other"}, Mismatch.MACHINES, "machine (box, other)"),
        ("version.torch", {"cpu": "4 × y"}, Mismatch.VERSIONS, "cpu (2 × x, 4 × y)"),
        ("machine", {"version.torch": "2.9"}, Mismatch.VERSIONS, "version.torch (2.8, 2.9)"),
        ("cpu", {"gpu": "H"}, Mismatch.VERSIONS, "gpu (none, H)"),
        ("environment", {"machine": "other"}, Mismatch.MACHINES, "machine (box, other)"),
    ],
)
def test_other_differences_are_a_mismatch(factor, besides, code, values):
    first, second = ({"version.torch": "2.8", **tags} for tags in BY_FACTOR[factor])
    (finding,) = judge_by(two_kinds(first, {**second, **besides}), factor).findings
    assert finding.mismatch is code
    assert values in finding.row.reason


def test_allowed_differences_are_ignored():
    first, second = BY_FACTOR["version.torch"]
    table = two_kinds(first, {**second, "version.numpy": "2.5"})
    (row,) = judge_by(table, "version.torch", allowed_to_differ=("version.numpy",)).rows
    assert row.verdict == "slower"


def test_two_environments_of_one_level_are_a_mismatch():
    table = two_kinds(*BY_FACTOR["version.torch"])
    table.loc[table["block"] == 3, "tags.environment"] += "+changes"
    (finding,) = judge_by(table, "version.torch").findings
    assert finding.mismatch is Mismatch.VERSIONS
    assert "environment (e0, e0+changes)" in finding.row.reason


def timed(starts: dict[str, list[int]], campaign: str = "c1") -> pd.DataFrame:
    """Return a campaign whose runs took half a minute from these milliseconds, block by block."""
    blocks, slower = len(starts["pytorch"]), {"tensorflow": 1.2}
    table = frame(blocks=blocks, factors=slower, campaign=campaign).drop(columns="order_in_block")
    cells = table.itertuples()
    begins = [ORIGIN_MS + starts[cell.framework][int(cell.block)] for cell in cells]
    return table.assign(start_ms=begins, end_ms=[begin + MINUTE // 2 for begin in begins])


def side_by_side(blocks: int, a_first: int) -> dict[str, list[int]]:
    """Return starts of a block's runs a minute apart, of blocks five; a is first in `a_first`."""
    begins = {"pytorch": [], "tensorflow": []}
    for block in range(blocks):
        first, second = 5 * block * MINUTE, (5 * block + 1) * MINUTE
        is_first = (block * 7) % blocks < a_first
        begins["pytorch"].append(first if is_first else second)
        begins["tensorflow"].append(second if is_first else first)
    return begins


def judge(table: pd.DataFrame, **options: object) -> Comparison:
    return compare(table, baseline="pytorch", outcomes=[STEP], **options)  # type: ignore[arg-type]


def test_one_side_first_is_a_warning_and_later_a_refusal():
    """Fair coins give 8 of 8 in 1 of 128 campaigns, 12 of 12 in 1 of 2,048."""
    few, many = judge(timed(side_by_side(8, 8))), judge(timed(side_by_side(12, 12)))
    (warning,) = few.warnings
    assert (few.rows[0].verdict, warning.code) == ("slower", WarningCode.UNBALANCED_ORDER)
    assert "pytorch ran first in 8 of 8" in warning.text
    assert many.findings[0].mismatch is Mismatch.ORDER
    assert "pytorch ran first in 12 of 12" in many.rows[0].reason


def test_recorded_order_counts_without_times():
    table = frame(blocks=12).drop(columns=["start_ms", "end_ms"])
    table["order_in_block"] = (table["framework"] == "pytorch").astype(int)
    comparison = judge(table)
    assert comparison.findings[0].mismatch is Mismatch.ORDER
    assert "tensorflow ran first in 12 of 12" in comparison.rows[0].reason


@pytest.mark.parametrize(("later", "pause"), [(11 * DAY, "11 days"), (40 * MINUTE, "40 minutes")])
def test_one_side_after_the_other_is_refused(later, pause):
    starts = [5 * at * MINUTE for at in range(8)]
    comparison = judge(timed({"pytorch": starts, "tensorflow": [later + at for at in starts]}))
    assert comparison.findings[0].mismatch is Mismatch.ORDER
    assert f"8 of 8 blocks (up to {pause}" in comparison.rows[0].reason


@pytest.mark.parametrize(
    ("again", "verdict"), [(1, "slower"), (3, "slower"), (4, "not comparable")]
)
def test_later_runs_of_one_side_are_named_up_to_a_quarter(again, verdict):
    """Drift in between weighs at most a quarter in the mean."""
    starts = side_by_side(12, 6)
    later = [start + DAY if at < again else start for at, start in enumerate(starts["tensorflow"])]
    comparison = judge(timed({**starts, "tensorflow": later}))
    assert comparison.rows[0].verdict == verdict
    codes = [warning.code for warning in comparison.warnings]
    text = comparison.warnings[codes.index(WarningCode.NOT_SIDE_BY_SIDE)].text
    assert f" {again} block" in text
    assert ("(0)" if again == 1 else "(0, 1, 2") in text


def test_order_is_counted_over_strata():
    """Six of six is a warning, eighteen of eighteen no accident."""
    tables = [timed(side_by_side(6, 6), f"c{at}").assign(machine=f"m{at}") for at in range(3)]
    comparison = judge(pd.concat(tables), strata=["machine"])
    assert [row.verdict for row in comparison.rows] == ["slower"] * 3
    (warning,), (summary,) = comparison.warnings, comparison.summaries
    assert (warning.code, summary.withheld) == (WarningCode.UNBALANCED_ORDER, Withheld.ORDER)
    assert "18 of 18" in warning.text
    assert "18 of 18" in summary.row.reason


def test_shuffled_campaigns_have_few_warnings():
    """Six to thirty fair coins, weighed with their chance; one in a thousand is refused."""
    for n in range(6, 31):
        chances = {
            order.Order("a", "b", n_ordered=n, a_first=k): math.comb(n, k) / 2**n
            for k in range(n + 1)
        }
        warned = sum(chance for coins, chance in chances.items() if coins.p < order.UNBALANCED)
        assert warned <= 0.05
        assert sum(chance for coins, chance in chances.items() if coins.refused) <= 0.001


# Valid only for a process that has the machine for itself.
ISOLATED = (
    "train/first_step_seconds",
    "train/total_seconds",
    "inference/batch_8/first_call_seconds",
)


def in_turns(**columns: object) -> pd.DataFrame:
    table = frame(blocks=8, factors={"tensorflow": 2.0}, params={"pairing": "interleaved"})
    turns = [f"turns-{block}" for block in table["block"]]
    metrics = dict.fromkeys(ISOLATED, 3 * table[STEP])
    return table.assign(**{**metrics, "tags.turns": turns, **columns})


def test_first_and_whole_times_are_not_judged_in_turns() -> None:
    together = {finding.row.metric: finding for finding in compare(in_turns()).findings}
    table = in_turns(**{"params.pairing": "sequential"})
    apart = {finding.row.metric: finding for finding in compare(table).findings}
    for metric in ISOLATED:
        assert together[metric].mismatch is Mismatch.TURNS
        assert together[metric].row.estimate is None
        assert apart[metric].row.verdict == "slower"
    assert together[STEP].row.verdict == apart[STEP].row.verdict == "slower"
    assert together[STEP].row.estimate == apart[STEP].row.estimate


@pytest.mark.parametrize(
    ("apart_ms", "seconds"),
    [(1_000, 1.8), (0, 0.9), (400, 1.3)],
    ids=["after", "together", "partly"],
)
def test_shared_time_of_a_block_counts_once(apart_ms: int, seconds: float) -> None:
    table = pd.DataFrame({"start_ms": [0, 60_000], "end_ms": [900, 60_900]})
    assert block_seconds(table, table + apart_ms) == pytest.approx(seconds)

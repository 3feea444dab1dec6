"""Verdicts on a busy machine: simulated campaigns whose cells record the use by others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import batch_sizes
from experiments.comparison.runs.query import table
from experiments.comparison.runs.warning import WarningCode
from experiments.comparison.verdicts import busy
from experiments.comparison.verdicts.decision import Withheld
from experiments.metrics import Metric, outcome
from tests.experiments.comparison.campaigns import (
    LATENCY,
    LOSS,
    RATE,
    RSS,
    STEP,
    finding,
    paired,
    runs,
)
from tracking.records import OTHERS_CPU, OTHERS_GPU, OVERSUBSCRIBED

FREE, LOADED = 2.0, 37.4


def measured(
    percent: Mapping[str, Sequence[float | None]], metric: str = OTHERS_CPU, **options: object
) -> pd.DataFrame:
    """Return eight blocks in which tensorflow takes ten times as long.

    Args:
        percent: use by others while each cell was timed, by level.
    """
    frame = table(runs(blocks=8, factors={"tensorflow": 10.0}, **options))  # type: ignore[arg-type]
    loads = {level: list(values) * (8 // len(values)) for level, values in percent.items()}
    cells = frame.itertuples()
    return frame.assign(**{metric: [loads[cell.framework][int(cell.block)] for cell in cells]})


@pytest.mark.parametrize("side", ["pytorch", "tensorflow"])
def test_load_of_one_side_withholds_verdicts_on_times(side: str) -> None:
    free = compare(measured({"pytorch": [FREE], "tensorflow": [FREE]}))
    assert finding(free).row.verdict == "slower"
    assert free.warnings == ()
    loaded = compare(measured({"pytorch": [FREE], "tensorflow": [FREE], side: [LOADED]}))
    for metric in (STEP, RATE, LATENCY):
        timed = finding(loaded, metric)
        assert (timed.row.verdict, timed.withheld) == ("inconclusive", Withheld.BUSY_MACHINE)
        assert (timed.row.p, timed.row.p_holm, timed.row.equivalent) == (None, None, None)
        assert timed.row.estimate == finding(free, metric).row.estimate
    # neighbours change neither learning nor memory
    assert finding(loaded, RSS).row.verdict in ("equivalent", "different, within margin")
    assert finding(loaded, LOSS).row.verdict == "deterministic"
    (warning,) = busy.warning(loaded.findings)
    assert warning.code is WarningCode.BUSY_MACHINE
    for text in ("37 %", "2 %", side, "--others_limit_percent"):
        assert text in warning.text


@pytest.mark.parametrize(
    ("metric", "sides", "limit", "is_settled"),
    [
        (OTHERS_CPU, ([FREE], [*[LOADED] * 3, *[FREE] * 5]), "10", True),  # as chance may have it
        (OTHERS_CPU, ([FREE], [*[LOADED] * 5, *[FREE] * 3]), "10", False),
        (OTHERS_CPU, ([LOADED], [LOADED]), "10", True),  # a condition of both sides
        (OTHERS_CPU, ([FREE], [FREE + 10.0]), "10", True),  # the limit itself is allowed
        (OTHERS_CPU, ([FREE], [FREE + 10.1]), "10", False),
        (OTHERS_CPU, ([FREE], [None]), "10", True),  # runs of others record no load
        (OTHERS_CPU, ([FREE], [*[None] * 6, *[LOADED] * 2]), "10", True),  # two pairs show nothing
        (OTHERS_CPU, ([FREE], [*[None] * 5, *[LOADED] * 3]), "10", False),
        (OTHERS_CPU, ([FREE], [LOADED]), "50.0", True),
        (OTHERS_CPU, ([FREE], [LOADED]), "30.0", False),
        # threads without a CPU
        (OVERSUBSCRIBED, ([28.0], [28.0]), "10", False),
        (OVERSUBSCRIBED, ([10.0], [10.0]), "10", True),
        (OVERSUBSCRIBED, ([28.0], [28.0]), "100", True),
        # the median cell decides
        (OVERSUBSCRIBED, ([*[28.0] * 3, *[0.0] * 5],) * 2, "10", True),
        (OVERSUBSCRIBED, ([None], [None]), "10", True),
        (OTHERS_GPU, ([0.0], [0.0]), "10", True),
        (OTHERS_GPU, ([0.0], [80.0]), "10", False),
        (OTHERS_GPU, ([80.0], [80.0]), "10", True),
        (OTHERS_GPU, ([0.0], [80.0]), "100", True),
        (OTHERS_GPU, ([0.0], [None]), "10", True),  # the driver does not report it
    ],
)
def test_load_of_one_side_beyond_chance_and_limit_withholds_the_verdict(
    metric: str, sides: tuple[Sequence[float | None], ...], limit: str, is_settled: bool
) -> None:
    percent = dict(zip(("pytorch", "tensorflow"), sides, strict=True))
    frame = measured(percent, metric, params={"others_limit_percent": limit})
    verdict = "slower" if is_settled else "inconclusive"
    assert finding(compare(frame)).row.verdict == verdict


def test_load_of_one_side_in_a_stratum_withholds_the_summary() -> None:
    sides = {"pytorch": [FREE], "tensorflow": [FREE]}
    parts = [measured(sides, campaign=name, seed=at) for at, name in enumerate("abc")]
    for loaded in (None, "c"):
        frame = pd.concat(parts, ignore_index=True)
        is_loaded = (frame["campaign"] == loaded) & (frame["framework"] == "pytorch")
        frame.loc[is_loaded, OTHERS_CPU] = LOADED
        comparison = compare(frame, strata=["campaign"], outcomes=[STEP])
        verdicts = {row.stratum.partition("=")[2]: row.verdict for row in comparison.rows}
        last = "inconclusive" if loaded else "slower"
        assert verdicts == {"a": "slower", "b": "slower", "c": last}
        (summary,) = comparison.summaries
        assert summary.withheld == (Withheld.BUSY_MACHINE if loaded else None)


def test_batch_size_limit_needs_equal_load() -> None:
    for percent in (FREE, LOADED):
        frame = table(runs(("8", "16"), factors={"16": 2.0}))
        loads = np.where(frame["framework"] == "16", percent, FREE)
        frame = frame.assign(
            **{"params.batch_size": frame["framework"], "framework": "pytorch", OTHERS_CPU: loads}
        )
        curves = batch_sizes.curves(compare(frame, factor="batch_size"))
        training = next(curve for curve in curves if curve.phase == "training")
        assert (training.limit.reason == "the machine was busy") == (percent == LOADED)


def test_load_of_a_block_counts_and_is_named() -> None:
    free = compare(measured({"pytorch": [FREE], "tensorflow": [FREE]}))
    some = compare(measured({"pytorch": [FREE], "tensorflow": [FREE, LOADED, *[FREE] * 5, None]}))
    (warning,) = some.warnings
    assert warning.code is WarningCode.BACKGROUND_LOAD
    assert "37 % at most (block 1)" in warning.text
    assert finding(some).row.n_blocks == 8
    assert finding(some).row.estimate == finding(free).row.estimate
    params = {"others_limit_percent": "50.0"}
    lax = measured({"pytorch": [LOADED], "tensorflow": [FREE]}, params=params)
    assert not compare(lax).warnings


@pytest.mark.parametrize(
    ("rules", "depends"),
    [
        *((outcome(metric), True) for metric in (STEP, RATE, "energy/joules", "new_metric")),
        *((outcome(metric), False) for metric in (RSS, LOSS, "check/rows", "train/graph_breaks")),
        *(
            (Metric("x", "ratio", "higher", None, "x", unit), depends)
            for unit, depends in (
                *(("ms", True), ("s/step", True), ("tokens per second", True), ("kWh", True)),
                *(("rows", False), ("tokens", False), ("MB", False)),
            )
        ),
    ],
)
def test_counts_checks_and_memory_do_not_depend_on_load(rules: Metric, depends: bool) -> None:
    assert busy.depends_on_load(rules) is depends


def test_value_that_no_run_changes_is_not_withheld() -> None:
    frame = measured({"pytorch": [FREE], "tensorflow": [LOADED]}).assign(checksum=7.0)
    assert finding(compare(frame), "checksum").row.verdict == "deterministic"


# ---- load that comes and goes

BLOCKS, RUN_SECONDS, CAMPAIGNS = 8, 4.0, 200
BURST_SECONDS, PAUSE_SECONDS = 2.0, 6.0


def campaign_in_bursts(rng: np.random.Generator, slowdown: float = 0.5) -> pd.DataFrame:
    """Return A/A runs, in random order in each block, that bursts of one of two CPUs slow down."""
    length, at, spans = 2 * BLOCKS * RUN_SECONDS, -rng.exponential(PAUSE_SECONDS), []
    while at < length:
        end = at + rng.exponential(BURST_SECONDS)
        spans.append((at, end))
        at = end + rng.exponential(PAUSE_SECONDS)
    edges = np.linspace(0, length, 2 * BLOCKS + 1)
    shares = sum(
        np.clip(edges[1:], begin, end) - np.clip(edges[:-1], begin, end) for begin, end in spans
    ) / RUN_SECONDS  # fmt: skip
    seconds = np.exp(slowdown * shares + rng.normal(0, 0.01, len(shares)))
    order = np.array([rng.permutation(2) for _ in range(BLOCKS)])
    cells = np.arange(2 * BLOCKS).reshape(BLOCKS, 2)
    sides = [cells[order == side] for side in (0, 1)]
    frame = paired(*(seconds[side] for side in sides))
    return frame.assign(**{OTHERS_CPU: 50 * np.concatenate([shares[side] for side in sides])})


def test_load_that_comes_and_goes_makes_no_false_difference() -> None:
    """200 campaigns; the load of one side only is withheld."""
    rng = np.random.default_rng(3)
    campaigns = [campaign_in_bursts(rng) for _ in range(CAMPAIGNS)]
    loads = np.concatenate([frame[OTHERS_CPU] for frame in campaigns])
    assert 10 < loads.mean() < 15
    findings = [finding(compare(frame, outcomes=[STEP])) for frame in campaigns]
    assert np.mean([each.different for each in findings]) <= 0.06
    assert np.mean([each.withheld is not None for each in findings]) <= 0.06
    for frame in campaigns[:20]:
        frame[OTHERS_CPU] += 40.0 * (frame["framework"] == "b")
        frame[STEP] *= 1 + 0.4 * (frame["framework"] == "b")
    findings = [finding(compare(frame, outcomes=[STEP])) for frame in campaigns[:20]]
    assert not any(each.judged for each in findings)
    assert sum(each.withheld is Withheld.BUSY_MACHINE for each in findings) >= 18

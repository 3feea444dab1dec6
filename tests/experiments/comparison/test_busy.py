"""Verdicts on a busy machine: simulated campaigns whose cells record the use by others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import batch_sizes
from experiments.comparison.analyses.batch_sizes import LimitReason
from experiments.comparison.runs.query import table
from experiments.comparison.runs.warning import WarningCode
from experiments.comparison.verdicts import busy
from experiments.comparison.verdicts.decision import Withheld
from experiments.comparison.verdicts.findings import Comparison, Finding
from tests.experiments.comparison.campaigns import LATENCY, LOSS, RATE, RSS, STEP, runs
from tracking.records import OTHERS_CPU, OTHERS_GPU

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


def finding(comparison: Comparison, metric: str = STEP) -> Finding:
    return next(finding for finding in comparison.findings if finding.row.metric == metric)


@pytest.mark.parametrize("side", ["pytorch", "tensorflow"])
def test_neighbour_of_one_side_withholds_verdicts_on_times(side: str) -> None:
    free = compare(measured({"pytorch": [FREE], "tensorflow": [FREE]}))
    assert finding(free).row.verdict == "slower"
    assert free.busy == ""
    loaded = compare(measured({"pytorch": [FREE], "tensorflow": [FREE], side: [LOADED]}))
    for metric in (STEP, RATE, LATENCY):
        timed = finding(loaded, metric)
        assert (timed.row.verdict, timed.withheld) == ("inconclusive", Withheld.BUSY_MACHINE)
        assert (timed.row.p, timed.row.p_holm, timed.row.equivalent) == (None, None, None)
        assert timed.row.estimate == finding(free, metric).row.estimate
        assert "37 % of the CPU" in timed.row.reason
    # neighbours change neither learning nor memory
    assert finding(loaded, RSS).row.verdict in ("equivalent", "different, within margin")
    assert finding(loaded, LOSS).row.verdict == "deterministic"
    (warning,) = busy.warning(loaded.findings)
    assert warning.code is WarningCode.BUSY_MACHINE
    assert "37 % of the CPU" in warning.text


@pytest.mark.parametrize(
    ("percent", "is_settled"),
    [
        ([*[LOADED] * 3, *[FREE] * 5], True),
        ([*[LOADED] * 5, *[FREE] * 3], False),
        ([10.0], True),  # the limit itself is allowed
        ([10.1], False),
        ([None], True),  # runs of others record no load
        ([*[None] * 7, LOADED], False),
    ],
)
def test_median_cell_decides(percent: Sequence[float | None], is_settled: bool) -> None:
    comparison = compare(measured({"pytorch": [FREE], "tensorflow": percent}))
    assert (finding(comparison).row.verdict == "slower") is is_settled


@pytest.mark.parametrize(("limit", "verdict"), [("50.0", "slower"), ("30.0", "inconclusive")])
def test_limit_is_that_of_the_cells(limit: str, verdict: str) -> None:
    params = {"others_limit_percent": limit}
    comparison = compare(measured({"pytorch": [FREE], "tensorflow": [LOADED]}, params=params))
    assert finding(comparison).row.verdict == verdict


def test_busy_stratum_withholds_the_summary() -> None:
    sides = {"pytorch": [FREE], "tensorflow": [FREE]}
    parts = [measured(sides, campaign=name, seed=at) for at, name in enumerate("abc")]
    for loaded in (None, "c"):
        frame = pd.concat(parts, ignore_index=True)
        frame.loc[frame["campaign"] == loaded, OTHERS_CPU] = LOADED
        comparison = compare(frame, strata=["campaign"], outcomes=[STEP])
        verdicts = {row.stratum.partition("=")[2]: row.verdict for row in comparison.rows}
        last = "inconclusive" if loaded else "slower"
        assert verdicts == {"a": "slower", "b": "slower", "c": last}
        (summary,) = comparison.summaries
        assert summary.withheld == (Withheld.BUSY_MACHINE if loaded else None)


def test_batch_size_limit_needs_quiet_machine() -> None:
    for percent in (FREE, LOADED):
        frame = table(runs(("8", "16"), factors={"16": 2.0}))
        frame = frame.assign(
            **{"params.batch_size": frame["framework"], "framework": "pytorch", OTHERS_CPU: percent}
        )
        curves = batch_sizes.curves(compare(frame, factor="batch_size"))
        training = next(curve for curve in curves if curve.phase == "training")
        assert (training.limit.reason is LimitReason.BUSY_MACHINE) == (percent == LOADED)


def test_disturbed_blocks_count_and_are_named() -> None:
    free = compare(measured({"pytorch": [FREE], "tensorflow": [FREE]}))
    assert not free.warnings
    percent = [FREE, LOADED, *[FREE] * 4, 11.0, None]
    some = compare(measured({"pytorch": [FREE], "tensorflow": percent}))
    (warning,) = some.warnings
    assert warning.code is WarningCode.DISTURBED_BLOCKS
    assert "1 (37 %), 6 (11 %)" in warning.text
    assert finding(some).row.n_blocks == 8
    assert finding(some).row.estimate == finding(free).row.estimate
    params = {"others_limit_percent": "50.0"}
    lax = measured({"pytorch": [LOADED], "tensorflow": [FREE]}, params=params)
    assert not compare(lax).warnings


@pytest.mark.parametrize(
    ("gpu", "params", "verdict"),
    [
        ([0.0], {}, "slower"),
        ([80.0], {}, "inconclusive"),
        ([1.0], {}, "inconclusive"),
        ([80.0], {"others_limit_percent": "100.0"}, "slower"),
        ([None], {}, "slower"),  # the driver does not report it
    ],
)
def test_other_programs_on_the_gpu_count_like_a_busy_cpu(gpu, params, verdict) -> None:
    sides = {"pytorch": [0.0], "tensorflow": gpu}
    comparison = compare(measured(sides, OTHERS_GPU, params=params))
    assert finding(comparison).row.verdict == verdict
    assert bool(comparison.busy) == (verdict == "inconclusive")
    assert (f"GPU in {gpu[0]:.0f} %" in comparison.busy) if comparison.busy else True
    assert finding(comparison, LOSS).row.verdict == "deterministic"

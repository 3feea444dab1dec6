"""A busy machine settles nothing that was timed: simulated campaigns whose cells tell what others used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import batch_sizes
from experiments.comparison.analyses.batch_sizes import LimitReason
from experiments.comparison.report import wording
from experiments.comparison.runs.query import table
from experiments.comparison.runs.warning import WarningCode
from experiments.comparison.verdicts import busy
from experiments.comparison.verdicts.findings import Comparison, Row
from tests.experiments.comparison.campaigns import LATENCY, LOSS, RATE, RSS, STEP, runs
from tracking.records import OTHERS_CPU, OTHERS_GPU

FREE, LOADED = 2.0, 37.4


def measured(
    percent: Mapping[str, Sequence[float | None]], metric: str = OTHERS_CPU, **more: object
) -> pd.DataFrame:
    """Eight blocks in which tensorflow takes ten times as long; what others used while each of its cells was timed, by level."""
    frame = table(runs(blocks=8, factors={"tensorflow": 10.0}, **more))  # type: ignore[arg-type]
    told = {level: list(values) * (8 // len(values)) for level, values in percent.items()}
    return frame.assign(
        **{metric: [told[run.framework][int(run.block)] for run in frame.itertuples()]}
    )


def row(comparison: Comparison, metric: str) -> Row:
    return next(one for one in comparison.rows if one.metric == metric)


BUSY = "this machine was busy (37 % of the CPU by others): not settled"


@pytest.mark.parametrize("side", ["pytorch", "tensorflow"])
def test_ten_times_slower_beside_a_neighbour_of_one_side_is_no_verdict(side: str) -> None:
    free = compare(measured({"pytorch": [FREE], "tensorflow": [FREE]}))
    assert row(free, STEP).verdict == "slower"
    assert free.busy == ""
    loaded = compare(measured({"pytorch": [FREE], "tensorflow": [FREE], side: [LOADED]}))
    for metric in (STEP, RATE, LATENCY):
        found = row(loaded, metric)
        assert (found.verdict, found.reason) == ("inconclusive", BUSY)
        assert (found.p, found.p_holm, found.equivalent) == (None, None, None)
        assert found.estimate == row(free, metric).estimate  # what was seen is shown
    assert row(loaded, RSS).verdict in (
        "equivalent",
        "different, within margin",
    )  # no neighbour changes it
    assert row(loaded, LOSS).verdict == "deterministic"
    assert "slower" not in " ".join(wording.sentences(loaded))
    (warning,) = busy.warning(loaded.findings)
    assert warning.code is WarningCode.BUSY_MACHINE
    assert "37 % of the CPU by others" in warning.text


def test_the_median_cell_decides() -> None:
    def verdict(*percent: float | None) -> str:
        return row(compare(measured({"pytorch": [FREE], "tensorflow": percent})), STEP).verdict

    assert verdict(*[LOADED] * 3, *[FREE] * 5) == "slower"
    assert verdict(*[LOADED] * 5, *[FREE] * 3) == "inconclusive"
    assert verdict(10.0) == "slower"  # the limit itself is allowed
    assert verdict(10.1) == "inconclusive"
    assert verdict(None) == "slower"  # a run of others, or of an earlier version, does not say
    assert verdict(*[None] * 7, LOADED) == "inconclusive"  # the only one that says


def test_the_limit_is_the_one_that_the_cells_were_run_with() -> None:
    free = {"pytorch": [FREE], "tensorflow": [LOADED]}
    assert (
        row(compare(measured(free, params={"others_limit_percent": "50.0"})), STEP).verdict
        == "slower"
    )
    assert (
        row(compare(measured(free, params={"others_limit_percent": "30.0"})), STEP).verdict
        == "inconclusive"
    )


def test_a_busy_stratum_is_in_no_summary_and_others_keep_their_verdicts() -> None:
    parts = [
        measured({"pytorch": [FREE], "tensorflow": [FREE]}, campaign=name, seed=at)
        for at, name in enumerate("abc")
    ]
    for loaded in (None, "c"):
        frame = pd.concat(parts, ignore_index=True)
        frame.loc[frame["campaign"] == loaded, OTHERS_CPU] = LOADED
        found = compare(frame, strata=["campaign"])
        verdicts = {
            one.row.stratum: one.row.verdict for one in found.findings if one.row.metric == STEP
        }
        assert verdicts == {
            f"campaign={name}": "inconclusive" if name == loaded else "slower" for name in "abc"
        }
        together = next(one.row for one in found.summaries if one.row.metric == STEP)
        assert (together.verdict == "slower") == (loaded is None)
        assert together.reason.startswith(
            "the machine was busy with others' work in campaign=c"
        ) == (loaded == "c")


def test_batch_size_limit_needs_quiet_machine() -> None:
    for percent in (FREE, LOADED):
        frame = table(runs(("8", "16"), factors={"16": 2.0}))
        frame = frame.assign(
            **{"params.batch_size": frame["framework"], "framework": "pytorch", OTHERS_CPU: percent}
        )
        found = compare(frame, factor="batch_size")
        curve = next(one for one in batch_sizes.curves(found) if one.phase == "training")
        assert (curve.limit.reason is LimitReason.BUSY_MACHINE) == (percent == LOADED)


def test_blocks_that_stay_disturbed_are_named_and_count() -> None:
    free = compare(measured({"pytorch": [FREE], "tensorflow": [FREE]}))
    assert not free.warnings
    some = compare(
        measured({"pytorch": [FREE], "tensorflow": [FREE, LOADED, *[FREE] * 4, 11.0, None]})
    )
    (warning,) = some.warnings
    assert warning.code is WarningCode.DISTURBED_BLOCKS
    assert "1 (37 %), 6 (11 %)" in warning.text
    assert row(some, STEP).n_blocks == row(free, STEP).n_blocks == 8, "none is dropped"
    assert row(some, STEP).estimate == row(free, STEP).estimate
    lax = measured(
        {"pytorch": [LOADED], "tensorflow": [FREE]}, params={"others_limit_percent": "50.0"}
    )
    assert not compare(lax).warnings


def beside(gpu: Sequence[float | None], **more: object) -> Comparison:
    """A campaign whose tensorflow cells had company on the GPU in so many percent of samples."""
    return compare(measured({"pytorch": [0.0], "tensorflow": gpu}, OTHERS_GPU, **more))


def test_company_on_the_gpu_that_a_repeat_had_too_is_treated_like_a_busy_cpu() -> None:
    free, loaded = beside([0.0]), beside([80.0])
    assert (row(free, STEP).verdict, free.busy) == ("slower", "")
    text = "this machine was busy (others on the GPU in 80 % of samples): not settled"
    step = row(loaded, STEP)
    assert (step.verdict, step.reason, step.p) == ("inconclusive", text, None)
    assert {one.busy for one in loaded.findings if busy.depends(one.outcome)} == {text}
    assert row(loaded, LOSS).verdict == "deterministic"
    assert row(beside([1.0]), STEP).verdict == "inconclusive", "any is too much"
    off = beside([80.0], params={"others_limit_percent": "100.0"})
    assert row(off, STEP).verdict == "slower"
    assert row(beside([None]), STEP).verdict == "slower", "the driver does not say"

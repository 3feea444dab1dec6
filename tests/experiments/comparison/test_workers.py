"""The speed-up of several workers, and what the exchange costs: against values worked out by hand, and on paper."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure as Canvas

from experiments.comparison import compare
from experiments.comparison.analyses import Evidence, workers
from experiments.comparison.report import canvas, wording
from tests.experiments.comparison.campaigns import RATE, STEP, frame

GROUPS = {"1": (1, "none"), "2": (2, "none"), "4": (4, "none"), "4 fp16": (4, "fp16")}


def campaign(scaling: str = "weak", blocks: int = 6) -> pd.DataFrame:
    """Steps take 1, 1.1, 1.25 and 1.2 times as long as one worker's; a tenth of that is exchange; each has a whole batch."""
    table = frame(
        list(GROUPS),
        blocks,
        factors={"2": 1.1, "4": 1.25, "4 fp16": 1.2},
        params={"scaling": scaling},
    )
    counts = table["framework"].map(lambda level: GROUPS[level][0])
    table[RATE] *= counts
    table["train/alone_step_seconds"] = 0.9 * table[STEP]
    table["check/workers"] = counts.astype(float)
    several = counts > 1
    table.loc[several, "check/weights_error"], table.loc[several, "check/weights_error_limit"] = (
        2e-16,
        1e-12,
    )
    return table


def test_overhead_is_the_published_formula_and_exposed_is_what_was_measured() -> None:
    table = campaign()
    gains = {one.level: one for one in workers.gains(compare(table))}
    assert {level: one.workers for level, one in gains.items()} == {"2": 2, "4": 4, "4 fp16": 4}
    rates = {
        level: 1 / table[table["framework"] == level].sort_values("block")[STEP].to_numpy()
        for level in GROUPS
    }
    for level, one in gains.items():
        # steps a second of k workers over those of one, block by block
        logs = np.log(rates[level] / rates["1"])
        row = one.finding.row
        assert one.overhead.value == pytest.approx(1 - np.exp(logs.mean()))
        assert one.overhead.low == pytest.approx(1 - row.ci_high / one.workers)
        assert one.overhead.high == pytest.approx(1 - row.ci_low / one.workers)
        assert one.exposed is not None
        assert one.exposed.value == pytest.approx(0.1)
        assert one.exposed.low == pytest.approx(one.exposed.high)
        assert one.speedup.value == pytest.approx(one.efficiency.value * one.workers)


def test_the_report_sets_both_side_by_side() -> None:
    speedups, overheads, proofs = workers.sections(compare(campaign()), GROUPS, "weak")
    assert (
        [row[1] for row in speedups.rows]
        == [row[1] for row in overheads.rows]
        == ["2", "4", "4 fp16"]
    )
    for line in overheads.rows:
        overhead, exposed, rest = (
            float(line[at].removesuffix(" %").replace("−", "-")) / 100 for at in (2, 5, 7)
        )
        assert exposed == pytest.approx(0.1, abs=0.001)
        assert (1 - exposed) * (1 - rest) == pytest.approx(1 - overhead, abs=0.002)
    assert list(proofs.rows[-1]) == ["", "4 fp16", "fp16", "2.0e-16", "1.0e-12"]


def test_one_block_has_no_interval_and_no_exchange_no_share() -> None:
    table = campaign(blocks=1).drop(
        columns=["train/alone_step_seconds", "check/weights_error", "check/weights_error_limit"]
    )
    assert workers.sections(compare(table), GROUPS, "weak") == []
    assert workers.figure(Evidence(compare(table))) is None
    table = campaign(blocks=3).drop(
        columns=["train/alone_step_seconds", "check/weights_error", "check/weights_error_limit"]
    )
    _, overheads = workers.sections(compare(table), GROUPS, "weak")
    assert list(overheads.rows[0][4:]) == [wording.NONE] * 4


def test_the_figure_has_a_panel_for_each_scaling_with_the_ideal_and_intervals() -> None:
    both = [campaign(scaling) for scaling in ("strong", "weak")]
    both[1]["run_id"] += "w"
    comparison = compare(
        pd.concat(both, ignore_index=True),
        strata=("scaling",),
        allowed_to_differ=("settings_hash",),
    )
    drawing = workers.figure(Evidence(comparison))
    assert drawing is not None
    assert canvas.made(drawing).png.startswith(b"\x89PNG")
    paper = Canvas()
    drawing.paint(paper)
    assert ["strong" in axes.get_title() for axes in paper.axes] == [True, False]
    gains = [one for one in workers.gains(comparison) if one.stratum == "scaling=weak"]
    ideal, *lines = paper.axes[1].get_lines()
    assert list(ideal.get_xdata()) == list(ideal.get_ydata()) == [1, 2, 4]
    assert [line.get_ydata()[-1] for line in lines] == [one.speedup.value for one in gains[1:]]
    (exact, fp16) = paper.axes[1].collections
    for segments, own in ((exact, gains[:2]), (fp16, gains[2:])):
        assert [tuple(one[:, 1]) for one in segments.get_segments()] == [
            (one.speedup.low, one.speedup.high) for one in own
        ]


def test_other_campaigns_have_no_such_figure() -> None:
    assert workers.gains(compare(frame())) == []
    assert workers.figure(Evidence(compare(frame()))) is None

"""The intervals of a campaign look by look: what every look itself had, in the figure and as metrics of the run."""

from __future__ import annotations

import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import Evidence, looks
from experiments.comparison.report import canvas
from tests.experiments.comparison.campaigns import RATE, STEP, frame

SETTLED = {"until": "settled", "blocks": "6", "max_blocks": "18"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("metric", [STEP, "val/loss"])
def test_every_look_has_the_interval_that_it_had_then(seed: int, metric: str) -> None:
    """Against the verdict on the runs that there were by then; a difference as well as a ratio."""
    runs = frame(blocks=13, seed=seed, spread=0.04, params=SETTLED)
    runs["val/loss"] += runs[STEP] * 10
    (found,) = compare(runs, outcomes=[metric]).findings
    seen = looks.of_finding(found)
    assert [one.blocks for one in seen] == list(range(6, 13))
    for one in seen:
        (then,) = compare(runs[runs["block"] <= one.blocks], outcomes=[metric]).findings
        assert then.row.estimate == pytest.approx(one.interval.value)
        assert (then.row.ci_low, then.row.ci_high) == pytest.approx(
            (one.interval.low, one.interval.high)
        )
        low, high = (then.row.on_test_scale(bound) for bound in (one.inner.low, one.inner.high))
        assert then.row.equivalent == (-then.row.bound < low and high < then.row.bound)
        assert one.interval.low < one.inner.low < one.inner.high < one.interval.high


def test_a_fan_is_drawn_where_the_number_of_blocks_was_not_fixed() -> None:
    found = compare(
        frame(("a", "b", "c"), blocks=13, params=SETTLED), outcomes=[STEP, RATE], primary=[STEP]
    )
    drawn = looks.figure(Evidence(found))
    assert drawn is not None
    assert drawn.caption.startswith(
        "7 looks, after 6 (97.9 %) to 12 (99.0 %) blocks of at most 18;"
    )
    assert canvas.made(drawn).png.startswith(b"\x89PNG")
    fixed = compare(frame(blocks=13), outcomes=[STEP])
    assert looks.figure(Evidence(fixed)) is None

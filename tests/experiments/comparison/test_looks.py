"""The intervals of a campaign look by look: what every look itself had, in the figure and as metrics of the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from mlflow.utils.validation import _validate_metric_name

from experiments.comparison import compare
from experiments.comparison.analyses import Evidence, looks
from experiments.comparison.report import canvas
from experiments.run.rules import metrics_of_look
from tests.experiments.comparison.campaigns import RATE, STEP, frame
from tests.experiments.test_until_settled import KnownCampaign, kept, noise

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


def test_every_look_is_a_step_of_the_runs_metrics(tmp_path: Path) -> None:
    """Once: a resumption looks again at what it has, and adds nothing."""
    campaign, points = KnownCampaign(tmp_path), dict[str, dict[int, float]]()

    def keep(values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            assert step not in points.setdefault(key, {}), "recorded twice"
            points[key][step] = value

    campaign.recorder.keep_metrics = keep
    look = campaign.looking()
    for block in kept(tmp_path, noise(0.2)):
        look(block, ran_now=True)
    first = {key: dict(values) for key, values in points.items()}
    assert first.keys() == {f"look/{STEP}/b/{name}" for name in ("estimate", "low", "high")}
    assert all(list(values) == list(range(6, 19)) for values in first.values())
    widths = [first[f"look/{STEP}/b/high"][at] / first[f"look/{STEP}/b/low"][at] for at in (6, 18)]
    assert widths[0] > widths[1] > 1
    again = campaign.looking()
    for block in range(1, 19):
        again(block, ran_now=False)
    assert points == first


def test_names_are_those_that_mlflow_takes() -> None:
    runs = frame(("toy", "toy+twin"), blocks=13, params={**SETTLED, "batch_size": "8"})
    (found,) = compare(runs, outcomes=[STEP], strata=["batch_size"]).findings
    told = metrics_of_look(found)
    assert set(told) == {
        f"look/{STEP}/batch_size.8/toy.twin/{name}" for name in ("estimate", "low", "high")
    }
    for name in told:
        _validate_metric_name(name)

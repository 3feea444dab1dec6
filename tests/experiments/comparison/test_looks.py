"""The intervals of a campaign look by look: what every look itself had, in the figure and as metrics of the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mlflow.utils.validation import _validate_metric_name

from experiments.comparison import compare
from experiments.run.rules import metrics_of_look
from tests.experiments.comparison.campaigns import STEP, frame
from tests.experiments.test_until_settled import KnownCampaign, kept, noise

SETTLED = {"until": "settled", "blocks": "6", "max_blocks": "18"}


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

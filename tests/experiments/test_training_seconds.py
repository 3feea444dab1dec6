"""Length of a training by the time that a step takes: the same steps for all frameworks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from experiments.config import settings as settings_
from experiments.contract import DatasetInfo, Prepared
from experiments.studies.captioning import STUDY, Settings
from experiments.workloads import steps
from experiments.workloads.captioning import prepare
from tests.conftest import Place
from tests.experiments import small_campaigns

COSTS = {"toy": {"step": 0.01}, "toy+twin": {"step": 0.03}}
TOYS = {
    "frameworks": "toy,toy+twin",
    "images": "160",
    "image_size": "32",
    "bleu_images": "1",
    "epochs": "2",
    "steps_per_epoch": "20",
    "warmup_steps": "2",
    "inference_requests": "8",
}


@pytest.mark.parametrize(
    ("seconds", "changes", "expected"),
    [
        ((0.01, 0.02), {}, 20),
        ((0.01, 0.08), {}, 15),
        ((0.12, 0.01), {}, 10),
        ((3.0,), {}, 5),
        ((3.0,), {"warmup_steps": 70}, 10),  # fewer would leave nothing to be measured
        ((3.0,), {"timing": "free", "window_steps": 15}, 15),
        ((), {}, 20),
    ],
)
def test_slowest_framework_decides(
    seconds: tuple[float, ...], changes: dict[str, Any], expected: int
) -> None:
    """Take 8 epochs of 20 steps, and 10 s: a step of 80 ms leaves 15 steps to an epoch."""
    texts = {"preset": "demo", "training_seconds": "10", **{k: str(v) for k, v in changes.items()}}
    settings: Settings = settings_.parse(STUDY.settings, STUDY.presets, texts)
    findings = [{steps.STEP_SECONDS: repr(each)} for each in seconds]
    info = DatasetInfo("", "", "", {"training_captions": 680}, {})
    shorter = prepare.shortened(settings, Prepared(info, {}), findings)
    assert shorter.steps_per_epoch == expected


def test_steps_are_those_of_the_campaign_and_of_what_continues_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take 0.6 s for steps of 30 ms: 10 in each of two epochs."""
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps(COSTS))
    small_campaigns.run(place, "captioning", **TOYS, training_seconds="0.7")
    (journal,) = place.journal.iterdir()
    assert json.loads((journal / "campaign.json").read_text())["settings"]["steps_per_epoch"] == 10
    faster = {name: {"step": 0.001} for name in COSTS}
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps(faster))
    small_campaigns.run(place, "captioning", resume="last", blocks="2")
    cells = small_campaigns.cells(place)
    assert [run.data.params["steps_per_epoch"] for run in cells] == ["10"] * 4

"""A campaign of two treatments with settings of their own, as a sweep makes it or as a study would.

`python -m tests.experiments.two_levels WAY STUDY FIRST SECOND`: the settings of each as JSON, as text.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping

from optuna.distributions import CategoricalDistribution
from optuna.trial import create_trial

from experiments import studies
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.contract import Treatment
from experiments.run import pipeline
from experiments.run.plan import Plan
from experiments.sweep import space, winners


def own(
    study: str, first: Mapping[str, str], second: Mapping[str, str]
) -> tuple[CampaignSettings, Plan]:
    """The second level's settings are its treatment's alone."""
    module = studies.load(study)
    base = settings_.parse(module.settings, module.presets, first)
    other = settings_.parse(module.settings, module.presets, {**first, **second})
    values = {name: getattr(other, name) for name in second if name != "frameworks"}
    compared = (
        Treatment("first", base.frameworks[0]),
        Treatment("second", other.frameworks[0], settings=values),
    )
    names = tuple(dict.fromkeys(one.framework for one in compared))
    base = dataclasses.replace(base, frameworks=names)
    return base, Plan(
        "two levels",
        "treatment",
        "first",
        compared,
        allowed_to_differ=(*second, "dataset"),
        own_inputs=True,
    )


def searched(
    study: str, first: Mapping[str, str], second: Mapping[str, str]
) -> tuple[CampaignSettings, Plan]:
    """The first is the default, the second what a search has found: the campaign that confirms it."""
    module = studies.load(study)
    base = settings_.parse(module.settings, module.presets, first)
    dimensions = space.parse(
        ",".join(_dimension(base, name, text) for name, text in second.items()), module.settings
    )
    best = {one.name: one.choices[1] for one in dimensions}
    kinds = {one.name: CategoricalDistribution(one.choices) for one in dimensions}
    trial = create_trial(params=best, distributions=kinds, value=1.0)
    plan = winners.plan(study, base, dimensions, [trial], "none")
    assert plan is not None
    return winners.settings(base, plan), plan


def _dimension(base: CampaignSettings, name: str, text: str) -> str:
    value = getattr(base, name)
    singular = name.removesuffix("s") if isinstance(value, tuple) else name
    return f"{singular}={settings_.to_text(value)}|{text}"


if __name__ == "__main__":
    way, study, first, second = (
        sys.argv[1],
        sys.argv[2],
        json.loads(sys.argv[3]),
        json.loads(sys.argv[4]),
    )
    settings, plan = {"own": own, "searched": searched}[way](study, first, second)
    with Display() as display:
        conclusion = pipeline.run(pipeline.start(study, settings, display, plan), display.step)
    sys.exit(0 if conclusion.all_ok else 1)

"""Campaign of two treatments with different settings, as a study or a sweep makes it.

`python -m tests.experiments.two_levels WAY STUDY FIRST SECOND`: the settings of each as JSON.
"""

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


def treatments_plan(
    study: str, first: Mapping[str, str], second: Mapping[str, str]
) -> tuple[CampaignSettings, Plan]:
    module = studies.load(study)
    base = settings_.parse(module.settings, module.presets, first)
    other = settings_.parse(module.settings, module.presets, {**first, **second})
    values = {name: getattr(other, name) for name in second if name != "frameworks"}
    treatments = (
        Treatment("first", base.frameworks[0]),
        Treatment("second", other.frameworks[0], settings=values),
    )
    frameworks = tuple(dict.fromkeys(treatment.framework for treatment in treatments))
    differences = (*second, "dataset")
    plan = Plan(
        "two levels",
        "treatment",
        "first",
        treatments,
        allowed_to_differ=differences,
        own_inputs=True,
    )
    return dataclasses.replace(base, frameworks=frameworks), plan


def sweep_plan(
    study: str, first: Mapping[str, str], second: Mapping[str, str]
) -> tuple[CampaignSettings, Plan]:
    """Return the campaign that confirms the second settings, as the best of a sweep."""
    module = studies.load(study)
    base = settings_.parse(module.settings, module.presets, first)
    search = ",".join(_dimension(base, name, text) for name, text in second.items())
    dimensions = space.parse(search, module.settings)
    best = {dimension.name: dimension.choices[1] for dimension in dimensions}
    kinds = {dimension.name: CategoricalDistribution(dimension.choices) for dimension in dimensions}
    trial = create_trial(params=best, distributions=kinds, value=1.0)
    plan = winners.plan(study, base, dimensions, [trial], "none")
    assert plan is not None
    return winners.settings(base, plan), plan


def _dimension(base: CampaignSettings, name: str, text: str) -> str:
    value = getattr(base, name)
    singular = name.removesuffix("s") if isinstance(value, tuple) else name
    return f"{singular}={settings_.to_text(value)}|{text}"


if __name__ == "__main__":
    way, study, first, second = sys.argv[1:]
    make_plan = {"treatments": treatments_plan, "sweep": sweep_plan}[way]
    settings, plan = make_plan(study, json.loads(first), json.loads(second))
    with Display() as display:
        conclusion = pipeline.finish(pipeline.open_new(study, settings, display, plan))
    sys.exit(0 if conclusion.all_ok else 1)

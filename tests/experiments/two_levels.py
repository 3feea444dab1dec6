"""Campaign of two treatments with different settings, as a sweep makes it for its best ones.

`python -m tests.experiments.two_levels STUDY FIRST SECOND`: the settings of each as JSON.
"""

import json
import sys
from collections.abc import Mapping

from optuna.distributions import CategoricalDistribution
from optuna.trial import create_trial

from experiments import studies
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.run import pipeline
from experiments.sweep import space, winners


def finish(study: str, first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    """Run the campaign that confirms the second settings; return whether its cells were ok."""
    module = studies.load(study)
    base = settings_.parse(module.settings, module.presets, first)
    search = ",".join(_dimension(base, name, text) for name, text in second.items())
    dimensions = space.parse(search, module.settings)
    best = {dimension.name: dimension.choices[1] for dimension in dimensions}
    kinds = {dimension.name: CategoricalDistribution(dimension.choices) for dimension in dimensions}
    trial = create_trial(params=best, distributions=kinds, value=1.0)
    plan = winners.plan(study, base, dimensions, [trial], "none")
    assert plan is not None
    with Display() as display:
        settings = winners.settings(base, plan)
        return pipeline.finish(pipeline.open_new(study, settings, display, plan)).all_ok


def _dimension(base: CampaignSettings, name: str, text: str) -> str:
    value = getattr(base, name)
    singular = name.removesuffix("s") if isinstance(value, tuple) else name
    return f"{singular}={settings_.to_text(value)}|{text}"


if __name__ == "__main__":
    study, first, second = sys.argv[1:]
    sys.exit(0 if finish(study, json.loads(first), json.loads(second)) else 1)

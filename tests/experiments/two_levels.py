"""Campaign of two treatments with different settings.

`python -m tests.experiments.two_levels STUDY FIRST SECOND`: the settings of each as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping

from experiments import studies
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.contract import Treatment
from experiments.run import pipeline
from experiments.run.plan import Plan


def plan_of(
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
    names = tuple(dict.fromkeys(treatment.framework for treatment in treatments))
    return dataclasses.replace(base, frameworks=names), Plan(
        "two levels",
        "treatment",
        "first",
        treatments,
        allowed_to_differ=(*second, "dataset"),
        own_inputs=True,
    )


if __name__ == "__main__":
    study = sys.argv[1]
    settings, plan = plan_of(study, json.loads(sys.argv[2]), json.loads(sys.argv[3]))
    with Display() as display:
        conclusion = pipeline.run(pipeline.start(study, settings, display, plan), display.step)
    sys.exit(0 if conclusion.all_ok else 1)

"""Best settings of a search: as files, and as a campaign that measures them again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from experiments.comparison.verdicts.findings import Comparison
from experiments.config import shell
from experiments.config.settings import CampaignSettings, to_text
from experiments.contract import Treatment
from experiments.planning.length import LENGTH
from experiments.run.plan import Plan
from experiments.sweep import space
from experiments.sweep.space import Dimension, Value
from experiments.sweep.trials import point

DEFAULT = "default"
MAX_WINNERS = 3
# Settings that differ between treatments, in addition to those that were searched.
ALLOWED_TO_DIFFER = (
    *LENGTH,
    "framework",
    "frameworks",
    "model",
    "dataset",
    "batch_size",
    "image_size",
    "device",
)


def select(best: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return at most MAX_WINNERS trials of a front, its ends among them."""
    if len(best) <= MAX_WINNERS:
        return list(best)
    last = MAX_WINNERS - 1
    return [best[round(number * (len(best) - 1) / last)] for number in range(MAX_WINNERS)]


def command(study: str, trial: FrozenTrial, dimensions: Sequence[Dimension]) -> str:
    settings = space.point_settings(dimensions, trial.params).items()
    return shell.command(study, *(f"--{name}={to_text(value)}" for name, value in settings))


def write(folder: Path, best: Sequence[FrozenTrial], dimensions: Sequence[Dimension]) -> None:
    """Write a file of settings for each winner, which experiments take as `settings=FILE`."""
    for trial in best:
        name = f"best-settings-trial-{trial.number}.json" if len(best) > 1 else "best-settings.json"
        settings = space.point_settings(dimensions, trial.params)
        (folder / name).write_text(json.dumps(settings, indent=1), encoding="utf-8")


def _name(trial: FrozenTrial, count: int) -> str:
    """Return the level of a winner in the campaign that measures it again."""
    return f"best: trial {trial.number}" if count > 1 else "best"


def not_refuted(
    best: Sequence[FrozenTrial], comparison: Comparison, metrics: Collection[str]
) -> list[FrozenTrial]:
    """Return the trials without those that their campaign shows to be no better than the default.

    Args:
        best: Winners of the search.
        comparison: Of those that were measured again.
        metrics: Objectives.
    """
    measured = select(best)
    refuted = set()
    for trial in measured:
        rows = [
            finding
            for finding in comparison.findings
            if finding.row.b == _name(trial, len(measured)) and finding.row.metric in metrics
        ]
        ways = {finding.way == finding.outcome.better_word for finding in rows if finding.different}
        is_settled = bool(rows) and all(finding.judged for finding in rows)
        if ways == {False} or (is_settled and not ways):
            refuted.add(trial.number)
    return [trial for trial in best if trial.number not in refuted]


def plan(
    study: str,
    base: CampaignSettings,
    dimensions: tuple[Dimension, ...],
    winners: Sequence[FrozenTrial],
    sweep: str,
) -> Plan | None:
    """Return the campaign of winners against the default settings; None if these are the same.

    Args:
        study: Name of the experiment.
        base: Settings before the search, with the default framework first.
        dimensions: Searched settings.
        winners: Best trials.
        sweep: Id of the sweep's run.
    """
    first = dataclasses.replace(base, frameworks=base.frameworks[:1])

    def treatment(name: str, settings: CampaignSettings, values: Mapping[str, Value]) -> Treatment:
        return dataclasses.replace(point(study, settings, dimensions, values), name=name)

    searched_lists = [dimension.field for dimension in dimensions if dimension.several]
    defaults: dict[str, Any] = {name: getattr(first, name)[:1] for name in searched_lists}
    default = treatment(DEFAULT, dataclasses.replace(first, **defaults), {})
    treatments = []
    for trial in winners:
        best = treatment(_name(trial, len(winners)), first, trial.params)
        if (best.framework, best.settings) != (default.framework, default.settings):
            treatments.append(best)
    if not treatments:
        return None
    searched = [name for dimension in dimensions for name in (dimension.field, dimension.name)]
    rates_only = ""
    for dimension in dimensions:
        if length := dimension.length:
            sizes = [length.batch_size, *(trial.params[dimension.name] for trial in winners)]
            rates_only = length.difference(sizes, base.margin)
    return Plan(
        title="what a sweep found, against the default",
        factor="treatment",
        baseline=DEFAULT,
        treatments=(default, *treatments),
        allowed_to_differ=tuple(dict.fromkeys([*ALLOWED_TO_DIFFER, *searched])),
        tags={"sweep": sweep},
        own_inputs=True,
        rates_only=rates_only,
    )


def settings(base: CampaignSettings, campaign: Plan) -> CampaignSettings:
    """Return settings with a seed that the search has not seen, and with all of its frameworks."""
    treatments = campaign.treatments
    frameworks = dict.fromkeys(treatment.framework for treatment in treatments)
    models = dict.fromkeys(
        treatment.settings["models"][0]
        for treatment in treatments
        if "models" in treatment.settings
    )
    lists: dict[str, Any] = {"models": tuple(models)} if models else {}
    return dataclasses.replace(base, seed=base.seed + 1, frameworks=tuple(frameworks), **lists)

"""What a search found worth judging: its best settings as a file, and the campaign that measures them afresh."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from experiments.config.settings import CampaignSettings
from experiments.contract import Treatment
from experiments.planning.length import LENGTH
from experiments.run.plan import Plan
from experiments.sweep import space
from experiments.sweep.space import Dimension, Value
from experiments.sweep.trials import point

DEFAULT = "default"
MOST = 3
# What differs between settings by its nature, beside the settings that were searched.
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


def chosen(best: Sequence[FrozenTrial], most: int = MOST) -> list[FrozenTrial]:
    """At most so many of the trials that none surpasses, the ends of the front among them."""
    if len(best) <= most:
        return list(best)
    return [best[round(at * (len(best) - 1) / (most - 1))] for at in range(most)]


def label(trial: FrozenTrial, several: bool) -> str:
    """A winner's name in reports."""
    return f"best: trial {trial.number}" if several else "best"


def write(folder: Path, best: Sequence[FrozenTrial], dimensions: Sequence[Dimension]) -> list[Path]:
    """One file of settings a winner, which every experiment takes as `settings=FILE`."""
    found = []
    for trial in best:
        name = f"best-settings-trial-{trial.number}.json" if len(best) > 1 else "best-settings.json"
        own = {
            key: value
            for one in dimensions
            for key, value in one.settled(trial.params[one.name]).items()
        }
        (folder / name).write_text(json.dumps(own, indent=1), encoding="utf-8")
        found.append(folder / name)
    return found


def plan(
    study: str,
    base: CampaignSettings,
    dimensions: tuple[Dimension, ...],
    winners: Sequence[FrozenTrial],
    sweep: str,
) -> Plan | None:
    """Winners against the settings that were there before the search, in blocks; None where these are the same.

    base: with the default framework first. sweep: id of the sweep's run.
    """
    default = _treatment(DEFAULT, study, base, dimensions, {})
    found = [
        _treatment(label(one, len(winners) > 1), study, base, dimensions, one.params)
        for one in winners
    ]
    found = [
        one
        for one in found
        if (one.framework, one.settings) != (default.framework, default.settings)
    ]
    if not found:
        return None
    return Plan(
        title="what a sweep found, against the default",
        factor="treatment",
        baseline=DEFAULT,
        treatments=(default, *found),
        allowed_to_differ=tuple(
            dict.fromkeys(
                [
                    *ALLOWED_TO_DIFFER,
                    *(one.field for one in dimensions),
                    *(one.name for one in dimensions),
                ]
            )
        ),
        tags={"sweep": sweep},
        own_inputs=True,
        rates_only=_unequal(base, dimensions, winners),
    )


def _unequal(
    base: CampaignSettings, dimensions: tuple[Dimension, ...], winners: Sequence[FrozenTrial]
) -> str:
    """Why the default and the winners are compared by rates alone; empty where they train equally much."""
    length = space.length(dimensions)
    return (
        length.difference(
            [length.batch_size, *(one.params["batch_size"] for one in winners)], base.margin
        )
        if length
        else ""
    )


def settings(base: CampaignSettings, found: Plan) -> CampaignSettings:
    """Of the campaign that judges winners: a seed that the search has not seen, and all frameworks and models in it."""
    frameworks = tuple(dict.fromkeys(one.framework for one in found.treatments))
    models = tuple(
        dict.fromkeys(
            one.settings["models"][0] for one in found.treatments if "models" in one.settings
        )
    )
    own: dict[str, Any] = {"models": models} if models else {}
    return dataclasses.replace(base, seed=base.seed + 1, frameworks=frameworks, **own)


def _treatment(
    name: str,
    study: str,
    base: CampaignSettings,
    dimensions: tuple[Dimension, ...],
    values: Mapping[str, Value],
) -> Treatment:
    first = dataclasses.replace(base, frameworks=base.frameworks[:1])
    found = point(
        study, space.defaults(first, dimensions) if not values else first, dimensions, values
    )
    return dataclasses.replace(found, name=name)

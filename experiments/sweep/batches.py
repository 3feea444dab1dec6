"""Batch sizes: the largest that fits, by halving; the best, by a campaign over all of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from experiments.config.settings import CampaignSettings
from experiments.planning.length import LENGTH
from experiments.run.plan import Plan
from experiments.sweep import search, space
from experiments.sweep.space import Dimension, Value
from experiments.sweep.trials import point
from tracking.errors import EvenhandError, UsageError

NAME = "batch_size"
REQUESTS = "inference_batch_sizes"


def dimension(dimensions: Sequence[Dimension], find: str) -> Dimension:
    for candidate in dimensions:
        if candidate.name == NAME:
            return candidate
    raise UsageError(f"find={find} looks along the batch size; write search=batch_size=8..256:log")


def others(dimensions: Sequence[Dimension]) -> list[dict[str, Value]]:
    """Return every combination of the settings that are searched besides the batch size."""
    return space.points([dimension for dimension in dimensions if dimension.name != NAME])


def most_steps(along: Dimension) -> int:
    """Return how many trials halving needs at most: log₂ of the sizes, and of none."""
    return math.ceil(math.log2(len(along.sizes()) + 1))


def find_largest(
    study: Study, dimensions: Sequence[Dimension], run: Callable[[Mapping[str, Value]], None]
) -> None:
    """Run trials until the largest size that fits is known for each combination."""
    along = dimension(dimensions, "max_batch")
    for combination in others(dimensions):
        while (size := _next(study, along, combination)) is not None:
            before = len(study.get_trials(deepcopy=False))
            run({**combination, NAME: size})
            for trial in study.get_trials(deepcopy=False)[before:]:
                if trial.state == TrialState.FAIL:
                    reason = trial.user_attrs.get("reason", "")
                    raise EvenhandError(
                        f"batch_size={size} failed for another reason than memory: {reason}"
                    )


def largest(
    study: Study, dimensions: Sequence[Dimension]
) -> list[tuple[dict[str, Value], FrozenTrial | None]]:
    """Return each combination with the trial of the largest size that fits, or None."""
    trials = []
    for combination in others(dimensions):
        fitting = [trial for trial in _complete(study, combination) if search.feasible(trial)]
        best = max(fitting, key=lambda trial: trial.params[NAME], default=None)
        trials.append((combination, best))
    return trials


def _next(study: Study, along: Dimension, combination: Mapping[str, Value]) -> int | None:
    fits, too_large = 0.0, math.inf
    for trial in _complete(study, combination):
        if search.feasible(trial):
            fits = max(fits, trial.params[NAME])
        else:
            too_large = min(too_large, trial.params[NAME])
    unknown = [size for size in along.sizes() if fits < size < too_large]
    return unknown[len(unknown) // 2] if unknown else None


def _complete(study: Study, combination: Mapping[str, Value]) -> list[FrozenTrial]:
    return [
        trial
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if combination.items() <= trial.params.items()
    ]


def plan(study: str, base: CampaignSettings, dimensions: tuple[Dimension, ...]) -> Plan:
    """Return the campaign of every batch size in every framework. Raises UsageError."""
    along = dimension(dimensions, "best_batch")
    for other in dimensions:
        if other.name not in (NAME, "framework"):
            raise UsageError(
                f"find=best_batch varies batch_size and framework only; give {other.name} a "
                "single value"
            )
    sizes = list(map(int, along.grid()))
    cells = []
    for framework in base.frameworks:
        single = dataclasses.replace(base, frameworks=(framework,))
        for size in sizes:
            cell = point(study, single, (along,), {NAME: size})
            # Requests have the size of the steps.
            requests = {REQUESTS: (size,)} if hasattr(base, REQUESTS) else {}
            cells.append(
                dataclasses.replace(
                    cell,
                    name=f"{framework} · batch {size}",
                    settings={**cell.settings, **requests},
                    group=framework,
                )
            )
    levels = [str(size) for size in sizes]
    default = str(getattr(base, NAME, ""))
    return Plan(
        title="batch sizes",
        factor=NAME,
        baseline=default if default in levels else levels[0],
        treatments=tuple(cells),
        strata=("framework",),
        allowed_to_differ=(along.field, REQUESTS, "batch_sizes", *LENGTH),
        tags={"find": "best_batch"},
        own_inputs=True,
        along=NAME,
        rates_only=along.length.difference(sizes, base.margin) if along.length else "",
    )

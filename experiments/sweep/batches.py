"""Which batch size: the largest that fits, by halving the interval; the best, by a campaign over all of them."""

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
from tracking.errors import EvenhandError, WrongCall

NAME = "batch_size"
REQUESTS = "inference_batch_sizes"


def dimension(dimensions: Sequence[Dimension], find: str) -> Dimension:
    """The searched batch size. Raises WrongCall where it is not among what is searched."""
    found = next((one for one in dimensions if one.name == NAME), None)
    if found is None:
        raise WrongCall(
            f"find={find} looks along the batch size; write search=batch_size=8..256:log"
        )
    return found


def most_steps(along: Dimension) -> int:
    """Trials that halving needs at most, for each combination of what else is searched: log₂ of the sizes, and of none."""
    return math.ceil(math.log2(len(along.sizes()) + 1))


def find_largest(
    study: Study, dimensions: Sequence[Dimension], try_one: Callable[[Mapping[str, Value]], None]
) -> None:
    """For each combination of what else is searched, trials until the largest size that fits is known."""
    along = dimension(dimensions, "max_batch")
    for others in space.points([one for one in dimensions if one.name != NAME]):
        while (size := _next(study, along, others)) is not None:
            before = len(study.get_trials(deepcopy=False))
            try_one({**others, NAME: size})
            failed = [
                one
                for one in study.get_trials(deepcopy=False)[before:]
                if one.state == TrialState.FAIL
            ]
            if failed:
                raise EvenhandError(
                    f"batch_size={size} failed for another reason than memory: {failed[-1].user_attrs.get('reason', '')}"
                )


def largest(
    study: Study, dimensions: Sequence[Dimension]
) -> list[tuple[dict[str, Value], FrozenTrial | None]]:
    """What else was searched → the trial of the largest size that fits, None where none does."""
    along = dimension(dimensions, "max_batch")
    found = []
    for others in space.points([one for one in dimensions if one.name != NAME]):
        fitting = [one for one in _ended(study, others) if search.feasible(one)]
        found.append((others, max(fitting, key=lambda one: one.params[along.name], default=None)))
    return found


def _next(study: Study, along: Dimension, others: Mapping[str, Value]) -> int | None:
    """The middle of what is not known yet; None where all is."""
    ended = _ended(study, others)
    fits = max((one.params[NAME] for one in ended if search.feasible(one)), default=0)
    too_large = min(
        (one.params[NAME] for one in ended if not search.feasible(one)), default=math.inf
    )
    open_ = [size for size in along.sizes() if fits < size < too_large]
    return open_[len(open_) // 2] if open_ else None


def _ended(study: Study, others: Mapping[str, Value]) -> list[FrozenTrial]:
    return [
        one
        for one in study.get_trials(deepcopy=False)
        if one.state == TrialState.COMPLETE
        and all(one.params.get(name) == value for name, value in others.items())
    ]


def plan(study: str, base: CampaignSettings, dimensions: tuple[Dimension, ...]) -> Plan:
    """Every batch size in every framework, in blocks; requests have the size of the steps. Raises WrongCall."""
    along = dimension(dimensions, "best_batch")
    others = [one for one in dimensions if one.name not in (NAME, "framework")]
    if others:
        raise WrongCall(
            f"find=best_batch varies batch_size and framework alone; give {others[0].name} a single value"
        )
    found = []
    for framework in base.frameworks:
        for size in map(int, along.grid()):
            own = space.settled(
                dataclasses.replace(base, frameworks=(framework,)), (along,), {NAME: size}
            )
            cell = point(study, own, (along,), {NAME: size})
            requests = {REQUESTS: (size,)} if hasattr(own, REQUESTS) else {}
            settings = {**cell.settings, **requests}
            found.append(
                dataclasses.replace(
                    cell, name=f"{framework} · batch {size}", settings=settings, group=framework
                )
            )
    levels = [str(size) for size in along.grid()]
    default = str(getattr(base, NAME, ""))
    return Plan(
        title="batch sizes",
        factor=NAME,
        baseline=default if default in levels else levels[0],
        treatments=tuple(found),
        strata=("framework",),
        allowed_to_differ=(along.field, REQUESTS, "batch_sizes", *LENGTH),
        tags={"find": "best_batch"},
        own_inputs=True,
        along=NAME,
        rates_only=along.length.difference(map(int, along.grid()), base.margin)
        if along.length
        else "",
    )

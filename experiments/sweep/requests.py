"""Request of a search: its settings, parsed and checked as far as possible without a server."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments import studies
from experiments.config import settings
from experiments.config.settings import CampaignSettings
from experiments.metrics import BY_EPOCH, PER_STEP
from experiments.planning import length
from experiments.run import resume
from experiments.sweep import goals, space
from experiments.sweep.search import Goal
from experiments.sweep.settings import Sweep
from experiments.sweep.trials import point
from tracking.errors import ErrorCode, UsageError

TRAINING_SECONDS = "training_seconds"
CHANGED_ON_RESUME = frozenset({"trials", "storage", "confirm", "heartbeat_seconds"})


@dataclass(frozen=True)
class SweepRequest:
    """Settings of a search, the settings that all its trials share, and its goal."""

    sweep: Sweep
    base: CampaignSettings
    goal: Goal

    @property
    def trials(self) -> int:
        """Number of trials; a grid may have fewer points than requested."""
        if self.sweep.sampler != "grid":
            return self.sweep.trials
        points = math.prod(len(dimension.grid()) for dimension in self.goal.dimensions)
        return min(self.sweep.trials, points)


def parse(sweep: Sweep, texts: Mapping[str, str]) -> SweepRequest:
    """Parse and check a request.

    Args:
        sweep: Settings of the search.
        texts: The experiment's settings as the user wrote them.

    Raises:
        UsageError: The request cannot be carried out.
    """
    module = studies.load(sweep.experiment)
    # A preset may let cells take turns, or shorten their training; a trial is a single cell.
    of_trials = {"pairing": "sequential"}
    if hasattr(module.settings, TRAINING_SECONDS):
        of_trials[TRAINING_SECONDS] = "0"
    base = studies.parse_settings(module, {**of_trials, **texts})
    unsupported = {
        "aa": base.aa,
        "inject_delay": base.inject_delay,
        "vary": base.vary,
        "levels": base.levels,
        "pairing": base.pairing != "sequential",
        "nodes": base.on_cluster and base.nodes_of_a_job > 1,
        # It shortens cells by the speed of all frameworks.
        TRAINING_SECONDS: getattr(base, TRAINING_SECONDS, 0),
    }
    for name, is_requested in unsupported.items():
        if is_requested:
            raise UsageError(
                ErrorCode.UNSUPPORTED,
                f"{name}: a trial is a single cell here; set it in a campaign of the experiment",
            )
    if base.on_cluster and base.nodes > 1 and not sweep.storage.startswith("postgresql"):
        raise UsageError(
            ErrorCode.MISSING_VALUE,
            f"executor=slurm: workers on {base.nodes} nodes share a database; "
            f"add storage=postgresql://user@host/database",
        )
    goal = _goal(sweep)
    for dimension in goal.dimensions:
        for value in dimension.extremes:
            settings.check(space.settled(base, (dimension,), {dimension.name: value}))
        if sweep.sampler == "grid":
            dimension.grid()  # raises for a continuous range
    searched = {dimension.field: dimension.choices for dimension in goal.dimensions}
    if searched.get("frameworks"):
        base = dataclasses.replace(base, frameworks=tuple(map(str, searched["frameworks"])))
    elif "frameworks" not in texts:
        base = dataclasses.replace(base, frameworks=base.frameworks[:1])
    metrics = [objective.metric for objective in goal.objectives]
    if sweep.pruner != "none" and (len(metrics) != 1 or metrics[0] not in BY_EPOCH):
        raise UsageError(
            ErrorCode.CONFLICT,
            f"pruner={sweep.pruner}: it needs a single objective with a value every epoch; "
            f"take loss, accuracy or train/loss, not {', '.join(metrics)}",
        )
    first = {dimension.name: dimension.extremes[0] for dimension in goal.dimensions}
    point(sweep.experiment, base, goal.dimensions, first)  # raises for several cells
    return SweepRequest(sweep, base, goal)


def _goal(sweep: Sweep) -> Goal:
    module = studies.load(sweep.experiment)
    return Goal(
        space.parse(sweep.search, module.settings),
        goals.objectives(sweep.objectives, module.outcomes),
        goals.constraints(sweep.constraints, module.outcomes),
    )


def with_length(request: SweepRequest, counts: Mapping[str, int]) -> SweepRequest:
    """Return the request with the length of training at each batch size. counts: of its data."""
    dimensions = request.goal.dimensions
    fields = {dimension.field for dimension in dimensions}
    trained = length.of(studies.load(request.sweep.experiment), request.base, counts, fields)
    if not trained:
        return request
    dimensions = tuple(
        dataclasses.replace(dimension, length=trained)
        if dimension.name == "batch_size"
        else dimension
        for dimension in dimensions
    )
    goal = dataclasses.replace(request.goal, dimensions=dimensions)
    return dataclasses.replace(request, goal=goal)


def check_rates(request: SweepRequest) -> None:
    """Raise UsageError for a metric that other batch sizes or lengths of training change."""
    margin = request.base.margin
    for dimension in request.goal.dimensions:
        steps = [metric for metric in request.goal.metrics if PER_STEP in metric]
        if dimension.name == "batch_size" and steps:
            raise UsageError(
                ErrorCode.CONFLICT,
                f"objectives, constraints: {steps[0]} of other batch sizes is of other numbers of "
                "examples. Take throughput",
            )
        if dimension.length is None:
            continue
        is_grid = request.sweep.sampler == "grid"
        sizes = list(map(int, dimension.grid())) if is_grid else dimension.sizes()
        difference = dimension.length.difference(sizes, margin)
        totals = [metric for metric in request.goal.metrics if not length.is_rate(metric)]
        if difference and totals:
            raise UsageError(
                ErrorCode.CONFLICT,
                f"objectives, constraints: {totals[0]} depends on the length of training; "
                f"{difference}. Take throughput, latency or memory",
            )


def resumed(stored: Mapping[str, Any], sweep: Sweep, texts: Mapping[str, str]) -> SweepRequest:
    """Return the request of the beginning with the changes that a resumption may make.

    Raises:
        UsageError: for another change.
    """
    before = settings.from_values(Sweep, stored["sweep"])
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(Sweep):
        old, new = getattr(before, field.name), getattr(sweep, field.name)
        if new in (old, field.default):
            continue
        if field.name not in CHANGED_ON_RESUME:
            raise UsageError(
                ErrorCode.CHANGED,
                f"resume: {field.name}={new} was {old} at the beginning; start a new sweep",
            )
        changes[field.name] = new
    overrides = {name: text for name, text in texts.items() if name != "resume"}
    base = resume.same_settings(before.experiment, stored["settings"], overrides)
    request = dataclasses.replace(before, **changes)
    return SweepRequest(request, base, _goal(request))

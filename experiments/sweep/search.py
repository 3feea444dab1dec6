"""Storage, samplers and pruners of Optuna, and trials run by several workers."""

from __future__ import annotations

import importlib.util
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import optuna
from optuna.distributions import IntDistribution
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, GridSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from experiments.run.scheduler import CellResult
from experiments.sweep.goals import Constraint, Objective
from experiments.sweep.space import Dimension, Value
from tracking.errors import ErrorCode, EvenhandError, UsageError
from tracking.records import RunOutcome

optuna.logging.set_verbosity(optuna.logging.ERROR)

FITS = "fits in memory"
WAIT_SECONDS = 0.5
STALE_AFTER = 3  # heartbeats that a worker may miss before another runs its trial
FAILURES_TO_END = 3

SAMPLERS: dict[str, Callable[[Sequence[Dimension], int], BaseSampler]] = {
    "tpe": lambda _, seed: TPESampler(seed=seed, multivariate=True, group=True),
    "nsga-ii": lambda _, seed: NSGAIISampler(seed=seed, population_size=16),
    "random": lambda _, seed: RandomSampler(seed=seed),
    # Its seed gives each point its number, which must be the same for all workers.
    "grid": lambda dimensions, _: GridSampler(
        {dimension.name: list(dimension.grid()) for dimension in dimensions}, seed=0
    ),
}
PRUNERS: dict[str, Callable[[int], BasePruner]] = {
    "none": lambda _: NopPruner(),
    "median": lambda _: MedianPruner(n_startup_trials=4, n_warmup_steps=1),
    "hyperband": lambda epochs: HyperbandPruner(min_resource=1, max_resource=max(1, epochs)),
}


class TrialFailed(EvenhandError):
    """Error of one trial; the search goes on."""


@dataclass(frozen=True)
class Goal:
    dimensions: tuple[Dimension, ...]
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        metrics = [objective.metric for objective in self.objectives]
        return (*metrics, *(bound.metric for bound in self.constraints))


def open_storage(url: str, heartbeat_seconds: int) -> RDBStorage:
    """Open a database; a trial whose worker has no heartbeat is run again by another.

    Raises:
        UsageError: The address has a password, or the database cannot be used.
    """
    # The process belongs to the sweep.
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    if urlsplit(url).password:
        raise UsageError(
            ErrorCode.INVALID_VALUE,
            "storage: logs would show the address's password; leave it out and set PGPASSWORD",
        )
    if url.startswith("postgresql://") and importlib.util.find_spec("psycopg") is None:
        url = url.replace("postgresql://", "postgresql+psycopg2://", 1)
    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith("sqlite"):
        # By default SQLite waits 5 s for other writers.
        options = {"connect_args": {"timeout": 60}}
    try:
        return RDBStorage(
            url,
            engine_kwargs=options,
            heartbeat_interval=heartbeat_seconds,
            grace_period=STALE_AFTER * heartbeat_seconds,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
        )
    except (ImportError, SQLAlchemyError, ValueError, OSError, RuntimeError) as error:
        reason = " ".join(str(getattr(error, "orig", None) or error).split())[:200]
        right = "write postgresql://user@host/database (it needs the extra 'postgresql')"
        raise UsageError(
            ErrorCode.UNREACHABLE,
            f"storage={url} cannot be used: {reason}; {right}",
        ) from None


def create(storage: RDBStorage, name: str, goal: Goal) -> Study:
    directions: list[Literal["minimize", "maximize"]] = [
        "maximize" if objective.direction == "max" else "minimize" for objective in goal.objectives
    ]
    study = optuna.create_study(storage=storage, study_name=name, directions=directions)
    study.set_metric_names([objective.metric for objective in goal.objectives])
    return study


def load(storage: RDBStorage, name: str) -> Study:
    """Return the study of that name, or the newest for `last`. Raises UsageError."""
    names = optuna.get_all_study_names(storage)
    if name == "last" and names:
        name = names[-1]
    if name not in names:
        have = ", ".join(names[-5:]) or "none"
        raise UsageError(
            ErrorCode.NOT_FOUND,
            f"resume: no sweep {name} in that storage; have {have}",
        )
    return optuna.load_study(study_name=name, storage=storage)


def run_until(
    study: Study, count: int, run: Callable[[Trial], Sequence[float]], waiting: Callable[[], None]
) -> None:
    """Run trials until all workers together have `count`; run again what a dead worker left.

    Args:
        study: Optuna's study.
        count: Number of trials.
        run: Runs a trial and returns its values.
        waiting: Called while other workers run the last trials; it may raise.
    """
    while True:
        optuna.storages.fail_stale_trials(study)
        trials = study.get_trials(deepcopy=False)
        states = {trial.state for trial in trials}
        if TrialState.WAITING in states or len(counted(trials)) < count:
            study.optimize(run, n_trials=1, catch=(TrialFailed,))
            _check_failures(study)
        elif TrialState.RUNNING in states:
            waiting()
            time.sleep(WAIT_SECONDS)
        else:
            return


def counted(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials without those that were run again under a new number."""
    retried = {
        number
        for trial in trials
        for number in RetryHeartbeatStaleTrialCallback.retry_history(trial)
    }
    return [trial for trial in trials if trial.number not in retried]


def suggest(trial: Trial, dimensions: Sequence[Dimension]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for dimension in dimensions:
        name, kind = dimension.name, dimension.distribution
        if dimension.choices:
            values[name] = cast(Value, trial.suggest_categorical(name, dimension.choices))
        else:
            is_whole = isinstance(kind, IntDistribution)
            draw: Any = trial.suggest_int if is_whole else trial.suggest_float
            values[name] = draw(name, kind.low, kind.high, step=kind.step, log=kind.log)
    return values


def answer(trial: Trial, goal: Goal, result: CellResult) -> list[float]:
    """Return a cell's result as Optuna's values. Raises TrialPruned or TrialFailed."""
    if result.outcome == RunOutcome.PRUNED:
        raise optuna.TrialPruned(result.reason)
    is_out_of_memory = result.outcome == RunOutcome.OUT_OF_MEMORY
    if not (result.ok or is_out_of_memory):
        raise TrialFailed(ErrorCode.CHILD_FAILED, result.reason)
    trial.set_constraint(FITS, 1.0 if is_out_of_memory else -1.0)
    if is_out_of_memory:
        return [objective.worst for objective in goal.objectives]
    for bound in goal.constraints:
        trial.set_constraint(bound.text, bound.violation(result.metrics[bound.metric]))
    return [result.metrics[objective.metric] for objective in goal.objectives]


def has_finite_values(trial: FrozenTrial) -> bool:
    """Return whether the trial has values; those of one that ran out of memory are infinite."""
    return trial.state == TrialState.COMPLETE and all(map(math.isfinite, trial.values))


def best(study: Study) -> list[FrozenTrial]:
    """Return the feasible trials that no other surpasses, the first objective's best first.

    Of several trials with the same settings, only the first; of one objective, only the best.
    """
    rises = study.directions[0] == optuna.study.StudyDirection.MAXIMIZE
    ordered = sorted(study.best_trials, key=lambda trial: trial.values[0], reverse=rises)
    if len(study.directions) == 1:
        return ordered[:1]
    different: dict[str, FrozenTrial] = {}
    for trial in ordered:
        different.setdefault(repr(sorted(trial.params.items())), trial)
    return list(different.values())


def _check_failures(study: Study) -> None:
    finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    is_failed = [
        trial.state == TrialState.FAIL and "reason" in trial.user_attrs for trial in finished
    ]
    if all(is_failed) and len(finished) >= FAILURES_TO_END:
        reason = finished[-1].user_attrs["reason"]
        raise EvenhandError(
            ErrorCode.CHILD_FAILED,
            f"the first {len(finished)} trials all failed, the last with: {reason}",
        )

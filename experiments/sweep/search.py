"""Optuna's part of a sweep: its storage, samplers and pruners by name, and trials worked off until there are enough."""

from __future__ import annotations

import importlib.util
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import optuna
from optuna.pruners import (
    BasePruner,
    HyperbandPruner,
    MedianPruner,
    NopPruner,
    SuccessiveHalvingPruner,
)
from optuna.samplers import BaseSampler, GridSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from experiments.sweep.goals import Constraint, Objective
from experiments.sweep.space import Dimension, Value
from tracking.errors import EvenhandError, WrongCall
from tracking.records import RunOutcome

optuna.logging.set_verbosity(optuna.logging.ERROR)

SURPLUS = "surplus"
FITS = "fits in memory"
WAIT_SECONDS = 0.5
STALE_AFTER = 3  # heartbeats that a worker may miss before its trial is given to another
NONE_SUCCEEDED = 3

SAMPLERS: dict[str, Callable[[Sequence[Dimension], int], BaseSampler]] = {
    "tpe": lambda _, seed: TPESampler(seed=seed, multivariate=True, group=True),
    "nsga-ii": lambda _, seed: NSGAIISampler(seed=seed, population_size=16),
    "random": lambda _, seed: RandomSampler(seed=seed),
    # Its seed says which point has which number, which all workers must see alike.
    "grid": lambda dimensions, _: GridSampler(
        {one.name: list(one.grid()) for one in dimensions}, seed=0
    ),
}
PRUNERS: dict[str, Callable[[int], BasePruner]] = {
    "none": lambda _: NopPruner(),
    "median": lambda _: MedianPruner(n_startup_trials=4, n_warmup_steps=1),
    "hyperband": lambda epochs: HyperbandPruner(min_resource=1, max_resource=max(1, epochs)),
    "halving": lambda _: SuccessiveHalvingPruner(),
}


class TrialFailed(EvenhandError):
    """One trial ended with an error; the search goes on."""


@dataclass(frozen=True)
class Result:
    """Result of one trial's process. run: its run in the journal; reason: why it is not `ok`."""

    run: str
    outcome: RunOutcome = RunOutcome.OK
    reason: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Goal:
    """What the trials of a search are asked. along: the setting whose largest value is searched for, instead of objectives."""

    dimensions: tuple[Dimension, ...]
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...] = ()
    along: str = ""

    @property
    def metrics(self) -> tuple[str, ...]:
        return (*(one.metric for one in self.objectives), *(one.metric for one in self.constraints))


def open_storage(url: str, heartbeat_seconds: int) -> RDBStorage:
    """The database behind a URL; trials whose worker stops beating are run again by another. Raises WrongCall."""
    warnings.simplefilter(
        "ignore", optuna.exceptions.ExperimentalWarning
    )  # of this process, which is a sweep's own
    if urlsplit(url).password:
        raise WrongCall(
            "storage: a password in the address ends in logs and process lists; leave it out and set PGPASSWORD"
        )
    if url.startswith("postgresql://") and importlib.util.find_spec("psycopg") is None:
        url = url.replace("postgresql://", "postgresql+psycopg2://", 1)
    try:
        return RDBStorage(
            url,
            # SQLite refuses what others are writing after 5 s, and workers come and go together.
            engine_kwargs={"connect_args": {"timeout": 60}}
            if url.startswith("sqlite")
            else {"pool_pre_ping": True},
            heartbeat_interval=heartbeat_seconds,
            grace_period=STALE_AFTER * heartbeat_seconds,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
        )
    except ImportError as error:
        raise WrongCall(
            f"storage={url}: {error}; pip install -c constraints.txt -e '.[postgresql]'"
        ) from None
    except (SQLAlchemyError, ValueError, OSError, RuntimeError) as error:
        raise WrongCall(
            f"storage={url} cannot be used: {_in_a_line(error)}; write postgresql://user@host/database"
        ) from None


def sampler(name: str, dimensions: Sequence[Dimension], seed: int) -> BaseSampler:
    """Create Optuna's sampler of that name."""
    return SAMPLERS[name](dimensions, seed % 2**31)


def pruner(name: str, epochs: int) -> BasePruner:
    """Create Optuna's pruner of that name, for trials of n epochs."""
    return PRUNERS[name](epochs)


def create(storage: RDBStorage, name: str, goal: Goal, attributes: Mapping[str, Any]) -> Study:
    """A new Optuna study. Raises WrongCall where the storage does not take it."""
    directions: list[Literal["minimize", "maximize"]] = [
        "maximize" if one.direction == "max" else "minimize" for one in goal.objectives
    ] or ["maximize"]
    try:
        study = optuna.create_study(storage=storage, study_name=name, directions=directions)
        study.set_metric_names([one.metric for one in goal.objectives] or [goal.along])
        for key, value in attributes.items():
            study.set_user_attr(key, value)
    except SQLAlchemyError as error:
        raise WrongCall(f"storage: the search cannot be kept there: {_in_a_line(error)}") from None
    return study


def load(storage: RDBStorage, name: str) -> Study:
    """The study of that name, or the newest one for `last`. Raises WrongCall."""
    names = optuna.get_all_study_names(storage)
    wanted = names[-1] if name == "last" and names else name
    if wanted not in names:
        raise WrongCall(
            f"resume: no sweep {name} in that storage; have {', '.join(names[-5:]) or 'none'}"
        )
    return optuna.load_study(study_name=wanted, storage=storage)


def run_until(
    study: Study, count: int, run: Callable[[Trial], Sequence[float]], waiting: Callable[[], None]
) -> None:
    """Trials until there are `count`, whoever runs them; what another worker dropped is run again.

    waiting: called while the last ones run elsewhere; it may raise.
    """

    def objective(trial: Trial) -> Sequence[float]:
        before = [one for one in study.get_trials(deepcopy=False) if one.number < trial.number]
        wanted = {"retry_history", "fixed_params"} & set(_frozen(study, trial).system_attrs)
        if not wanted and len(counted(before)) >= count:
            trial.set_user_attr(SURPLUS, value=True)  # another worker asked at the same moment
            raise TrialFailed("one more than was wanted")
        return run(trial)

    while True:
        optuna.storages.fail_stale_trials(study)
        trials = study.get_trials(deepcopy=False)
        states = {one.state for one in trials}
        if TrialState.WAITING in states or len(counted(trials)) < count:
            study.optimize(objective, n_trials=1, catch=(TrialFailed,))
            _check_hope(study)
        elif TrialState.RUNNING in states:
            waiting()
            time.sleep(WAIT_SECONDS)
        else:
            return


def counted(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Trials that use up the number wanted: not those that are run again under a new number, nor those one too many."""
    again = {
        number for one in trials for number in RetryHeartbeatStaleTrialCallback.retry_history(one)
    }
    return [one for one in trials if one.number not in again and not one.user_attrs.get(SURPLUS)]


def requeue(study: Study, trial: Trial) -> None:
    """A trial that was stopped from outside waits to be run again."""
    RetryHeartbeatStaleTrialCallback()(study, _frozen(study, trial))


def original_number(study: Study, trial: Trial) -> int:
    """Return the number under which a trial was first run."""
    return min(
        [trial.number, *RetryHeartbeatStaleTrialCallback.retry_history(_frozen(study, trial))]
    )


def suggest(trial: Trial, dimensions: Sequence[Dimension]) -> dict[str, Value]:
    """Values of the settings that Optuna wants tried next."""
    found: dict[str, Value] = {}
    for one in dimensions:
        if one.choices:
            found[one.name] = cast(Value, trial.suggest_categorical(one.name, one.choices))
        elif one.whole:
            found[one.name] = trial.suggest_int(
                one.name, int(one.low), int(one.high), step=int(one.step or 1), log=one.log
            )
        else:
            found[one.name] = trial.suggest_float(
                one.name, one.low, one.high, step=one.step, log=one.log
            )
    return found


def answer(trial: Trial, goal: Goal, result: Result) -> list[float]:
    """A process's result as Optuna takes it. Raises TrialPruned, TrialFailed; WrongCall where a metric is not there."""
    if result.outcome == RunOutcome.PRUNED:
        raise optuna.TrialPruned(result.reason)
    if result.outcome not in (RunOutcome.OK, RunOutcome.OUT_OF_MEMORY):
        raise TrialFailed(result.reason)
    trial.set_constraint(FITS, 1.0 if result.outcome == RunOutcome.OUT_OF_MEMORY else -1.0)
    if result.outcome == RunOutcome.OUT_OF_MEMORY:
        return [one.worst for one in goal.objectives] or [-math.inf]
    for one in goal.constraints:
        trial.set_constraint(one.text, one.violation(result.metrics[one.metric]))
    return [result.metrics[one.metric] for one in goal.objectives] or [
        float(trial.params[goal.along])
    ]


def feasible(trial: FrozenTrial) -> bool:
    """Whether the trial fitted into memory and kept every constraint."""
    return trial.state == TrialState.COMPLETE and all(
        value <= 0 for value in trial.constraints.values()
    )


def has_finite_values(trial: FrozenTrial) -> bool:
    """Return whether the trial ended with values; one that ran out of memory has infinite ones."""
    return trial.state == TrialState.COMPLETE and all(map(math.isfinite, trial.values))


def best(study: Study) -> list[FrozenTrial]:
    """The best trial, or those that none surpasses in every objective, the first objective's best first. Feasible ones alone,
    and of several with the same settings the first.
    """
    rises = study.directions[0] == optuna.study.StudyDirection.MAXIMIZE
    ordered = sorted(study.best_trials, key=lambda trial: trial.values[0], reverse=rises)
    if len(study.directions) == 1:
        return ordered[:1]
    different: dict[str, FrozenTrial] = {}
    for trial in ordered:
        different.setdefault(repr(sorted(trial.params.items())), trial)
    return list(different.values())


def sqlite(path: Path) -> str:
    return f"sqlite:///{path}"


def _check_hope(study: Study) -> None:
    """Raises EvenhandError when nothing but failures came of the first trials."""
    ended = [
        one
        for one in study.get_trials(deepcopy=False)
        if one.state.is_finished() and not one.user_attrs.get(SURPLUS)
    ]
    failed = [one for one in ended if one.state == TrialState.FAIL and "reason" in one.user_attrs]
    if len(failed) == len(ended) >= NONE_SUCCEEDED:
        raise EvenhandError(
            f"the first {len(failed)} trials all failed, the last with: {failed[-1].user_attrs['reason']}"
        )


def _frozen(study: Study, trial: Trial) -> FrozenTrial:
    return study.get_trials(deepcopy=False)[trial.number]


def _in_a_line(error: BaseException) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())[:200]

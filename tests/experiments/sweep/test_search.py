"""Optuna's part of a sweep: numbers of trials, trials of dead workers, pruners."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import Trial, TrialState

from experiments.run.scheduler import CellResult
from experiments.studies import captioning
from experiments.sweep import goals, search, space
from experiments.sweep.search import Goal, TrialFailed
from tracking.errors import ErrorCode, EvenhandError, UsageError
from tracking.records import RunOutcome

OUT_OF_MEMORY = CellResult(RunOutcome.OUT_OF_MEMORY)


def make_goal(
    text: str = "batch_size=1..64:log", objectives: str = "throughput:max", constraints: str = ""
) -> Goal:
    outcomes = captioning.STUDY.outcomes
    return Goal(
        space.parse(text, captioning.Settings),
        goals.objectives(objectives, outcomes),
        goals.constraints(constraints, outcomes),
    )


def open_storage(folder: Path) -> RDBStorage:
    return search.open_storage(f"sqlite:///{folder / 'optuna.db'}", 1)


def make_study(folder: Path, goal: Goal, sampler: str = "tpe") -> optuna.Study:
    study = search.create(open_storage(folder), "trial", goal)
    study.sampler = search.SAMPLERS[sampler](goal.dimensions, 0)
    return study


def refuse_waiting() -> None:
    raise AssertionError("no other worker runs")


def result(value: float, memory: float = 1e9) -> CellResult:
    metrics = {"train/examples_per_second": value, "memory/peak_rss_bytes": memory}
    return CellResult(RunOutcome.OK, metrics=metrics)


def runner(goal: Goal, measure: Callable[[int], CellResult]) -> Callable[[Trial], Sequence[float]]:
    """Return a function that runs a trial: its result follows from the batch size."""

    def run(trial: Trial) -> Sequence[float]:
        values = search.suggest(trial, goal.dimensions)
        return search.answer(trial, goal, measure(int(values["batch_size"])))

    return run


@pytest.mark.parametrize("sampler", sorted(search.SAMPLERS))
def test_samplers_run_the_requested_number_of_trials(tmp_path: Path, sampler: str) -> None:
    goal = make_goal("batch_size=1..64:log,dropout=0..0.4:0.2")
    study = make_study(tmp_path, goal, sampler)
    search.run_until(study, 4, runner(goal, lambda size: result(float(size))), refuse_waiting)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 4
    largest = max(trial.params["batch_size"] for trial in study.trials)
    assert search.best(study)[0].values[0] == largest


def test_infeasible_trials_are_results_but_never_the_best(tmp_path: Path) -> None:
    goal = make_goal("batch_size=8|16|32|64", constraints="memory<2GB")
    study = make_study(tmp_path, goal, "grid")
    run = runner(goal, lambda size: result(size, size * 1e8) if size < 64 else OUT_OF_MEMORY)
    search.run_until(study, 4, run, refuse_waiting)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    feasible = {
        trial.params["batch_size"] for trial in study.trials if max(trial.constraints.values()) <= 0
    }
    assert feasible == {8, 16}
    assert [trial.params["batch_size"] for trial in search.best(study)] == [16]


def test_only_failures_end_the_search(tmp_path: Path) -> None:
    goal = make_goal()
    study = make_study(tmp_path, goal)
    succeed = runner(goal, lambda _: result(1.0))

    def fail(trial: Trial) -> Sequence[float]:
        trial.set_user_attr("reason", "no such file")
        raise TrialFailed(ErrorCode.CHILD_FAILED, "no such file")

    search.run_until(
        study, 4, lambda trial: (fail if trial.number == 1 else succeed)(trial), refuse_waiting
    )
    states = [trial.state for trial in study.trials]
    complete = TrialState.COMPLETE
    assert states == [complete, TrialState.FAIL, complete, complete]
    hopeless = search.create(open_storage(tmp_path), "hopeless", goal)
    with pytest.raises(EvenhandError) as error:
        search.run_until(hopeless, 10, fail, refuse_waiting)
    assert error.value.code is ErrorCode.CHILD_FAILED
    assert len(hopeless.trials) == 3
    assert "no such file" in str(error.value)


def test_trials_of_dead_workers_are_run_again_and_count_once(tmp_path: Path) -> None:
    goal = make_goal("batch_size=1..64:log,dropout=0..0.4:0.2")
    study = make_study(tmp_path, goal, "grid")
    dropped = study.ask()
    values = search.suggest(dropped, goal.dimensions)
    open_storage(tmp_path).record_heartbeat(dropped._trial_id)  # its worker dies after this
    waited: list[float] = []
    run = runner(goal, lambda _: result(1.0))
    search.run_until(study, 3, run, lambda: waited.append(time.monotonic()))
    assert waited, "until the heartbeat is stale"
    counted = search.counted(study.trials)
    assert [trial.state for trial in counted] == [TrialState.COMPLETE] * 3
    assert values in [trial.params for trial in counted]
    assert study.trials[dropped.number].state == TrialState.FAIL


def test_unusable_storage_is_refused(tmp_path: Path) -> None:
    for url, code in {
        f"sqlite:///{tmp_path}/no/where.db": ErrorCode.UNREACHABLE,
        "postgresql://nobody@127.0.0.1:9/x": ErrorCode.UNREACHABLE,
        "postgresql://nobody:secret@127.0.0.1:9/x": ErrorCode.INVALID_VALUE,
        "nonsense": ErrorCode.UNREACHABLE,
    }.items():
        with pytest.raises(UsageError) as error:
            search.open_storage(url, 1)
        assert error.value.code is code
        assert "\n" not in str(error.value)
        assert "secret" not in str(error.value)


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_pruner_ends_trials_that_are_worse(pruner: str) -> None:
    epochs = 9
    study = optuna.create_study(
        study_name="losses",
        sampler=search.SAMPLERS["random"]((), 0),
        pruner=search.PRUNERS[pruner](epochs),
    )

    def train(trial: Trial) -> float:
        loss = trial.suggest_float("loss", 0.0, 1.0)
        for epoch in range(1, epochs):
            trial.report(loss, epoch)
            if trial.should_prune():
                outcome = CellResult(RunOutcome.PRUNED, reason=f"epoch {epoch}")
                search.answer(trial, make_goal(objectives="loss"), outcome)
        return loss

    study.optimize(train, n_trials=30)
    losses = [trial.params["loss"] for trial in study.trials if trial.state == TrialState.PRUNED]
    assert losses
    assert study.best_value < min(losses)

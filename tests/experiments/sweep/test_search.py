"""Optuna's part of a sweep: numbers of trials, trials of dead workers, the largest batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import Trial, TrialState

from experiments.studies import captioning
from experiments.sweep import batches, goals, search, space
from experiments.sweep.search import Goal, Result, TrialFailed
from tracking.errors import EvenhandError, UsageError
from tracking.records import RunOutcome


def goal(
    text: str = "batch_size=1..64:log", objectives: str = "throughput:max", constraints: str = ""
) -> Goal:
    outcomes = captioning.STUDY.outcomes
    return Goal(
        space.parse(text, captioning.Settings),
        goals.objectives(objectives, outcomes),
        goals.constraints(constraints, outcomes),
    )


def storage(folder: Path, heartbeat_seconds: int = 1) -> RDBStorage:
    return search.open_storage(f"sqlite:///{folder / 'optuna.db'}", heartbeat_seconds)


def study(
    folder: Path, target: Goal, sampler: str = "tpe", heartbeat_seconds: int = 1
) -> optuna.Study:
    made = search.create(storage(folder, heartbeat_seconds), "trial", target, {"x": 1})
    made.sampler = search.SAMPLERS[sampler](target.dimensions, 0)
    return made


def no_waiting() -> None:
    raise AssertionError("nobody else is at work")


def result(value: float, memory: float = 1e9) -> Result:
    return Result(
        "run", metrics={"train/examples_per_second": value, "memory/peak_rss_bytes": memory}
    )


@pytest.mark.parametrize("sampler", sorted(search.SAMPLERS))
def test_samplers_run_the_requested_number_of_trials(tmp_path: Path, sampler: str) -> None:
    target = goal("batch_size=1..64:log,dropout=0..0.4:0.2")
    made = study(tmp_path, target, sampler)

    def run(trial: Trial) -> Sequence[float]:
        values = search.suggest(trial, target.dimensions)
        return search.answer(trial, target, result(float(values["batch_size"])))

    search.run_until(made, 4, run, no_waiting)
    assert [trial.state for trial in made.trials] == [TrialState.COMPLETE] * 4
    assert search.best(made)[0].values[0] == max(
        trial.params["batch_size"] for trial in made.trials
    )


def test_infeasible_trials_are_results_but_never_the_best(
    tmp_path: Path,
) -> None:
    target = goal("batch_size=8|16|32|64", constraints="memory<2GB")
    made = study(tmp_path, target, "grid")

    def run(trial: Trial) -> Sequence[float]:
        size = int(search.suggest(trial, target.dimensions)["batch_size"])
        return search.answer(
            trial,
            target,
            result(size, size * 1e8) if size < 64 else Result("run", RunOutcome.OUT_OF_MEMORY),
        )

    search.run_until(made, 4, run, no_waiting)
    assert {trial.state for trial in made.trials} == {TrialState.COMPLETE}
    assert {trial.params["batch_size"] for trial in made.trials if search.feasible(trial)} == {
        8,
        16,
    }
    assert [trial.params["batch_size"] for trial in search.best(made)] == [16]


def test_pareto_front_has_equal_settings_once(tmp_path: Path) -> None:
    target = goal("batch_size=1|2|4", "throughput:max,memory:min")
    made = study(tmp_path, target, "random")

    def run(trial: Trial) -> Sequence[float]:
        size = int(search.suggest(trial, target.dimensions)["batch_size"])
        return search.answer(trial, target, result(size, memory=size if size != 2 else 100))

    search.run_until(made, 8, run, no_waiting)
    assert [trial.params["batch_size"] for trial in search.best(made)] == [4, 1]


def test_search_ends_after_failures_only(
    tmp_path: Path,
) -> None:
    target = goal()
    made = study(tmp_path, target)
    tried = []

    def run(trial: Trial) -> Sequence[float]:
        tried.append(trial.number)
        search.suggest(trial, target.dimensions)
        if trial.number == 1:
            raise TrialFailed("broken")
        return search.answer(trial, target, result(1.0))

    search.run_until(made, 4, run, no_waiting)
    assert tried == [0, 1, 2, 3]
    assert made.trials[1].state == TrialState.FAIL

    def fail(trial: Trial) -> Sequence[float]:
        trial.set_user_attr("reason", "no such file")
        raise TrialFailed("no such file")

    hopeless = search.create(storage(tmp_path), "hopeless", target, {})
    with pytest.raises(
        EvenhandError, match="the first 3 trials all failed, the last with: no such file"
    ):
        search.run_until(hopeless, 10, fail, no_waiting)


def test_trials_of_dead_workers_are_run_again_and_count_once(
    tmp_path: Path,
) -> None:
    target = goal("batch_size=1..64:log,dropout=0..0.4:0.2")
    made = study(tmp_path, target, "grid")
    dropped = made.ask()
    values = search.suggest(dropped, target.dimensions)
    storage(tmp_path).record_heartbeat(dropped._trial_id)  # its worker dies after this
    waited = []

    def run(trial: Trial) -> Sequence[float]:
        search.suggest(trial, target.dimensions)
        return search.answer(trial, target, result(1.0))

    search.run_until(made, 3, run, lambda: waited.append(time.monotonic()))
    assert waited, "the last trial ran elsewhere, as far as anybody could know"
    counted = search.counted(made.trials)
    assert len(counted) == 3
    assert {trial.state for trial in counted} == {TrialState.COMPLETE}
    again = next(
        trial
        for trial in counted
        if trial.number != trial.system_attrs.get("failed_trial", trial.number)
    )
    assert again.params == values
    assert made.trials[dropped.number].state == TrialState.FAIL


@pytest.mark.parametrize("limit", [0, 1, 11, 15])
def test_halving_takes_log2_trials(tmp_path: Path, limit: int) -> None:
    target = goal("batch_size=1..15")
    made = study(tmp_path, target)

    def run(trial: Trial) -> Sequence[float]:
        size = int(search.suggest(trial, target.dimensions)["batch_size"])
        return search.answer(
            trial, target, result(1.0) if size <= limit else Result("run", RunOutcome.OUT_OF_MEMORY)
        )

    def try_one(values: dict[str, space.Value]) -> None:
        made.enqueue_trial(values)
        search.run_until(made, 0, run, no_waiting)

    batches.find_largest(made, target.dimensions, try_one)  # type: ignore[arg-type]
    ((_, largest),) = batches.largest(made, target.dimensions)
    assert (largest.params["batch_size"] if largest else 0) == limit
    assert len(made.trials) <= 4


def test_unusable_storage_is_refused(tmp_path: Path) -> None:
    for url, message in {
        f"sqlite:///{tmp_path}/no/where.db": "cannot be used: unable to open database file",
        "postgresql://nobody@127.0.0.1:9/x": "cannot be used: connection to server",
        "postgresql://nobody:secret@127.0.0.1:9/x": "leave it out and set PGPASSWORD",
        "nonsense": "cannot be used",
    }.items():
        with pytest.raises(UsageError) as error:
            search.open_storage(url, 1)
        assert message in str(error.value)
        assert "\n" not in str(error.value)
        assert "secret" not in str(error.value)

"""From what Optuna wants to be tried to a fresh process with a run of its own, and from its end to what Optuna is told."""

from __future__ import annotations

import dataclasses
import json
import math
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from optuna.study import Study
from optuna.trial import Trial

from experiments import studies
from experiments.config import devices
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import Interrupted
from experiments.contract import Treatment
from experiments.planning import treatments
from experiments.run import cell_run, preparation
from experiments.run.cell_run import CellTask
from experiments.run.preparation import PreparedCampaign
from experiments.run.recorder import Recorder
from experiments.sweep import goals, search, space
from experiments.sweep.search import Goal, Result
from experiments.sweep.space import Dimension, Value
from tracking import clock, provenance
from tracking.errors import EvenhandError, WrongCall
from tracking.records import VANISHED, Metrics, RunClosed, RunKind, RunOutcome, StoredRun, Tags
from tracking.store import Unreachable

# What was found out for the whole sweep at its beginning.
OF_ALL = ("parity", "user", "mlflow.user")
STATES = {"COMPLETE": "FINISHED", "FAIL": "FAILED", "PRUNED": "KILLED"}


def point(
    study: str,
    settings: CampaignSettings,
    dimensions: tuple[Dimension, ...],
    values: Mapping[str, Value],
) -> Treatment:
    """The one cell of an experiment that a trial is. Raises WrongCall where the settings make several of it."""
    settled = space.settled(settings, dimensions, values)
    module = studies.load(study)
    found = treatments.of(module, settled)
    if len(found) > 1:
        names = ", ".join(one.name for one in found[:3]) + (", …" if len(found) > 3 else "")
        several = [
            one
            for one in _lists(settled)
            if len(treatments.of(module, _first_of(settled, one))) < len(found)
        ]
        raise WrongCall(
            f"a trial is one cell, and experiment={study} makes {len(found)} of these settings ({names}); "
            f"search over what is several, or give one value: {', '.join(several)}"
        )
    own = {
        name: getattr(settled, name)
        for name in space.fields(dimensions, values)
        if name != "frameworks"
    }
    return dataclasses.replace(found[0], settings={**own, **found[0].settings}, group="")


def _lists(settings: CampaignSettings) -> list[str]:
    return [
        field.name
        for field in dataclasses.fields(settings)
        if isinstance(getattr(settings, field.name), tuple)
    ]


def _first_of(settings: CampaignSettings, name: str) -> CampaignSettings:
    first: dict[str, Any] = {name: getattr(settings, name)[:1]}
    return dataclasses.replace(settings, **first)


class Trials:
    """Runs trials of one experiment, on this machine, as parts of one sweep."""

    def __init__(
        self,
        runner: Recorder,
        study: Study,
        prepared: PreparedCampaign,
        base: CampaignSettings,
        goal: Goal,
    ) -> None:
        """prepared: what all frameworks and models of the search are given; base: the settings where nothing is searched."""
        self._runner, self._study, self._prepared, self._base, self._goal = (
            runner,
            study,
            prepared,
            base,
            goal,
        )
        self._extracted: set[str] = set()

    def run(self, trial: Trial) -> list[float]:
        """One trial, to its end. Raises what Optuna understands; Interrupted, after which it waits to be run again."""
        values = search.suggest(trial, self._goal.dimensions)
        finished = self._already_run(trial)
        try:
            result = finished or self._measured(trial, values)
        except Interrupted:
            search.requeue(self._study, trial)
            raise
        if result.reason:
            trial.set_user_attr("reason", result.reason)
        if result.outcome == RunOutcome.OK:
            goals.require(result.metrics, self._goal.metrics)
            for metric in self._goal.metrics:
                if not math.isfinite(value := result.metrics[metric]):
                    result = dataclasses.replace(
                        result, outcome=RunOutcome.FAILED, reason=f"{metric} is {value}"
                    )
        self._settle(result)
        return search.answer(trial, self._goal, result)

    def _measured(self, trial: Trial, values: Mapping[str, Value]) -> Result:
        run = uuid.uuid4().hex
        trial.set_user_attr("run", run)
        trial.set_user_attr("machine", provenance.fingerprint())
        try:
            prepared = self._prepare(values)
            treatment = point(prepared.study, prepared.settings, self._goal.dimensions, values)
        except WrongCall as error:
            self._runner.display.finish(f"trial {trial.number}: {error}", good=False)
            return Result("", RunOutcome.FAILED, str(error))
        told = " ".join(f"{name}={_short(value)}" for name, value in values.items())
        name = f"trial {trial.number} · {told}"
        tags = {
            "kind": RunKind.TRIAL,
            "framework": treatment.framework,
            "mlflow.parentRunId": f"run:{self._runner.run}",
            "trial": str(trial.number),
            "trial.params": json.dumps(values),
            "idle": str(self._runner.machine),
        }
        tags |= self._runner.cool_down(name, devices.cool_down_seconds(prepared.settings))
        key = f"trial-{search.original_number(self._study, trial):04d}"
        task = CellTask(treatment, key, name, tags, prepared.data.inputs, run=run)
        ended = cell_run.measure(
            self._runner, prepared, task, self._watch(trial, prepared.settings)
        )
        return Result(run, ended.outcome, ended.reason, ended.metrics)

    def _prepare(self, values: Mapping[str, Value]) -> PreparedCampaign:
        """The experiment with this trial's settings: its data, and what has to be made of them first."""
        settings = space.settled(self._base, self._goal.dimensions, values)
        found = preparation.prepare_data(
            self._prepared.study,
            dataclasses.replace(settings, frameworks=self._base.frameworks),
            self._runner.display,
        )
        for job in found.before:
            if job.framework == self._base.frameworks[0] and repr(job) not in self._extracted:
                if not cell_run.extract(self._runner, self._prepared, job):
                    raise EvenhandError(
                        "the feature extraction failed, which all trials need; the reason stands above"
                    )
                self._extracted.add(repr(job))
        kept = {name: text for name, text in self._prepared.data.tags.items() if name in OF_ALL}
        data = dataclasses.replace(found, tags={**found.tags, **kept})
        return dataclasses.replace(self._prepared, settings=settings, data=data)

    def _watch(self, trial: Trial, settings: CampaignSettings) -> Callable[[Metrics], str] | None:
        """Epochs' values of the only objective, for the pruner."""
        if len(self._goal.objectives) != 1:
            return None
        metric, last = self._goal.objectives[0].metric, getattr(settings, "epochs", 0)

        def watch(told: Metrics) -> str:
            for one in told.points:
                if one.key == metric and 0 < one.step < last:
                    trial.report(one.value, one.step)
                    if trial.should_prune():
                        return (
                            f"pruned after epoch {one.step} of {last}: {metric} was {one.value:.4g}"
                        )
            return ""

        return watch

    def _already_run(self, trial: Trial) -> Result | None:
        """What a dropped trial's process had found before its worker died, if it had ended; if not, its run ends now."""
        origin: str = trial.user_attrs.get("run", "")
        if not origin:
            return None
        try:
            run_id = self._runner.store.run_id(origin)
            stored = self._runner.store.run(run_id) if run_id else None
        except Unreachable:
            return None
        if stored and self._is_whole(stored):
            self._runner.write(Tags(origin, {"trial": str(trial.number)}))
            return Result(origin, RunOutcome(stored.tags["outcome"]), metrics=stored.metrics)
        if stored and stored.status != STATES["FAIL"]:
            self._runner.write(Tags(origin, {"trial.state": "FAIL"}))
            self._runner.write(
                RunClosed(
                    origin,
                    clock.now_ms(),
                    RunOutcome.FAILED,
                    stored.tags.get("outcome_reason", VANISHED),
                )
            )
        return None

    def _is_whole(self, stored: StoredRun) -> bool:
        outcome = stored.tags.get("outcome", "")
        has_all = all(metric in stored.metrics for metric in self._goal.metrics)
        return (outcome == RunOutcome.OK and has_all) or outcome == RunOutcome.OUT_OF_MEMORY

    def _settle(self, result: Result) -> None:
        """Tags the trial's run with the state and verdict that Optuna gets."""
        if not result.run:
            return
        outcome, is_out_of_memory = result.outcome, result.outcome == RunOutcome.OUT_OF_MEMORY
        is_complete = is_out_of_memory or outcome == RunOutcome.OK
        state = "COMPLETE" if is_complete else "PRUNED" if outcome == RunOutcome.PRUNED else "FAIL"
        told: dict[str, str] = {"trial.state": state}
        if is_complete:
            keeps_all = not is_out_of_memory and all(
                bound.violation(result.metrics[bound.metric]) <= 0
                for bound in self._goal.constraints
            )
            told["trial.feasible"] = str(keeps_all).lower()
        self._runner.write(Tags(result.run, told))
        if state == "FAIL" or is_out_of_memory:
            self._runner.write(
                RunClosed(result.run, clock.now_ms(), outcome, result.reason, STATES[state])
            )
        if outcome == RunOutcome.OK and self._goal.objectives:
            self._say(result)

    def _say(self, result: Result) -> None:
        from experiments.comparison.report import wording

        objectives = [
            (objective.outcome, result.metrics[objective.metric])
            for objective in self._goal.objectives
        ]
        parts = [
            f"{outcome.label} {wording.quantity(value, outcome)}" for outcome, value in objectives
        ]
        self._runner.display.say(f"        {', '.join(parts)}")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

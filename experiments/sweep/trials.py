"""Trials: a fresh process with a separate run for each, and its result for Optuna."""

from __future__ import annotations

import dataclasses
import json
import math
import uuid
from collections.abc import Callable, Mapping

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
from experiments.sweep import goals, report, search, space
from experiments.sweep.search import Goal, Result
from experiments.sweep.space import Dimension, Value
from tracking import clock, provenance
from tracking.errors import EvenhandError, UsageError
from tracking.records import VANISHED, Metrics, RunClosed, RunKind, RunOutcome, Tags
from tracking.store import Unreachable

# Tags that are determined once for the whole sweep.
SHARED_TAGS = ("parity", "user", "mlflow.user")
STATES = {"COMPLETE": "FINISHED", "FAIL": "FAILED", "PRUNED": "KILLED"}


def point(
    study: str,
    settings: CampaignSettings,
    dimensions: tuple[Dimension, ...],
    values: Mapping[str, Value],
) -> Treatment:
    """Return the single cell of a trial. Raises UsageError if the settings make several cells."""
    point_settings = space.settled(settings, dimensions, values)
    cells = treatments.list_treatments(studies.load(study), point_settings)
    if len(cells) > 1:
        names = ", ".join(cell.name for cell in cells[:3]) + (", …" if len(cells) > 3 else "")
        raise UsageError(
            f"a trial is one cell, and experiment={study} makes {len(cells)} of these settings "
            f"({names}); search the list that makes them, or give it a single value"
        )
    names_of_point = [dimension.field for dimension in dimensions]
    names_of_point += space.point_settings(dimensions, values)
    searched = {
        name: getattr(point_settings, name) for name in names_of_point if name != "frameworks"
    }
    return dataclasses.replace(cells[0], settings={**searched, **cells[0].settings}, group="")


class Trials:
    """Trials of one experiment, run on this machine as parts of one sweep."""

    def __init__(
        self,
        runner: Recorder,
        study: Study,
        prepared: PreparedCampaign,
        base: CampaignSettings,
        goal: Goal,
    ) -> None:
        self._runner = runner
        self._study = study
        self._prepared = prepared
        self._base = base
        self._goal = goal
        self._extracted: set[str] = set()

    def run(self, trial: Trial) -> list[float]:
        """Run one trial to its end; after Interrupted it waits to be run again."""
        values = search.suggest(trial, self._goal.dimensions)
        self._close_previous_run(trial)
        try:
            result = self._measure(trial, values)
        except Interrupted:
            search.requeue(self._study, trial)
            raise
        if result.outcome == RunOutcome.OK:
            goals.require(result.metrics, self._goal.metrics)
            for metric in self._goal.metrics:
                value = result.metrics[metric]
                if not math.isfinite(value):
                    result = Result(result.run, RunOutcome.FAILED, f"{metric} is {value}")
                    break
        if result.reason:
            trial.set_user_attr("reason", result.reason)
        if result.run:
            self._record(result)
        return search.answer(trial, self._goal, result)

    def _measure(self, trial: Trial, values: Mapping[str, Value]) -> Result:
        run = uuid.uuid4().hex
        trial.set_user_attr("run", run)
        trial.set_user_attr("machine", provenance.fingerprint())
        try:
            prepared = self._prepare(values)
            treatment = point(prepared.study, prepared.settings, self._goal.dimensions, values)
        except UsageError as error:
            self._runner.display.finish(f"trial {trial.number}: {error}", good=False)
            return Result("", RunOutcome.FAILED, str(error))
        point_text = " ".join(f"{name}={report.words_of(value)}" for name, value in values.items())
        name = f"trial {trial.number} · {point_text}"
        tags = {
            "kind": RunKind.TRIAL,
            "framework": treatment.framework,
            "mlflow.parentRunId": f"run:{self._runner.run}",
            "trial": str(trial.number),
            "trial.params": json.dumps(values),
            "idle": str(self._runner.machine),
        }
        tags |= self._runner.cool_down(name, devices.cool_down_seconds(prepared.settings))
        key = f"trial-{trial.number:04d}"
        task = CellTask(treatment, key, name, tags, prepared.data.inputs, run=run)
        watch = self._watch(trial, prepared.settings)
        result = cell_run.measure(self._runner, prepared, task, watch)
        return Result(run, result.outcome, result.reason, result.metrics)

    def _prepare(self, values: Mapping[str, Value]) -> PreparedCampaign:
        """Prepare the experiment's data with this trial's settings; extract features first."""
        settings = space.settled(self._base, self._goal.dimensions, values)
        frameworks = self._base.frameworks
        data = preparation.prepare_data(
            self._prepared.study,
            dataclasses.replace(settings, frameworks=frameworks),
            self._runner.display,
        )
        for job in data.before:
            if job.framework == frameworks[0] and repr(job) not in self._extracted:
                if not cell_run.extract(self._runner, self._prepared, job):
                    raise EvenhandError("the feature extraction of all trials failed; see above")
                self._extracted.add(repr(job))
        tags = self._prepared.data.tags.items()
        shared = {name: text for name, text in tags if name in SHARED_TAGS}
        data = dataclasses.replace(data, tags={**data.tags, **shared})
        return dataclasses.replace(self._prepared, settings=settings, data=data)

    def _watch(self, trial: Trial, settings: CampaignSettings) -> Callable[[Metrics], str] | None:
        """Return the pruner's view of the only objective: its value after every epoch."""
        if len(self._goal.objectives) != 1:
            return None
        metric, last = self._goal.objectives[0].metric, getattr(settings, "epochs", 0)

        def watch(metrics: Metrics) -> str:
            for point in metrics.points:
                if point.key == metric and 0 < point.step < last:
                    trial.report(point.value, point.step)
                    if trial.should_prune():
                        value = f"{metric} was {point.value:.4g}"
                        return f"pruned after epoch {point.step} of {last}: {value}"
            return ""

        return watch

    def _close_previous_run(self, trial: Trial) -> None:
        origin: str = trial.user_attrs.get("run", "")
        try:
            run_id = self._runner.store.run_id(origin) if origin else None
            stored = self._runner.store.run(run_id) if run_id else None
        except Unreachable:
            return
        if stored:
            reason = stored.tags.get("outcome_reason", VANISHED)
            self._runner.write(Tags(origin, {"trial.state": "FAIL"}))
            self._runner.write(RunClosed(origin, clock.now_ms(), RunOutcome.FAILED, reason))

    def _record(self, result: Result) -> None:
        """Tag the trial's run with the state and verdict that Optuna gets."""
        outcome = result.outcome
        is_ok, is_out_of_memory = outcome == RunOutcome.OK, outcome == RunOutcome.OUT_OF_MEMORY
        state = "FAIL"
        if is_ok or is_out_of_memory:
            state = "COMPLETE"
        elif outcome == RunOutcome.PRUNED:
            state = "PRUNED"
        tags: dict[str, str] = {"trial.state": state}
        if state == "COMPLETE":
            is_feasible = is_ok and all(
                bound.violation(result.metrics[bound.metric]) <= 0
                for bound in self._goal.constraints
            )
            tags["trial.feasible"] = str(is_feasible).lower()
        self._runner.write(Tags(result.run, tags))
        if state == "FAIL" or is_out_of_memory:
            now = clock.now_ms()
            self._runner.write(RunClosed(result.run, now, outcome, result.reason, STATES[state]))
        if is_ok and self._goal.objectives:
            values = [result.metrics[objective.metric] for objective in self._goal.objectives]
            self._runner.display.say(f"        {report.quantities(values, self._goal)}")

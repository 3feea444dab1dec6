"""Trials: a fresh process with a separate run for each, and its result for Optuna."""

from __future__ import annotations

import dataclasses
import json
import math
import uuid
from collections.abc import Callable, Mapping

from optuna.storages import RetryHeartbeatStaleTrialCallback
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
from experiments.run.prepared import PreparedCampaign
from experiments.run.recorder import Recorder
from experiments.run.scheduler import CellResult
from experiments.sweep import goals, results, search, space
from experiments.sweep.search import Goal, TrialFailed
from experiments.sweep.space import Dimension, Value
from tracking import clock, provenance
from tracking.errors import ErrorCode, EvenhandError, UsageError
from tracking.reader import Unreachable
from tracking.records import VANISHED, Metrics, RunClosed, RunKind, RunOutcome, Tags

# Tags that are determined once for the whole sweep.
SHARED_TAGS = ("parity", "user", "mlflow.user")
# Optuna's state of a trial by the outcome of its cell.
STATES = {
    RunOutcome.OK: "COMPLETE",
    RunOutcome.OUT_OF_MEMORY: "COMPLETE",
    RunOutcome.PRUNED: "PRUNED",
}


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
        names = ", ".join(cell.name for cell in cells[:3])
        right = "search the list that makes them, or give it a single value"
        raise UsageError(
            ErrorCode.UNSUPPORTED,
            f"a trial is one cell, and experiment={study} makes {len(cells)} ({names} …); {right}",
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
        recorder: Recorder,
        study: Study,
        prepared: PreparedCampaign,
        base: CampaignSettings,
        goal: Goal,
    ) -> None:
        self._recorder, self._study, self._prepared = recorder, study, prepared
        self._base, self._goal = base, goal
        self._extracted: set[str] = set()

    def run(self, trial: Trial) -> list[float]:
        """Run one trial to its end; after Interrupted it waits to be run again."""
        values = search.suggest(trial, self._goal.dimensions)
        self._close_previous_run(trial)
        run = uuid.uuid4().hex
        trial.set_user_attr("run", run)
        trial.set_user_attr("machine", provenance.fingerprint())
        try:
            prepared = self._prepare(values)
            treatment = point(prepared.study, prepared.settings, self._goal.dimensions, values)
            result = self._measure(trial, run, prepared, treatment, values)
        except UsageError as error:
            self._recorder.display.finish(f"trial {trial.number}: {error}", good=False)
            trial.set_user_attr("reason", str(error))
            raise TrialFailed(error.code, str(error)) from None
        except Interrupted:  # the trial waits for another run
            frozen = self._study.get_trials(deepcopy=False)[trial.number]
            RetryHeartbeatStaleTrialCallback()(self._study, frozen)
            raise
        if result.ok:
            goals.require(result.metrics, self._goal.metrics)
            for metric in self._goal.metrics:
                if not math.isfinite(value := result.metrics[metric]):
                    result = CellResult(RunOutcome.FAILED, reason=f"{metric} is {value}")
                    break
        if result.reason:
            trial.set_user_attr("reason", result.reason)
        self._record(run, result)
        return search.answer(trial, self._goal, result)

    def _prepare(self, values: Mapping[str, Value]) -> PreparedCampaign:
        """Prepare the experiment's data with this trial's settings; extract features first."""
        settings = space.settled(self._base, self._goal.dimensions, values)
        frameworks = self._base.frameworks
        data = preparation.prepare_data(
            self._prepared.study,
            dataclasses.replace(settings, frameworks=frameworks),
            self._recorder.display,
        )
        for job in data.before:
            if job.framework == frameworks[0] and repr(job) not in self._extracted:
                if not cell_run.extract(self._recorder, self._prepared, job):
                    raise EvenhandError(
                        ErrorCode.CHILD_FAILED,
                        "the feature extraction of all trials failed; see above",
                    )
                self._extracted.add(repr(job))
        tags = self._prepared.data.tags.items()
        shared = {name: text for name, text in tags if name in SHARED_TAGS}
        data = dataclasses.replace(data, tags={**data.tags, **shared})
        return dataclasses.replace(self._prepared, settings=settings, data=data)

    def _measure(
        self,
        trial: Trial,
        run: str,
        prepared: PreparedCampaign,
        treatment: Treatment,
        values: Mapping[str, Value],
    ) -> CellResult:
        name = f"trial {trial.number} · {results.format_point(values)}"
        tags = {
            "kind": RunKind.TRIAL,
            "framework": treatment.framework,
            "trial": str(trial.number),
            "trial.params": json.dumps(values),
        }
        tags |= self._recorder.cool_down(name, devices.cool_down_seconds(prepared.settings))
        key = f"trial-{trial.number:04d}"
        task = CellTask(treatment, key, name, tags, prepared.data.inputs, run=run)
        watch = self._watch(trial, prepared.settings)
        return cell_run.measure(self._recorder, prepared, task, watch)

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
            run_id = self._recorder.store.run_id(origin) if origin else None
            stored = self._recorder.store.run(run_id) if run_id else None
        except Unreachable:
            return
        if stored:
            reason = stored.tags.get("outcome_reason", VANISHED)
            self._recorder.write(Tags(origin, {"trial.state": "FAIL"}))
            self._recorder.write(RunClosed(origin, clock.now_ms(), RunOutcome.FAILED, reason))

    def _record(self, run: str, result: CellResult) -> None:
        """Tag the trial's run with the state and verdict that Optuna gets."""
        state = STATES.get(result.outcome, "FAIL")
        tags = {"trial.state": state}
        if state == "COMPLETE":
            is_feasible = result.ok and all(
                bound.violation(result.metrics[bound.metric]) <= 0
                for bound in self._goal.constraints
            )
            tags["trial.feasible"] = str(is_feasible).lower()
        self._recorder.write(Tags(run, tags))
        if state == "FAIL" or result.outcome == RunOutcome.OUT_OF_MEMORY:
            status = "FAILED" if state == "FAIL" else "FINISHED"
            now = clock.now_ms()
            self._recorder.write(RunClosed(run, now, result.outcome, result.reason, status))
        if result.ok:
            values = [result.metrics[objective.metric] for objective in self._goal.objectives]
            text = results.format_quantities(values, self._goal)
            self._recorder.display.say(f"        {text}")

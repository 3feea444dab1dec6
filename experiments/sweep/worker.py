"""One process of a sweep: begun, resumed or joined; its trials, then the campaign of the best."""

from __future__ import annotations

import dataclasses
import json
import platform
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optuna.storages import RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial

from experiments import studies
from experiments.config import devices
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import Interrupted
from experiments.metrics import BY_EPOCH
from experiments.planning import length
from experiments.run import opening, pipeline, preparation
from experiments.run import resume as resume_
from experiments.run.campaign import Campaign
from experiments.run.pipeline import Conclusion
from experiments.run.preparation import PreparedCampaign
from experiments.run.recorder import Recorder
from experiments.sweep import batches, goals, plots, report, search, space, winners
from experiments.sweep.search import Goal
from experiments.sweep.settings import Sweep
from experiments.sweep.trials import Trials, point
from tracking import journal
from tracking.errors import UsageError
from tracking.journal import Journal
from tracking.records import RunKind, RunOutcome, Tags
from tracking.store import Store, Unreachable, note

DATABASE = "optuna.db"
ATTRIBUTE = "evenhand"
RAISED_ON_RESUME = frozenset({"trials", "storage", "confirm", "heartbeat_seconds"})


@dataclass(frozen=True)
class SweepRequest:
    sweep: Sweep
    base: CampaignSettings
    goal: Goal

    @property
    def study(self) -> str:
        return self.sweep.experiment

    @property
    def trials(self) -> int:
        """Number of trials; a grid may have fewer points than requested."""
        if self.sweep.sampler != "grid":
            return self.sweep.trials
        return min(self.sweep.trials, len(space.points(self.goal.dimensions)))


@dataclass(frozen=True)
class SweepResult:
    """Result of a sweep; `conclusion` is of the campaign that measured the best again."""

    sentences: list[str]
    page: Path | None = None
    settings: list[Path] = field(default_factory=list)
    dashboard: str = ""
    conclusion: Conclusion | None = None
    delivered: bool = True


def begin(sweep: Sweep, texts: Mapping[str, str], display: Display) -> Worker:
    if texts.get("resume"):
        return resume(sweep, texts, display)
    return start(understood(sweep, texts), display)


def campaign_over_batches(
    sweep: Sweep, texts: Mapping[str, str], display: Display
) -> Campaign | None:
    """Return the campaign of `find=best_batch`; None for another request.

    It is resumed as a campaign of its experiment.
    """
    if texts.get("resume") or sweep.find != "best_batch":
        return None
    request = understood(sweep, texts)
    counts = preparation.prepare_data(request.study, request.base, display).dataset.counts
    request = with_length(request, counts)
    plan = batches.plan(request.study, request.base, request.goal.dimensions)
    return pipeline.start(request.study, request.base, display, plan)


def understood(sweep: Sweep, texts: Mapping[str, str]) -> SweepRequest:
    """Parse and check a request as far as possible without a server.

    Args:
        texts: The experiment's settings as the user wrote them.

    Raises:
        UsageError: The request cannot be carried out.
    """
    module = studies.load(sweep.experiment)
    # A preset may let cells take turns; a trial is a single cell.
    base: CampaignSettings = settings_.parse(
        module.settings, module.presets, {"pairing": "sequential", **texts}
    )
    refused = {
        "aa": base.aa,
        "inject_delay": base.inject_delay,
        "vary": base.vary,
        "pairing": base.pairing != "sequential",
    }
    for name, is_requested in refused.items():
        if is_requested:
            raise UsageError(
                f"{name}: a trial is a single cell; request it in a campaign of the experiment"
            )
    dimensions = space.parse(sweep.search, module.settings)
    space.check(base, dimensions)
    searched = {dimension.field: dimension.choices for dimension in dimensions}
    if searched.get("frameworks"):
        base = dataclasses.replace(base, frameworks=tuple(map(str, searched["frameworks"])))
    elif "frameworks" not in texts and not sweep.find:
        base = dataclasses.replace(base, frameworks=base.frameworks[:1])
    request = SweepRequest(sweep, base, _goal(sweep, base))
    _check(request)
    return request


def _goal(sweep: Sweep, base: CampaignSettings) -> Goal:
    module = studies.load(sweep.experiment)
    dimensions = space.parse(sweep.search, module.settings)
    bounds = goals.constraints(sweep.constraints, module.outcomes)
    if sweep.find != "max_batch":
        return Goal(dimensions, goals.objectives(sweep.objectives, module.outcomes), bounds)
    if len(base.frameworks) > 1 and "frameworks" not in {kind.field for kind in dimensions}:
        text = f"framework={'|'.join(base.frameworks)}"
        dimensions += space.parse(text, module.settings)
    return Goal(dimensions, (), bounds, along=batches.NAME)


def _check(request: SweepRequest) -> None:
    sweep, base, goal = request.sweep, request.base, request.goal
    if base.on_cluster and sweep.find == "max_batch":
        raise UsageError(
            "find=max_batch: one worker tries one size after the other; take "
            "executor=local, on a node"
        )
    if base.on_cluster and base.nodes_of_a_job > 1:
        raise UsageError(
            f"nodes={base.nodes}: a cell shares them, and a worker of a sweep has one; take nodes=1"
        )
    if base.on_cluster and not sweep.find and not sweep.storage:
        raise UsageError(
            "executor=slurm: workers on several nodes share a database; give "
            "storage=postgresql://user@host/database"
        )
    if sweep.find:
        batches.dimension(goal.dimensions, sweep.find)
    if sweep.find == "best_batch":
        return
    if sweep.pruner != "none" and len(goal.objectives) > 1:
        count = len(goal.objectives)
        raise UsageError(
            f"pruner={sweep.pruner}: it needs a single objective, and there are {count}"
        )
    if sweep.pruner != "none" and goal.objectives[0].metric not in BY_EPOCH:
        raise UsageError(
            f"pruner={sweep.pruner}: {goal.objectives[0].metric} comes once, at the end; "
            "prune by loss, accuracy or train/loss"
        )
    if sweep.find == "max_batch":
        batches.others(goal.dimensions)  # raises for a continuous range
    elif sweep.sampler == "grid":
        space.points(goal.dimensions)
    first = {dimension.name: dimension.extremes[0] for dimension in goal.dimensions}
    point(request.study, base, goal.dimensions, first)  # raises for several cells


class Worker:
    """Process that does what is left of a sweep, next to other workers of it."""

    def __init__(
        self,
        request: SweepRequest,
        prepared: PreparedCampaign,
        records: Journal,
        storage: RDBStorage,
        study: Study,
        display: Display,
        name: str = "",
    ) -> None:
        self.request, self._storage, self.study, self.display = request, storage, study, display
        self._joined = bool(name)
        self.runner = Recorder(records, display, devices.resolve_all(request.base)[0])
        self.runner.warnings = list(prepared.data.warnings)
        self._trials = Trials(self.runner, study, prepared, request.base, request.goal)
        # Differs for every worker and at every resumption, so that no worker repeats draws.
        seed = request.base.seed * 10_007 + len(study.get_trials(deepcopy=False))
        seed = (seed + zlib.crc32(name.encode())) % 2**31
        dimensions, epochs = request.goal.dimensions, getattr(request.base, "epochs", 1)
        study.sampler = search.SAMPLERS[request.sweep.sampler](dimensions, seed)
        study.pruner = search.PRUNERS[request.sweep.pruner](epochs)

    def run(self) -> SweepResult:
        """Run trials until there are enough; the process with the sweep's journal concludes."""
        runner = self.runner
        try:
            with runner.signals():
                runner.warn(tuple(runner.warnings))
                self._work()
            if self._joined:
                runner.leave()
                right = f"if it has ended, resume={runner.run_id} with its journal does"
                text = "The trials are done. The process that began the sweep concludes"
                return SweepResult([f"{text}; {right}."])
            return self._conclude()
        except Interrupted as error:
            self._leave(RunOutcome.INTERRUPTED, str(error))
            raise runner.interrupted("; finished trials are kept") from None
        except KeyboardInterrupt:
            self._leave(RunOutcome.INTERRUPTED, "stopped while the best was judged")
            raise runner.interrupted(" while the best was judged") from None
        except BaseException as error:  # a job that is out of time ends by SystemExit
            self._leave(RunOutcome.FAILED, f"{type(error).__name__}: {error}")
            raise

    def _work(self) -> None:
        request, dimensions = self.request, self.request.goal.dimensions
        if request.sweep.find == "max_batch":
            along = batches.dimension(dimensions, request.sweep.find)
            steps = len(batches.others(dimensions)) * batches.most_steps(along)
            self.display.expect(steps)
            self._run_until(0)  # trials of a dead worker
            batches.find_largest(self.study, dimensions, self._try)
            return
        self.display.expect(self._missing())
        if request.base.on_cluster:
            from experiments.sweep import jobs

            job = jobs.WorkerJob(
                request.sweep, jobs.resume_options(request.base, self.runner.run_id)
            )
            jobs.work(request.base, self.runner, job, self._missing)
        else:
            self._run_until(request.trials)

    def _run_until(self, count: int) -> None:
        search.run_until(self.study, count, self._trials.run, self._wait)

    def _try(self, values: Mapping[str, space.Value]) -> None:
        self.study.enqueue_trial(dict(values))
        self._run_until(0)

    def _finished(self) -> int:
        trials = search.counted(self.study.get_trials(deepcopy=False))
        return sum(trial.state.is_finished() for trial in trials)

    def _missing(self) -> int:
        return self.request.trials - self._finished()

    def _wait(self) -> None:
        self.runner.check_stop()
        self.display.step("waiting for trials of other workers", 0, None)

    def _conclude(self) -> SweepResult:
        runner, request = self.runner, self.request
        dimensions, objectives = request.goal.dimensions, request.goal.objectives
        folder = runner.folder / "found"
        folder.mkdir(exist_ok=True)
        sentences: list[str] = []
        if request.sweep.find == "max_batch":
            trials = batches.largest(self.study, dimensions)
            best = [trial for _, trial in trials if trial]
            along = batches.dimension(dimensions, request.sweep.find)
            sentences += report.largest(trials, along)
        else:
            best = search.best(self.study)
        sentences += report.sentences(self.study.get_trials(), best, request.goal)
        files = winners.write(folder, best, dimensions)
        report.write_table(self.study, folder)
        self.display.begin("plots")
        self.display.step("plots", 0, None)
        conclusion, link = self._confirm(best, sentences), ""
        if conclusion:
            sentences += [f"Measured again: {line}" for line in conclusion.sentences]
            link = self._link(self.study.user_attrs[self._campaign])
        title = f"Sweep of {request.study}: {request.sweep.search}"
        plots.write(self.study, folder, title, sentences, warned=runner.warnings)
        runner.keep_file(folder)
        if len(objectives) == 1 and best:
            runner.keep_metrics({f"sweep/best/{objectives[0].metric}": best[0].values[0]})
        text = "\n\n".join(["### Found\n" + "\n".join(f"- {line}" for line in sentences), link])
        tags = {"verdict": " ".join(sentences)[:1_000], **note(text)}
        delivered = runner.close(RunOutcome.OK, "", tags)
        url = self._storage.engine.url.render_as_string(hide_password=True)
        dashboard = f"optuna-dashboard {url}"
        page = folder / "sweep.html"
        return SweepResult(sentences, page, files, dashboard, conclusion, delivered)

    def _confirm(self, best: Sequence[FrozenTrial], sentences: list[str]) -> Conclusion | None:
        """Measure the best against the default, with fresh seeds, in blocks.

        A reason why there is nothing to judge is added to the sentences.
        """
        request, root = self.request, Path(self.request.base.journal).resolve()
        if not best:
            sentences.append("No verdict: no trial satisfies every bound.")
            return None
        if not request.sweep.confirm:
            sentences.append("No verdict: nothing was measured again.")
            return None
        begun = self.study.user_attrs.get(self._campaign, "")
        try:
            if begun and (root / begun / journal.CAMPAIGN).exists():
                campaign = pipeline.restart(request.study, begun, {}, root, self.display)
            else:
                run_id, trials = self.runner.run_id, winners.chosen(best)
                dimensions = request.goal.dimensions
                plan = winners.plan(request.study, request.base, dimensions, trials, run_id)
                if plan is None:
                    sentences.append("The default is the best setting: there is nothing to judge.")
                    return None
                settings = winners.settings(request.base, plan)
                campaign = pipeline.start(
                    request.study, settings, self.display, plan, parent_run=self.runner.run_id
                )
        except UsageError as error:
            why = "the best cannot be measured against the default"
            sentences.append(f"No verdict: {why}: {error}.")
            return None
        self.study.set_user_attr(self._campaign, campaign.recorder.run_id)
        self.runner.write(Tags(self.runner.run, {"confirmed_by": campaign.recorder.run_id}))
        return pipeline.run(campaign, self.display.step)

    @property
    def _campaign(self) -> str:
        return f"campaign after {self._finished()} trials"

    def _link(self, campaign: str) -> str:
        try:
            url = self.runner.store.link(self.runner.experiment, campaign)
        except Unreachable:
            return f"The verdicts stand in the campaign {campaign}."
        return f"The verdicts stand in [the campaign {campaign}]({url})."

    def _leave(self, outcome: RunOutcome, reason: str) -> None:
        if self._joined:
            self.runner.leave()
        else:
            self.runner.close(outcome, reason)


def start(request: SweepRequest, display: Display) -> Worker:
    """Return the worker of a new sweep. Raises UsageError for what can be known to fail."""
    sweep, base = request.sweep, request.base
    storage = search.open_storage(sweep.storage, sweep.heartbeat_seconds) if sweep.storage else None
    counts = preparation.prepare_data(request.study, base, display).dataset.counts
    request = with_length(request, counts)
    dimensions = request.goal.dimensions
    for dimension in dimensions:
        for value in dimension.extremes if dimension.field != "frameworks" else ():
            settings = space.settled(base, (dimension,), {dimension.name: value})
            preparation.prepare_data(request.study, settings, display)
    check_rates(request)
    prepared = preparation.prepare(request.study, space.widest(base, dimensions), display)
    resolved = {name: getattr(prepared.settings, name) for name in ("team", "device")}
    request = dataclasses.replace(request, base=dataclasses.replace(base, **resolved))
    params = {
        name: text
        for name, text in settings_.as_text(sweep).items()
        if text and name not in ("storage", "heartbeat_seconds")
    }
    name = f"sweep of {request.study}: {sweep.search}"[:200]
    description = {
        "study": "sweep",
        "settings": dataclasses.asdict(request.base),
        "sweep": dataclasses.asdict(sweep),
    }
    tags = {"kind": RunKind.SWEEP}
    records = opening.open_journal(prepared, name, tags, description, params=params)
    stored = journal.read_campaign(records.folder)
    if storage is None:
        url = f"sqlite:///{records.folder / DATABASE}"
        storage = search.open_storage(url, sweep.heartbeat_seconds)
    attributes = {ATTRIBUTE: json.dumps(stored)}
    study = search.create(storage, stored["run_id"], request.goal, attributes)
    worker = Worker(request, prepared, records, storage, study, display)
    opening.record_preparation(worker.runner, prepared)
    return worker


def with_length(request: SweepRequest, counts: Mapping[str, int]) -> SweepRequest:
    dimensions = request.goal.dimensions
    fields = {dimension.field for dimension in dimensions}
    trained = length.of(studies.load(request.study), request.base, counts, fields)
    if trained:
        dimensions = tuple(
            dataclasses.replace(dimension, length=trained)
            if dimension.name == batches.NAME
            else dimension
            for dimension in dimensions
        )
    return dataclasses.replace(
        request, goal=dataclasses.replace(request.goal, dimensions=dimensions)
    )


def check_rates(request: SweepRequest) -> None:
    """Raise UsageError for a metric that depends on the length of training, if lengths differ."""
    for dimension in request.goal.dimensions:
        if dimension.length is None:
            continue
        is_grid = request.sweep.sampler == "grid"
        sizes = list(map(int, dimension.grid())) if is_grid else dimension.sizes()
        difference = dimension.length.difference(sizes, request.base.margin)
        for metric in request.goal.metrics if difference else ():
            if not length.is_rate(metric):
                raise UsageError(
                    f"objectives, constraints: {metric} depends on the length of training; "
                    f"{difference}. Ask for throughput, latency or memory"
                )


def resume(
    sweep: Sweep, texts: Mapping[str, str], display: Display, *, join: bool = False
) -> Worker:
    """Return a worker of a sweep that was begun, here or on a machine that shares its storage.

    Args:
        join: The sweep's first worker is known to be running.

    Raises:
        UsageError: There is no such sweep, or the request differs from its beginning.
    """
    root = Path(texts.get("journal") or CampaignSettings.journal).resolve()
    folder, stored = _find(sweep, texts["resume"], root)
    request = _resumed_request(stored, sweep, texts)
    url = request.sweep.storage or f"sqlite:///{folder / DATABASE if folder else ''}"
    storage = search.open_storage(url, request.sweep.heartbeat_seconds)
    study = search.load(storage, stored["run_id"])
    widest = space.widest(request.base, request.goal.dimensions)
    prepared = preparation.prepare(request.study, widest, display)
    request = with_length(request, prepared.data.dataset.counts)
    records, name = None, ""
    if folder and not join:
        try:
            records = Journal(folder)
        except UsageError:
            if request.sweep.find:
                raise
            # Its first worker is running: this one joins it.
    if records is None:
        name = f"{platform.node()}-{uuid.uuid4().hex[:8]}"
        records = Journal(root / f"{stored['run_id']}-{name[-8:]}")
        journal.write_campaign(records.folder, {**stored, "joined": name})
        Store().adopt(stored["run_id"], stored["run"])
    else:
        opening.reopen(stored, records)
    return Worker(request, prepared, records, storage, study, display, name)


def _find(sweep: Sweep, run_id: str, root: Path) -> tuple[Path | None, dict[str, Any]]:
    """Return the sweep's journal, if it is on this machine, and the description of the sweep."""
    sweeps = [
        (folder, stored)
        for folder, stored in journal.descriptions(root, run_id)
        if stored["study"] == "sweep" and "joined" not in stored
    ]
    for folder, stored in reversed(sweeps):
        if run_id in ("last", stored["run_id"]):
            return folder, stored
    if not sweep.storage:
        have = ", ".join(stored["run_id"] for _, stored in sweeps[-5:]) or "none"
        raise UsageError(
            f"resume: no sweep {run_id} in {root} (have {have}); give journal=DIR, or "
            "storage=URL to join one elsewhere"
        )
    study = search.load(search.open_storage(sweep.storage, sweep.heartbeat_seconds), run_id)
    return None, json.loads(study.user_attrs[ATTRIBUTE])


def _resumed_request(
    stored: Mapping[str, Any], sweep: Sweep, texts: Mapping[str, str]
) -> SweepRequest:
    """Return the request of the beginning with the changes that a resumption may make."""
    before = settings_.from_values(Sweep, stored["sweep"])
    changes: dict[str, Any] = {}
    for entry in dataclasses.fields(Sweep):
        old, new = getattr(before, entry.name), getattr(sweep, entry.name)
        if new in (old, entry.default):
            continue
        if entry.name not in RAISED_ON_RESUME:
            raise UsageError(
                f"resume: {entry.name} was {old} at the beginning and cannot become {new}; "
                "start a new sweep"
            )
        changes[entry.name] = new
    resumed = dataclasses.replace(before, **changes)
    overrides = {name: text for name, text in texts.items() if name != "resume"}
    base = resume_.same_settings(before.experiment, stored["settings"], overrides)
    return SweepRequest(resumed, base, _goal(resumed, base))

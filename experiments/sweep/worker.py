"""One process that works on a sweep: begun, resumed or joined; its trials, then the campaign that judges what they found."""

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
from tracking.errors import WrongCall
from tracking.journal import Journal
from tracking.records import RunKind, RunOutcome, Tags
from tracking.store import Store, Unreachable, note

DATABASE = "optuna.db"
ATTRIBUTE = "evenhand"
RAISED_ON_RESUME = frozenset({"trials", "storage", "confirm", "heartbeat_seconds"})


@dataclass(frozen=True)
class SweepRequest:
    """A sweep as it was asked for. base: the experiment's settings where nothing is searched, the default framework first."""

    sweep: Sweep
    base: CampaignSettings
    goal: Goal

    @property
    def study(self) -> str:
        return self.sweep.experiment


@dataclass(frozen=True)
class Found:
    """What a sweep came to. conclusion: of the campaign that measured the best afresh; None where there was none."""

    sentences: list[str]
    page: Path | None = None
    settings: list[Path] = field(default_factory=list)
    dashboard: str = ""
    conclusion: Conclusion | None = None
    delivered: bool = True


def begin(sweep: Sweep, given: Mapping[str, str], display: Display) -> Worker:
    """A worker of a new sweep, or of one that was begun before. Raises WrongCall."""
    return (
        resume(sweep, given, display)
        if given.get("resume")
        else start(understood(sweep, given), display)
    )


def campaign_over_batches(
    sweep: Sweep, given: Mapping[str, str], display: Display
) -> Campaign | None:
    """What `find=best_batch` is, new or resumed; None where something else is asked. Raises WrongCall."""
    wanted = given.get("resume", "")
    if not wanted and sweep.find == "best_batch":
        asked = understood(sweep, given)
        asked = with_length(
            asked, preparation.prepare_data(asked.study, asked.base, display).dataset.counts
        )
        return pipeline.start(
            asked.study,
            asked.base,
            display,
            batches.plan(asked.study, asked.base, asked.goal.dimensions),
        )
    root = _journal(given)
    for folder, kept in reversed(journal.descriptions(root, wanted)) if wanted else ():
        if kept["study"] == "sweep" and wanted == "last":
            return None
        if kept.get("plan", {}).get("tags", {}).get("find") and wanted in ("last", kept["run_id"]):
            return pipeline.restart(
                kept["study"],
                folder.name,
                {k: text for k, text in given.items() if k != "resume"},
                root,
                display,
            )
    return None


def _journal(given: Mapping[str, str]) -> Path:
    return Path(given.get("journal") or CampaignSettings.journal).resolve()


def understood(sweep: Sweep, given: Mapping[str, str]) -> SweepRequest:
    """The call, checked as far as that goes without a server. given: the experiment's settings as text. Raises WrongCall."""
    module = studies.load(sweep.experiment)
    # a preset's cells may take turns, a trial is alone
    base: CampaignSettings = settings_.parse(
        module.settings, module.presets, {"pairing": "sequential", **given}
    )
    if base.aa or base.inject_delay:
        raise WrongCall(
            "aa, inject_delay: a trial is one cell and has no controls; ask for them in a campaign of the experiment"
        )
    if base.vary:
        raise WrongCall(
            f"vary={base.vary}: a trial is one cell; search it, or ask for it in a campaign of the experiment"
        )
    if base.pairing != "sequential":
        raise WrongCall(
            "pairing=interleaved: a trial is one cell and has nobody to take turns with; leave it out"
        )
    dimensions = space.parse(sweep.search, module.settings)
    space.check(base, dimensions)
    chosen = next((one.choices for one in dimensions if one.field == "frameworks"), None)
    if chosen:
        base = dataclasses.replace(base, frameworks=tuple(map(str, chosen)))
    elif "frameworks" not in given and not sweep.find:
        base = dataclasses.replace(base, frameworks=base.frameworks[:1])
    asked = SweepRequest(sweep, base, _goal(sweep, base))
    _check(asked)
    return asked


def _goal(sweep: Sweep, base: CampaignSettings) -> Goal:
    module = studies.load(sweep.experiment)
    dimensions = space.parse(sweep.search, module.settings)
    if (
        sweep.find == "max_batch"
        and len(base.frameworks) > 1
        and all(one.field != "frameworks" for one in dimensions)
    ):
        dimensions = (
            *dimensions,
            *space.parse(f"framework={'|'.join(base.frameworks)}", module.settings),
        )
    bounds = goals.constraints(sweep.constraints, module.outcomes)
    if sweep.find == "max_batch":
        return Goal(dimensions, (), bounds, along=batches.NAME)
    return Goal(dimensions, goals.objectives(sweep.objectives, module.outcomes), bounds)


def _check(asked: SweepRequest) -> None:
    sweep, goal = asked.sweep, asked.goal
    if asked.base.on_cluster and sweep.find == "max_batch":
        raise WrongCall(
            "find=max_batch: one size is tried after the other, by one worker; take executor=local, on a node"
        )
    if asked.base.on_cluster and asked.base.nodes_of_a_job > 1:
        raise WrongCall(
            f"nodes={asked.base.nodes}: a cell shares them, and a worker of a sweep has one; take nodes=1"
        )
    if asked.base.on_cluster and not sweep.find and not sweep.storage:
        raise WrongCall(
            "executor=slurm: workers on several nodes share a database; give storage=postgresql://user@host/database"
        )
    if sweep.find:
        batches.dimension(goal.dimensions, sweep.find)
    if sweep.find == "best_batch":
        return
    if sweep.pruner != "none" and len(goal.objectives) > 1:
        raise WrongCall(
            f"pruner={sweep.pruner}: trials are stopped by one objective, and {len(goal.objectives)} are asked for"
        )
    if sweep.pruner != "none" and goal.objectives[0].metric not in BY_EPOCH:
        metric = goal.objectives[0].metric
        raise WrongCall(
            f"pruner={sweep.pruner}: {metric} comes once, at the end; prune by loss, accuracy or train/loss"
        )
    if sweep.sampler == "grid" or sweep.find == "max_batch":
        for one in goal.dimensions:
            if not (sweep.find and one.name == batches.NAME):
                one.grid()  # raises for what has no end
    first = {one.name: one.extremes[0] for one in goal.dimensions}
    point(
        asked.study, asked.base, goal.dimensions, first
    )  # raises where a trial would be several cells


class Worker:
    """Built by `start` or `resume`; `run` does what is left of the sweep, beside others where there are any."""

    def __init__(
        self,
        asked: SweepRequest,
        prepared: PreparedCampaign,
        records: Journal,
        storage: RDBStorage,
        study: Study,
        display: Display,
        name: str = "",
    ) -> None:
        """name: of a worker that joined; empty for the process that holds the sweep's journal."""
        self.asked, self._storage, self.study, self.display = asked, storage, study, display
        self._joined = bool(name)
        self.runner = Recorder(records, display, devices.of(asked.base)[0])
        self.runner.warnings = list(prepared.data.warnings)
        self._trials = Trials(self.runner, study, prepared, asked.base, asked.goal)
        sweep = asked.sweep
        # Differs at every resumption and for every worker, so that none repeats the draws of another.
        seed = (
            asked.base.seed * 10_007
            + len(study.get_trials(deepcopy=False))
            + (zlib.crc32(name.encode()) if name else 0)
        )
        study.sampler = search.sampler(sweep.sampler, asked.goal.dimensions, seed)
        study.pruner = search.pruner(sweep.pruner, getattr(asked.base, "epochs", 1))

    def run(self) -> Found:
        """Run trials until there are enough; the process that holds the sweep's journal then concludes."""
        runner = self.runner
        try:
            with runner.signals():
                runner.warn(tuple(runner.warnings))
                self._work()
            if self._joined:
                self.runner.leave()
                where = f"if it has ended, resume={runner.run_id} with its journal does"
                return Found(
                    [f"The trials are done. The process that began the sweep concludes; {where}."]
                )
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
        sweep, base, dimensions = self.asked.sweep, self.asked.base, self.asked.goal.dimensions
        if sweep.find == "max_batch":
            others = len(space.points([one for one in dimensions if one.name != batches.NAME]))
            self.display.expect(
                others * batches.most_steps(batches.dimension(dimensions, sweep.find))
            )
            search.run_until(
                self.study, 0, self._trials.run, self._wait
            )  # what a dead worker dropped
            batches.find_largest(self.study, dimensions, self._try_one)
            return
        self.display.expect(self._count - len(self._ended()))
        if base.on_cluster:
            from experiments.sweep import jobs

            joining = jobs.Joining(sweep, jobs.given(base, self.runner.run_id))
            jobs.work(base, self.runner, joining, lambda: self._count - len(self._ended()))
            return
        search.run_until(self.study, self._count, self._trials.run, self._wait)

    @property
    def _count(self) -> int:
        sweep, dimensions = self.asked.sweep, self.asked.goal.dimensions
        return (
            min(sweep.trials, len(space.points(dimensions)))
            if sweep.sampler == "grid"
            else sweep.trials
        )

    def _ended(self) -> list[FrozenTrial]:
        return [
            one
            for one in search.counted(self.study.get_trials(deepcopy=False))
            if one.state.is_finished()
        ]

    def _try_one(self, values: Mapping[str, space.Value]) -> None:
        self.study.enqueue_trial(dict(values))
        search.run_until(self.study, 0, self._trials.run, self._wait)

    def _wait(self) -> None:
        self.runner.check_stop()
        self.display.step("waiting for the trials of others", 0, None)

    # ---- what was found

    def _conclude(self) -> Found:
        runner, asked = self.runner, self.asked
        folder = runner.folder / "found"
        folder.mkdir(exist_ok=True)
        best, told = self._best()
        sentences = [*told, *report.sentences(self.study.get_trials(), best, asked.goal)]
        files = winners.write(folder, best, asked.goal.dimensions)
        report.write_table(self.study, folder)
        self.display.begin("plots")
        self.display.step("plots", 0, None)
        title = f"Sweep of {asked.study}: {asked.sweep.search}"
        conclusion, lead = self._confirmed(best, sentences), ""
        if conclusion:
            sentences += [f"Measured again: {line}" for line in conclusion.sentences]
            lead = self._link(self.study.user_attrs[self._campaign])
        plots.write(self.study, folder, title, sentences, warned=runner.warnings)
        runner.keep_file(folder)
        if len(asked.goal.objectives) == 1 and best:
            runner.keep_metrics(
                {f"sweep/best/{asked.goal.objectives[0].metric}": best[0].values[0]}
            )
        text = "\n\n".join(["### Found\n" + "\n".join(f"- {one}" for one in sentences), lead])
        tags = {"verdict": " ".join(sentences)[:1_000], **note(text)}
        delivered = runner.close(RunOutcome.OK, "", tags)
        dashboard = (
            f"optuna-dashboard {self._storage.engine.url.render_as_string(hide_password=True)}"
        )
        return Found(sentences, folder / "sweep.html", files, dashboard, conclusion, delivered)

    def _best(self) -> tuple[list[FrozenTrial], list[str]]:
        """The trials worth judging, and what is said of a search for the largest batch."""
        if self.asked.sweep.find != "max_batch":
            return search.best(self.study), []
        found = batches.largest(self.study, self.asked.goal.dimensions)
        return [trial for _, trial in found if trial], report.largest(
            found, self.asked.goal.dimensions
        )

    def _confirmed(self, best: Sequence[FrozenTrial], sentences: list[str]) -> Conclusion | None:
        """The best against the default, with fresh seeds, in blocks; adds to the sentences why there is nothing to judge."""
        asked, root = self.asked, Path(self.asked.base.journal).resolve()
        if not (asked.sweep.confirm and best):
            sentences.append(
                "No verdict: nothing was measured again."
                if best
                else "No verdict: no trial kept to every bound."
            )
            return None
        begun = self.study.user_attrs.get(self._campaign, "")
        try:
            if begun and (root / begun / journal.CAMPAIGN).exists():
                campaign = pipeline.restart(asked.study, begun, {}, root, self.display)
            else:
                wanted = winners.plan(
                    asked.study,
                    asked.base,
                    asked.goal.dimensions,
                    winners.chosen(best),
                    self.runner.run_id,
                )
                if wanted is None:
                    sentences.append(
                        "The default is the best that was found: there is nothing to judge."
                    )
                    return None
                settings = winners.settings(asked.base, wanted)
                campaign = pipeline.start(
                    asked.study, settings, self.display, wanted, parent_run=self.runner.run_id
                )
        except WrongCall as error:
            sentences.append(
                f"No verdict: the best cannot be measured against the default: {error}."
            )
            return None
        self.study.set_user_attr(self._campaign, campaign.recorder.run_id)
        self.runner.write(Tags(self.runner.run, {"confirmed_by": campaign.recorder.run_id}))
        return pipeline.run(campaign, self.display.step)

    @property
    def _campaign(self) -> str:
        """The attribute that names the campaign of this conclusion; more trials have another."""
        return f"campaign after {len(self._ended())} trials"

    def _link(self, campaign: str) -> str:
        try:
            return f"The verdicts stand in [the campaign {campaign}]({self.runner.store.link(self.runner.experiment, campaign)})."
        except Unreachable:
            return f"The verdicts stand in the campaign {campaign}."

    def _leave(self, outcome: RunOutcome, reason: str) -> None:
        """End the sweep's run, which is left alone by those that joined."""
        if self._joined:
            self.runner.leave()
        else:
            self.runner.close(outcome, reason)


def start(asked: SweepRequest, display: Display) -> Worker:
    """A new sweep. Raises WrongCall for whatever can be known to fail."""
    sweep, base = asked.sweep, asked.base
    storage = search.open_storage(sweep.storage, sweep.heartbeat_seconds) if sweep.storage else None
    asked = with_length(asked, preparation.prepare_data(asked.study, base, display).dataset.counts)
    _check_extremes(asked, display)
    check_rates(asked)
    prepared = preparation.prepare(asked.study, space.widest(base, asked.goal.dimensions), display)
    known = {name: getattr(prepared.settings, name) for name in ("team", "device")}
    asked = dataclasses.replace(asked, base=dataclasses.replace(base, **known))
    params = {
        name: text
        for name, text in settings_.as_text(sweep).items()
        if text and name not in ("storage", "heartbeat_seconds")
    }
    name = f"sweep of {asked.study}: {sweep.search}"[:200]
    own = {
        "study": "sweep",
        "settings": dataclasses.asdict(asked.base),
        "sweep": dataclasses.asdict(sweep),
    }
    records = opening.open_journal(prepared, name, {"kind": RunKind.SWEEP}, own, params=params)
    kept = journal.read_campaign(records.folder)
    storage = storage or search.open_storage(
        search.sqlite(records.folder / DATABASE), sweep.heartbeat_seconds
    )
    study = search.create(storage, kept["run_id"], asked.goal, {ATTRIBUTE: json.dumps(kept)})
    worker = Worker(asked, prepared, records, storage, study, display)
    opening.record_preparation(worker.runner, prepared)
    return worker


def with_length(asked: SweepRequest, counts: Mapping[str, int]) -> SweepRequest:
    """The call, with the steps that each of its batch sizes takes. counts: of the experiment's data."""
    dimensions = asked.goal.dimensions
    trained = length.of(
        studies.load(asked.study), asked.base, counts, {one.field for one in dimensions}
    )
    dimensions = tuple(
        dataclasses.replace(one, length=trained) if one.name == batches.NAME and trained else one
        for one in dimensions
    )
    return dataclasses.replace(asked, goal=dataclasses.replace(asked.goal, dimensions=dimensions))


def check_rates(asked: SweepRequest) -> None:
    """Raises WrongCall for an objective or bound that trials which train differently much cannot be compared by."""
    along = next((one for one in asked.goal.dimensions if one.length), None)
    if along is None or along.length is None:
        return
    sizes = [int(one) for one in along.grid()] if asked.sweep.sampler == "grid" else along.sizes()
    difference = along.length.difference(sizes, asked.base.margin)
    for metric in asked.goal.metrics if difference else ():
        if not length.is_rate(metric):
            raise WrongCall(
                f"objectives, constraints: {metric} depends on how much is trained; {difference}. Ask for throughput, "
                f"latency or memory, or for {along.length.remedy(sizes, asked.base.margin)}"
            )


def _check_extremes(asked: SweepRequest, display: Display) -> None:
    """Every end of what is searched can be prepared, the rest as it is. Raises WrongCall."""
    for one in asked.goal.dimensions:
        for value in one.extremes:
            if one.field != "frameworks":
                preparation.prepare_data(
                    asked.study, space.settled(asked.base, (one,), {one.name: value}), display
                )


def resume(
    sweep: Sweep, given: Mapping[str, str], display: Display, *, join: bool = False
) -> Worker:
    """A worker of a sweep that was begun, here or on another machine that shares its storage. Raises WrongCall.

    join: whether its first worker is known to be at work.
    """
    root = _journal(given)
    folder, kept = _find(sweep, given["resume"], root)
    asked = _as_asked(kept, sweep, given)
    url = asked.sweep.storage or search.sqlite(folder / DATABASE if folder else Path())
    storage = search.open_storage(url, asked.sweep.heartbeat_seconds)
    study = search.load(storage, kept["run_id"])
    prepared = preparation.prepare(
        asked.study, space.widest(asked.base, asked.goal.dimensions), display
    )
    asked = with_length(asked, prepared.data.dataset.counts)
    name = ""
    try:
        records = Journal(folder) if folder and not join else None
    except WrongCall:
        if asked.sweep.find:
            raise
        records = None  # its first worker is at work: this one joins it
    if records is None:
        name = f"{platform.node()}-{uuid.uuid4().hex[:8]}"
        records = Journal(root / f"{kept['run_id']}-{name[-8:]}")
        journal.write_campaign(records.folder, {**kept, "joined": name})
        Store().adopt(kept["run_id"], kept["run"])
    else:
        opening.reopen(kept, records)
    return Worker(asked, prepared, records, storage, study, display, name)


def _find(sweep: Sweep, wanted: str, root: Path) -> tuple[Path | None, dict[str, Any]]:
    """The sweep's own journal, if it is here, and what it was asked; else what the storage knows of it."""
    here = [
        (folder, kept)
        for folder, kept in journal.descriptions(root, wanted)
        if kept["study"] == "sweep" and "joined" not in kept
    ]
    for folder, kept in reversed(here):
        if wanted in ("last", kept["run_id"]):
            return folder, kept
    if not sweep.storage:
        have = ", ".join(kept["run_id"] for _, kept in here[-5:]) or "none"
        raise WrongCall(
            f"resume: no sweep {wanted} in {root} (have {have}); give journal=DIR, or storage=URL to join one elsewhere"
        )
    study = search.load(search.open_storage(sweep.storage, sweep.heartbeat_seconds), wanted)
    kept = json.loads(study.user_attrs[ATTRIBUTE])
    return None, kept


def _as_asked(kept: Mapping[str, Any], sweep: Sweep, given: Mapping[str, str]) -> SweepRequest:
    """What was asked at the beginning. Raises WrongCall where something else is asked now."""
    before = settings_.from_values(Sweep, kept["sweep"])
    for one in dataclasses.fields(Sweep):
        old, new = getattr(before, one.name), getattr(sweep, one.name)
        if one.name not in RAISED_ON_RESUME and new not in (old, one.default):
            raise WrongCall(
                f"resume: {one.name} was {old} at the beginning and cannot become {new}; start anew"
            )
    now = {
        one: getattr(sweep, one)
        for one in RAISED_ON_RESUME
        if getattr(sweep, one) != getattr(Sweep, one)
    }
    own = {name: text for name, text in given.items() if name != "resume"}
    base = resume_.same_settings(before.experiment, kept["settings"], own)
    resumed = dataclasses.replace(before, **now)
    return SweepRequest(resumed, base, _goal(resumed, base))

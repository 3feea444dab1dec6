"""One process of a sweep: begun, resumed or joined; its trials, then the campaign of the best."""

from __future__ import annotations

import dataclasses
import json
import platform
import uuid
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from optuna.storages import RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial

from experiments.comparison.report.sections import Cell
from experiments.config import devices
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings, as_text
from experiments.config.stopping import Interrupted
from experiments.run import opening, pipeline, preparation
from experiments.run import resume as campaigns
from experiments.run.backends import JOBS, SUBMITTED
from experiments.run.pipeline import Conclusion
from experiments.run.prepared import PreparedCampaign
from experiments.run.recorder import Recorder
from experiments.sweep import requests, results, search, space, winners
from experiments.sweep.requests import SweepRequest
from experiments.sweep.settings import Sweep
from experiments.sweep.trials import Trials
from tracking import journal, links
from tracking.errors import ErrorCode, EvenhandError, UsageError
from tracking.journal import Journal
from tracking.reader import Unreachable
from tracking.records import RunKind, RunOutcome, Tags
from tracking.store import Store, note

DATABASE = "optuna.db"
ATTRIBUTE = "evenhand"


@dataclass(frozen=True)
class SweepResult:
    """Result of a sweep. commands: calls with the best settings. conclusion: of their campaign."""

    sentences: list[str]
    page: Path | None = None
    commands: list[str] = field(default_factory=list)
    dashboard: str = ""
    conclusion: Conclusion | None = None
    delivered: bool = True


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
        self.recorder = Recorder(records, display, devices.resolve_all(request.base)[0])
        self.recorder.warnings = list(prepared.data.warnings)
        self._trials = Trials(self.recorder, study, prepared, request.base, request.goal)
        # Differs for every worker and at every resumption, so that no worker repeats draws.
        seed = request.base.seed * 10_007 + len(study.get_trials(deepcopy=False))
        seed = (seed + zlib.crc32(name.encode())) % 2**31
        dimensions, epochs = request.goal.dimensions, getattr(request.base, "epochs", 1)
        study.sampler = search.SAMPLERS[request.sweep.sampler](dimensions, seed)
        study.pruner = search.PRUNERS[request.sweep.pruner](epochs)

    def run(self) -> SweepResult:
        """Run trials until there are enough; the process with the sweep's journal concludes."""
        recorder = self.recorder
        try:
            with recorder.signals():
                recorder.warn(tuple(recorder.warnings))
                self.display.expect(self._missing())
                if self.request.base.on_cluster:
                    self._run_jobs()
                else:
                    count = self.request.trials
                    search.run_until(self.study, count, self._trials.run, self._wait)
            if not self._joined:
                return self._conclude()
            recorder.leave()
            text = "The trials are done. The process that began the sweep concludes"
            return SweepResult([f"{text}, or resume={recorder.run_id} with its journal."])
        except Interrupted as error:
            self._leave(RunOutcome.INTERRUPTED, str(error))
            raise recorder.interrupted("; finished trials are kept") from None
        except KeyboardInterrupt:
            self._leave(RunOutcome.INTERRUPTED, "stopped while the best was judged")
            raise recorder.interrupted(" while the best was judged") from None
        except BaseException as error:
            self._leave(RunOutcome.FAILED, f"{type(error).__name__}: {error}")
            raise

    def _run_jobs(self) -> None:
        """Run workers as jobs of a cluster until no trial is missing, each from its node.

        Raises:
            EvenhandError: If all workers end before.
        """
        from experiments.run.backends import cluster

        recorder, base, total = self.recorder, self.request.base, self._missing()
        if not total:
            return
        folders = {name: str(Path(getattr(base, name)).resolve()) for name in ("journal", "cache")}
        options = {"resume": recorder.run_id, "executor": "local", **folders}
        tasks = [cluster.Task(partial(join, self.request.sweep, options))] * min(base.nodes, total)
        folder = recorder.folder.resolve() / JOBS / SUBMITTED
        submitted = cluster.submit(base, folder, recorder.run_id, tasks)
        with closing(cluster.follow(submitted)) as rounds:
            for _ in rounds:
                recorder.check_stop()
                recorder.display.step("trials of jobs", total - self._missing(), total)
        missing = self._missing()
        if missing > 0:  # workers that begin at the same moment run more trials than requested
            for job in submitted:
                job.result()  # raises the reason
            raise EvenhandError(
                ErrorCode.CHILD_FAILED,
                f"all workers have ended, and {missing} trials are missing; logs are in {folder}",
            )

    def _missing(self) -> int:
        return self.request.trials - self._finished()

    def _finished(self) -> int:
        trials = search.counted(self.study.get_trials(deepcopy=False))
        return sum(trial.state.is_finished() for trial in trials)

    def _wait(self) -> None:
        self.recorder.check_stop()
        self.display.step("waiting for trials of other workers", 0, None)

    def _conclude(self) -> SweepResult:
        recorder, request = self.recorder, self.request
        dimensions, objectives = request.goal.dimensions, request.goal.objectives
        folder = recorder.folder / "found"
        folder.mkdir(exist_ok=True)
        best = search.best(self.study)
        sentences = results.sentences(self.study.get_trials(), best, request.goal)
        self.display.begin("plots")
        self.display.step("plots", 0, None)
        conclusion, link = self._confirm(best, sentences), ""
        if conclusion:
            sentences += [f"Measured again: {line}" for line in conclusion.sentences]
            campaign = self.study.user_attrs[self._campaign]
            name = f"the campaign {campaign}"
            with suppress(Unreachable):
                name = f"[{name}]({links.link(recorder.store, recorder.experiment, campaign)})"
            link = f"The verdicts are in {name}."
            metrics = [objective.metric for objective in objectives]
            if conclusion.answer:
                best = winners.not_refuted(best, conclusion.answer.comparison, metrics)
            if not best:
                sentences.append("Keep the default: measured again, no trial is better.")
        commands = [winners.command(request.sweep.experiment, trial, dimensions) for trial in best]
        winners.write(folder, best, dimensions)
        results.write_page(
            self.study,
            folder,
            request.sweep,
            sentences,
            recorder.warnings,
            self._runs_of_trials(),
        )
        recorder.keep_file(folder)
        if len(objectives) == 1 and best:
            recorder.keep_metrics({f"sweep/best/{objectives[0].metric}": best[0].values[0]})
        text = "\n\n".join(["### Found\n" + "\n".join(f"- {line}" for line in sentences), link])
        tags = {"verdict": " ".join(sentences)[:1_000], **note(text)}
        delivered = recorder.close(RunOutcome.OK, "", tags)
        url = self._storage.engine.url.render_as_string(hide_password=True)
        dashboard = f"optuna-dashboard {url}"
        page = folder / "sweep.html"
        return SweepResult(sentences, page, commands, dashboard, conclusion, delivered)

    def _runs_of_trials(self) -> dict[int, Cell]:
        """Return the runs in MLflow by number of the trial; none if the server does not answer."""
        recorder, store = self.recorder, self.recorder.store
        if not recorder.deliver():
            return {}
        runs = store.runs(recorder.experiment, f"tags.campaign = '{recorder.run_id}'")
        return {
            int(run.tags["trial"]): Cell(run.run_id, link=links.address(store.uri, run.run_id))
            for run in runs
            if "trial" in run.tags
        }

    def _confirm(self, best: Sequence[FrozenTrial], sentences: list[str]) -> Conclusion | None:
        """Measure the best against the default, with fresh seeds, in blocks.

        A reason why there is nothing to judge is added to the sentences.
        """
        request, root = self.request, Path(self.request.base.journal).resolve()
        if not (best and request.sweep.confirm):
            reason = "nothing was measured again" if best else "no trial satisfies every bound"
            sentences.append(f"No verdict: {reason}.")
            return None
        begun = self.study.user_attrs.get(self._campaign, "")
        try:
            if begun and (root / begun / journal.CAMPAIGN).exists():
                begun_settings = replace(request.base, resume=begun)
                campaign = pipeline.reopen(
                    request.sweep.experiment, begun_settings, self.display, {}
                )
            else:
                run_id, trials = self.recorder.run_id, winners.select(best)
                dimensions = request.goal.dimensions
                plan = winners.plan(
                    request.sweep.experiment, request.base, dimensions, trials, run_id
                )
                if plan is None:
                    sentences.append("The default is the best setting: there is nothing to judge.")
                    return None
                settings = winners.settings(request.base, plan)
                campaign = pipeline.open_new(
                    request.sweep.experiment, settings, self.display, plan, parent_run=run_id
                )
        except UsageError as error:
            sentences.append(f"No verdict: the best could not be measured again: {error}.")
            return None
        self.study.set_user_attr(self._campaign, campaign.recorder.run_id)
        self.recorder.write(Tags(self.recorder.run, {"confirmed_by": campaign.recorder.run_id}))
        return pipeline.finish(campaign)

    @property
    def _campaign(self) -> str:
        return f"campaign after {self._finished()} trials"

    def _leave(self, outcome: RunOutcome, reason: str) -> None:
        if self._joined:
            self.recorder.leave()
        else:
            self.recorder.close(outcome, reason)


def begin(sweep: Sweep, texts: Mapping[str, str], display: Display) -> Worker:
    """Return the worker of a new sweep, or of one that is resumed.

    Args:
        sweep: Settings of the search.
        texts: The experiment's settings as the user wrote them.
        display: Shows the progress.

    Raises:
        UsageError: For what can be known to fail.
    """
    if texts.get("resume"):
        return resume(sweep, texts, display)
    request = requests.parse(sweep, texts)
    base = request.base
    storage = search.open_storage(sweep.storage, sweep.heartbeat_seconds) if sweep.storage else None
    counts = preparation.prepare_data(request.sweep.experiment, base, display).dataset.counts
    request = requests.with_length(request, counts)
    dimensions = request.goal.dimensions
    for dimension in dimensions:
        for value in dimension.extremes if dimension.field != "frameworks" else ():
            settings = space.settled(base, (dimension,), {dimension.name: value})
            preparation.prepare_data(request.sweep.experiment, settings, display)
    requests.check_rates(request)
    prepared = preparation.prepare(
        request.sweep.experiment, space.widest(base, dimensions), display
    )
    resolved = {name: getattr(prepared.settings, name) for name in ("team", "device")}
    request = dataclasses.replace(request, base=dataclasses.replace(base, **resolved))
    params = {
        name: text
        for name, text in as_text(sweep).items()
        if text and name not in ("storage", "heartbeat_seconds")
    }
    name = base.name or f"sweep of {request.sweep.experiment}: {sweep.search}"[:200]
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
    study = search.create(storage, stored["run_id"], request.goal)
    study.set_user_attr(ATTRIBUTE, json.dumps(stored))
    worker = Worker(request, prepared, records, storage, study, display)
    opening.record_preparation(worker.recorder, prepared)
    return worker


def resume(
    sweep: Sweep, texts: Mapping[str, str], display: Display, *, join: bool = False
) -> Worker:
    """Return a worker of a sweep that was begun, here or on a machine that shares its storage.

    Args:
        sweep: Settings of the search.
        texts: The experiment's settings as the user wrote them.
        display: Shows the progress.
        join: True if another process concludes the sweep.

    Raises:
        UsageError: There is no such sweep, or the request differs from its beginning.
    """
    root = Path(texts.get("journal") or CampaignSettings.journal).resolve()
    folder, stored = _find(sweep, texts["resume"], root)
    request = requests.resumed(stored, sweep, texts)
    url = request.sweep.storage or f"sqlite:///{folder / DATABASE if folder else ''}"
    storage = search.open_storage(url, request.sweep.heartbeat_seconds)
    study = search.load(storage, stored["run_id"])
    widest = space.widest(request.base, request.goal.dimensions)
    prepared = preparation.prepare(request.sweep.experiment, widest, display)
    request = requests.with_length(request, prepared.data.dataset.counts)
    records, name = None, ""
    try:
        records = Journal(folder) if folder and not join else None
    except UsageError:  # its first worker is running: this one joins it
        pass
    if records is None:
        name = f"{platform.node()}-{uuid.uuid4().hex[:8]}"
        records = Journal(root / f"{stored['run_id']}-{name[-8:]}")
        journal.write_campaign(records.folder, {**stored, "joined": name})
        Store().adopt(stored["run_id"], stored["run"])
    else:
        opening.reopen(stored, records)
    return Worker(request, prepared, records, storage, study, display, name)


def join(sweep: Sweep, options: Mapping[str, str], display: Display) -> None:
    """Run trials in a job of a cluster that joins a sweep."""
    from experiments.run.backends.slurm import prepare_node

    worker = resume(sweep, options, display, join=True)
    prepare_node(worker.recorder, worker.request.base)
    worker.run()


def _find(sweep: Sweep, run_id: str, root: Path) -> tuple[Path | None, dict[str, Any]]:
    """Return the sweep's journal, if it is on this machine, and the description of the sweep."""
    try:
        folder = campaigns.find(run_id, root, "sweep")
        return folder, journal.read_campaign(folder)
    except UsageError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        if not sweep.storage:
            raise UsageError(error.code, f"{error}; or give storage=URL to join one") from None
    study = search.load(search.open_storage(sweep.storage, sweep.heartbeat_seconds), run_id)
    return None, json.loads(study.user_attrs[ATTRIBUTE])

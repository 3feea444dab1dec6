"""Workers of a sweep as jobs of a cluster: each joins the sweep from its node."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.run.backends import JOBS, SUBMITTED, cluster
from experiments.run.backends.slurm import prepare_node
from experiments.run.recorder import Recorder
from experiments.sweep import worker
from experiments.sweep.settings import Sweep
from tracking.errors import ErrorCode, EvenhandError


@dataclass
class WorkerTask(cluster.Task):
    """Task of a job that joins a sweep; `options` are the experiment's settings as text."""

    sweep: Sweep
    options: dict[str, str]

    def run(self, display: Display) -> None:
        joined = worker.resume(self.sweep, self.options, display, join=True)
        prepare_node(joined.recorder, joined.request.base)
        joined.run()


def run(
    settings: CampaignSettings, sweep: Sweep, recorder: Recorder, count_missing: Callable[[], int]
) -> None:
    """Run workers as jobs until no trial is missing.

    Args:
        settings: The experiment's, with those of the cluster.
        sweep: Settings of the search.
        recorder: Of the process that began the sweep.
        count_missing: Counts the trials that have not finished.

    Raises:
        EvenhandError: If all workers end before.
    """
    total = count_missing()
    if not total:
        return
    options = {name: str(Path(getattr(settings, name)).resolve()) for name in ("journal", "cache")}
    task = WorkerTask(sweep, {"resume": recorder.run_id, "executor": "local", **options})
    folder = recorder.folder.resolve() / JOBS / SUBMITTED
    tasks = [task] * min(settings.nodes, total)
    submitted = cluster.submit(settings, folder, recorder.run_id, tasks)
    with closing(cluster.follow(submitted)) as rounds:
        for _ in rounds:
            recorder.check_stop()
            recorder.display.step("trials of jobs", total - count_missing(), total)
    missing = count_missing()
    if missing > 0:  # workers that begin at the same moment run more trials than requested
        for job in submitted:
            job.result()  # raises the reason
        raise EvenhandError(
            ErrorCode.CHILD_FAILED,
            f"all workers have ended, and {missing} trials are missing; logs are in {folder}",
        )

"""Workers of a sweep as jobs of a cluster: each joins the sweep from its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.run.backends import JOBS, SUBMITTED, cluster
from experiments.run.backends.slurm import prepare_node
from experiments.run.recorder import Recorder
from experiments.sweep.requests import SweepRequest
from experiments.sweep.settings import Sweep
from tracking.errors import ErrorCode, EvenhandError


class JoinedWorker(Protocol):
    """Worker of a sweep that another process concludes."""

    recorder: Recorder
    request: SweepRequest

    def run(self) -> object:
        """Run trials until none is missing."""


Join = Callable[[Sweep, Mapping[str, str], Display], JoinedWorker]


@dataclass
class WorkerTask(cluster.Task):
    """Task of a job that joins a sweep.

    Attributes:
        sweep: Settings of the search.
        options: The experiment's settings as text.
        join: Returns the worker of such a job.
    """

    sweep: Sweep
    options: dict[str, str]
    join: Join

    def run(self, display: Display) -> None:
        worker = self.join(self.sweep, self.options, display)
        prepare_node(worker.recorder, worker.request.base)
        worker.run()


def run(
    settings: CampaignSettings,
    sweep: Sweep,
    recorder: Recorder,
    count_missing: Callable[[], int],
    join: Join,
) -> None:
    """Run workers as jobs until no trial is missing.

    Args:
        settings: The experiment's, with those of the cluster.
        sweep: Settings of the search.
        recorder: Of the process that began the sweep.
        count_missing: Counts the trials that have not finished.
        join: Returns the worker of a job.

    Raises:
        EvenhandError: If all workers end before.
    """
    total = count_missing()
    if not total:
        return
    options = {name: str(Path(getattr(settings, name)).resolve()) for name in ("journal", "cache")}
    task = WorkerTask(sweep, {"resume": recorder.run_id, "executor": "local", **options}, join)
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

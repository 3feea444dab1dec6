"""Workers of a sweep as jobs of a cluster: each joins the sweep from its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import STOP
from experiments.run.backends import JOBS, cluster
from experiments.run.backends.slurm import SUBMITTED, name_of, prepare_node
from experiments.run.recorder import Recorder
from experiments.sweep.settings import Sweep
from tracking.errors import ErrorCode, EvenhandError


@dataclass
class WorkerJob:
    """Job of a worker; `options` are the settings with which it joins the sweep."""

    sweep: Sweep
    options: Mapping[str, str]

    def __call__(self) -> None:
        from experiments.sweep import worker

        STOP.hold()
        STOP.watch()
        with Display() as display:
            joined = worker.resume(self.sweep, self.options, display, join=True)
            prepare_node(joined.recorder, joined.request.base)
            joined.run()

    def checkpoint(self) -> Any:
        """Join again when submitit reports that the job's time is over; its trial is run again."""
        return cluster.requeued(self)


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
    folders = {name: str(Path(getattr(settings, name)).resolve()) for name in ("journal", "cache")}
    task = WorkerJob(sweep, {"resume": recorder.run_id, "executor": "local", **folders})
    folder, count = recorder.folder.resolve() / JOBS / SUBMITTED, min(settings.nodes, total)
    submitted = cluster.submit(settings, folder, name_of(recorder.run_id), [task] * count)
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

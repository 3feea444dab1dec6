"""Workers of a sweep as jobs of a cluster: each joins the sweep from its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import STOP
from experiments.run.backends import JOBS, cluster
from experiments.run.backends.slurm import SUBMITTED, name_of, prepare_node
from experiments.run.recorder import Recorder
from experiments.sweep.settings import Sweep
from tracking.errors import EvenhandError


@dataclass
class WorkerJob:
    """Job of a worker; `options` are the settings with which it resumes the sweep."""

    sweep: Sweep
    options: Mapping[str, str] = field(default_factory=dict)

    def __call__(self) -> None:
        from experiments.sweep import worker

        STOP.hold()
        STOP.watch()
        with Display() as display:
            options = {**self.options, "executor": "local"}
            joined = worker.resume(self.sweep, options, display, join=True)
            prepare_node(joined.runner, joined.request.base)
            joined.run()

    def checkpoint(self) -> Any:
        """Join again when submitit reports that the job's time is over; its trial is run again."""
        return cluster.requeued(self)


def work(
    settings: CampaignSettings, runner: Recorder, work: WorkerJob, missing: Callable[[], int]
) -> None:
    """Wait until no trial is missing. Raises EvenhandError if all workers ended before."""
    total = missing()
    folder = runner.folder.resolve() / JOBS / SUBMITTED
    sent = cluster.submit(
        settings, folder, name_of(runner.run_id), [work] * min(settings.nodes, max(1, total))
    )
    with closing(cluster.follow(sent)) as rounds:
        for _ in rounds:
            runner.check_stop()
            runner.display.step("trials of jobs", total - missing(), total)
    if missing():
        for job in sent:
            job.result()  # raises the reason
        raise EvenhandError(
            f"all workers have ended, and {missing()} trials are missing; their logs are in "
            f"{folder}"
        )


def resume_options(settings: CampaignSettings, run_id: str) -> dict[str, str]:
    return {
        "resume": run_id,
        **{name: str(Path(getattr(settings, name)).resolve()) for name in ("journal", "cache")},
    }

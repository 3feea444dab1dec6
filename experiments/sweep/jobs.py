"""The workers of a sweep as jobs of a cluster: each joins the sweep from its node; the one that was started here concludes."""

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
from experiments.run.backends.slurm import SUBMITTED, name_of
from experiments.run.backends.slurm_task import prepare_node
from experiments.run.recorder import Recorder
from experiments.sweep.settings import Sweep
from tracking.errors import EvenhandError


@dataclass
class Joining:
    """What a worker's job is sent as. given: the settings that it resumes the sweep with."""

    sweep: Sweep
    given: Mapping[str, str] = field(default_factory=dict)

    def __call__(self) -> None:
        """Works on trials until there are enough."""
        from experiments.sweep import worker

        STOP.hold()
        STOP.watch()
        with Display() as display:
            joined = worker.resume(
                self.sweep, {**self.given, "executor": "local"}, display, join=True
            )
            prepare_node(joined.runner, joined.asked.base)
            joined.run()

    def checkpoint(self) -> Any:
        """Called by submitit when the job's time is over: it joins again, and its trial is run again, by whoever is free."""
        return cluster.requeued(self)


def work(
    settings: CampaignSettings, runner: Recorder, work: Joining, missing: Callable[[], int]
) -> None:
    """Until no trial is missing. Raises EvenhandError where all workers ended before that."""
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
        for one in sent:
            one.result()  # raises the reason
        raise EvenhandError(
            f"all workers have ended, and {missing()} trials are missing; their logs are in {folder}"
        )


def given(settings: CampaignSettings, run_id: str) -> dict[str, str]:
    """What a worker on another machine resumes a sweep with."""
    return {
        "resume": run_id,
        **{name: str(Path(getattr(settings, name)).resolve()) for name in ("journal", "cache")},
    }


__all__ = ["Joining", "given", "work"]

"""Where the cells of a campaign run: on this machine, or as jobs of a cluster. Both run blocks by the same code."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Generator, Sequence

from experiments.config import durations
from experiments.config import settings as settings_
from experiments.config.settings import CampaignSettings
from experiments.contract import Job
from experiments.planning.design import Cell
from experiments.run.campaign import Campaign, Executor, Measured
from tracking.errors import WrongCall
from tracking.journal import Journal

JOBS = "jobs"  # below a campaign's folder: a journal for each of its jobs, and what submitit needs
COMMANDS = ("sbatch", "srun", "squeue", "scancel", "sinfo")


class Local:
    """One block after the other, here."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign

    def extract(self, jobs: Sequence[Job]) -> list[bool]:
        """See `Executor`."""
        return [self._campaign.extract(job) for job in jobs]

    def blocks(self, blocks: Sequence[Sequence[Cell]]) -> Generator[Measured]:
        """See `Executor`."""
        for cells in blocks:
            yield self._campaign.block(cells)


def of(campaign: Campaign) -> Executor:
    """What the settings ask for."""
    if not campaign.settings.on_cluster:
        return Local(campaign)
    from experiments.run.jobs import Jobs

    return Jobs(campaign)


def gather(records: Journal, run_id: str) -> None:
    """What jobs of an earlier launch have measured goes to the campaign's journal."""
    if (records.folder / JOBS).is_dir():
        _require_cluster()
        from experiments.run import jobs

        jobs.gather(records, run_id)


def check(settings: CampaignSettings) -> None:
    """Raises WrongCall for settings that do not go together, and where this machine cannot send jobs as they ask."""
    if not settings.on_cluster:
        defaults = CampaignSettings()
        for name in sorted(settings_.of_group(settings, "cluster") - {"executor"}):
            if (given := getattr(settings, name)) != getattr(defaults, name):
                raise WrongCall(f"{name}={given} is for jobs of a cluster; add executor=slurm")
        return
    durations.seconds("time_limit", settings.time_limit)
    if settings.time_limit == "none":
        raise WrongCall("time_limit=none: a job needs a limit; write 30m, 2h or 1d")
    _require_cluster()
    from experiments.run import slurm

    slurm.check(settings)


def _require_cluster() -> None:
    """Raises WrongCall where this machine cannot ask a cluster for anything."""
    if importlib.util.find_spec("submitit") is None:
        raise WrongCall("executor=slurm needs submitit: pip install -c constraints.txt -e '.[slurm]'")
    if missing := [name for name in COMMANDS if shutil.which(name) is None]:
        raise WrongCall(
            f"executor=slurm: {', '.join(missing)} not found on this machine; start on a login node, or with executor=local"
        )


__all__ = ["Local", "check", "gather", "of"]

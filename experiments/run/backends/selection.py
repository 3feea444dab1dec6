"""Choice of a campaign's backend; what needs a cluster is imported only where one is used."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from experiments.config import durations
from experiments.config.settings import CLUSTER, CampaignSettings
from experiments.run.backends import JOBS, SUBMITTED, Backend
from experiments.run.backends.local import local_backend
from experiments.run.campaign import Campaign
from experiments.run.prepared import PreparedCampaign
from tracking.errors import ErrorCode, UsageError
from tracking.journal import Journal


def select_backend(campaign: Campaign) -> Backend:
    if not campaign.settings.on_cluster:
        return local_backend(campaign)
    from experiments.run.backends.slurm import Slurm

    return Slurm(campaign)


def cancel(folder: Path, run_id: str) -> None:
    """Cancel the jobs of an earlier launch, whose folder of the journal is given."""
    if (folder / JOBS).is_dir():
        _require_cluster()
        from experiments.run.backends import cluster

        cluster.cancel(folder / JOBS / SUBMITTED, run_id)


def gather(records: Journal, prepared: PreparedCampaign) -> None:
    """Collect what jobs of an earlier launch have measured into the campaign's journal."""
    if (records.folder / JOBS).is_dir():
        from experiments.run.backends import slurm

        slurm.gather(records, prepared)


def check(settings: CampaignSettings) -> None:
    """Raise UsageError for settings that contradict each other, or that no job can have."""
    if not settings.on_cluster:
        defaults = CampaignSettings()
        for name in sorted(CLUSTER - {"executor"}):
            if (value := getattr(settings, name)) != getattr(defaults, name):
                raise UsageError(
                    ErrorCode.CONFLICT,
                    f"{name}={value} is for jobs of a cluster; add executor=slurm",
                )
        return
    durations.seconds("time_limit", settings.time_limit)
    if settings.time_limit == "none":
        raise UsageError(
            ErrorCode.MISSING_VALUE, "time_limit=none: a job needs a limit; write 30m, 2h or 1d"
        )
    _require_cluster()
    from experiments.run.backends import cluster

    cluster.check(settings)


def _require_cluster() -> None:
    if importlib.util.find_spec("submitit") is None:
        raise UsageError(
            ErrorCode.NOT_INSTALLED,
            "executor=slurm needs submitit: pip install -c constraints.txt -e '.[slurm]'",
        )

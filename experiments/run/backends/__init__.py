"""Backends that run the cells of a campaign: on this machine, or as jobs of a cluster."""

from __future__ import annotations

import importlib.util
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from experiments.config import durations
from experiments.config.settings import CLUSTER, CampaignSettings
from experiments.contract import Job
from experiments.planning.design import Cell
from tracking.errors import ErrorCode, UsageError
from tracking.journal import Journal

if TYPE_CHECKING:
    from experiments.run.campaign import Campaign
    from experiments.run.prepared import PreparedCampaign

# Below a campaign's folder: a journal for each of its jobs, and below that submitit's files.
JOBS, SUBMITTED = "jobs", "submitted"


@dataclass(frozen=True)
class BlockResult:
    """Result of a block.

    Attributes:
        ran_now: True if any of its cells ran in this launch.
        ok: True if all of these succeeded.
    """

    block: int
    ran_now: bool
    ok: bool


class Backend(Protocol):
    """Place where the cells of a campaign run."""

    def extract(self, jobs: Sequence[Job]) -> list[bool]:
        """Run jobs that cells need, in this order.

        Args:
            jobs: Jobs of `Prepared.before`.

        Returns:
            For each job, True if it succeeded.
        """

    def blocks(self, blocks: Sequence[Sequence[Cell]]) -> Generator[BlockResult]:
        """Run every missing cell by block. Closed before its end, it stops what still runs.

        Args:
            blocks: Cells of each block, in the order in which they run.

        Yields:
            The result of each block, as soon as its cells have ended.
        """


def select_backend(campaign: Campaign) -> Backend:
    if not campaign.settings.on_cluster:
        return local_backend(campaign)
    from experiments.run.backends.slurm import Slurm

    return Slurm(campaign)


def local_backend(campaign: Campaign) -> Backend:
    from experiments.run.backends.local import Interleaved, Sequential

    return (Interleaved if campaign.settings.pairing == "interleaved" else Sequential)(campaign)


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

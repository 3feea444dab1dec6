"""Backends that run the cells of a campaign: on this machine, or as jobs of a cluster."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from experiments.contract import Job
from experiments.planning.design import Cell

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

"""torchrun as a library: processes that are all started again where one of them ends badly."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def launch(command: Sequence[str], workers: int, restarts: int, folder: Path, name: str) -> str:
    """Runs so many processes of a command on this machine to their end. Returns why that was not a good one, in words; else "".

    restarts: how often all of them are started again. folder: for what they write to standard error. name: of the group.
    They find their places in the environment, as torchrun sets it: RANK, WORLD_SIZE, TORCHELASTIC_RESTART_COUNT …
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=name,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",  # else the machine's name is looked up, which need not have an address
        max_restarts=restarts,
        logs_specs=DefaultLogsSpecs(str(folder), redirects=Std.ERR),
    )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as error:
        rank, cause = min(error.failures.items(), key=lambda found: _order(found[1]))
        again = f"after {restarts} restart{'s' * (restarts != 1)}"
        return f"worker {rank} {_told(cause, folder)}, {again} (max_restarts={restarts})"
    return ""


def _order(failure: ProcessFailure) -> tuple[bool, int, bool]:
    """The cause comes first: others fail as they miss it, or are ended by torchrun."""
    return failure.exitcode == -signal.SIGTERM, failure.timestamp, failure.exitcode >= 0


def _told(failure: ProcessFailure, folder: Path) -> str:
    if failure.exitcode < 0:
        return f"was killed by {failure.signal_name()}"
    logs = sorted(folder.glob(f"*/attempt_*/{failure.local_rank}/stderr.log"), key=lambda path: path.stat().st_mtime)
    said = logs[-1].read_text(errors="replace").split("\n\n")[-1].strip().splitlines() if logs else []
    return f"ended with code {failure.exitcode}: {said[-1][:300] if said else 'nothing said'}"

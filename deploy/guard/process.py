"""Process of a guarded server: uvicorn's options, and what is done once before it starts."""

from __future__ import annotations

import os
import resource

STATEMENT_SECONDS = 60
UVICORN: dict[str, str | int | bool] = {
    "http": "deploy.guard.connections:BoundedProtocol",
    "ws": "none",
    "timeout_keep_alive": 20,
    # A worker that does not answer in this time is ended. A busy one may need some seconds.
    "timeout_worker_healthcheck": 30,
    "server_header": False,
}


def prepare(artifacts: str) -> None:
    """Make tables and administrator, and set what workers inherit.

    Args:
        artifacts: Folder or s3:// address.
    """
    from deploy.guard import backend

    _, largest = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (largest, largest))
    backend.prepare(artifacts)
    # libpq reads it in every worker.
    os.environ.setdefault("PGOPTIONS", f"-c statement_timeout={STATEMENT_SECONDS}s")

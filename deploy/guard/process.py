"""Process of a guarded server: uvicorn's options, and what is done once before it starts."""

from __future__ import annotations

import os
import resource

PROXY_SECRET, SHORTEST_SECRET = "EVENHAND_PROXY_SECRET", 32
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

    Raises:
        ValueError: The proxy's secret is short.
    """
    from deploy.guard import backend

    if 0 < len(os.environ.get(PROXY_SECRET, "")) < SHORTEST_SECRET:
        right = f"at least {SHORTEST_SECRET} random characters: openssl rand -hex 24"
        raise ValueError(f"{PROXY_SECRET} is short; it needs {right}")
    _, largest = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (largest, largest))
    backend.prepare(artifacts)
    # libpq reads it in every worker.
    os.environ.setdefault("PGOPTIONS", f"-c statement_timeout={STATEMENT_SECONDS}s")

"""Process of a guarded server: uvicorn's options, and what is done once before it starts."""

from __future__ import annotations

import os
import resource
from pathlib import Path

PROXY_SECRET, SHORTEST_SECRET = "EVENHAND_PROXY_SECRET", 32
STATEMENT_SECONDS = 60
# Where `evenhand admin` writes passwords of new users, if it is called in the server's folder.
ACCOUNTS = ".evenhand/accounts"
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
        ValueError: The proxy's secret is short, or the artifacts have no folder of their own.
    """
    from deploy.guard import backend

    if artifacts.startswith("file:"):
        raise ValueError(f"artifacts in {artifacts}: write the path of the folder alone")
    if "://" not in artifacts:
        for place in (*backend.files(), ACCOUNTS):
            if Path(place).resolve().is_relative_to(Path(artifacts).resolve()):
                right = "choose a folder of its own, such as ./mlartifacts"
                raise ValueError(f"artifacts in {artifacts}: {place} lies there; {right}")
        Path(artifacts).mkdir(parents=True, exist_ok=True)
    if 0 < len(os.environ.get(PROXY_SECRET, "")) < SHORTEST_SECRET:
        right = f"at least {SHORTEST_SECRET} random characters: openssl rand -hex 24"
        raise ValueError(f"{PROXY_SECRET} is short; it needs {right}")
    _, largest = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (largest, largest))
    backend.prepare(artifacts)
    # libpq reads it in every worker.
    os.environ.setdefault("PGOPTIONS", f"-c statement_timeout={STATEMENT_SECONDS}s")

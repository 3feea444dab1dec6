"""`python -m deploy.guard`: MLflow behind the guard."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any


def main(arguments: Sequence[str]) -> None:
    """Serve MLflow; database, accounts and secrets come from MLflow's variables."""
    parser = argparse.ArgumentParser(prog="python -m deploy.guard", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--artifacts", required=True, help="folder or s3:// address")
    hosts = "names by which users call the server, with ports, commas between"
    parser.add_argument("--hosts", required=True, help=hosts)
    origins = "addresses of its own pages, commas between"
    parser.add_argument("--origins", required=True, help=origins)
    proxies = "addresses whose X-Forwarded-For is believed, commas between; * for all"
    parser.add_argument("--proxies", default="", help=proxies)
    args = parser.parse_args(arguments)
    import uvicorn

    # Read when MLflow is imported, here and in every worker.
    os.environ["MLFLOW_SERVER_ALLOWED_HOSTS"] = args.hosts
    os.environ["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] = args.origins
    from deploy.guard import backend, process

    try:
        process.prepare(args.artifacts)
    except ValueError as error:
        parser.error(str(error))
    options: dict[str, Any] = process.UVICORN
    uvicorn.run(
        "deploy.guard.app:create",
        factory=True,
        host=args.host,
        port=args.port,
        workers=args.workers,
        proxy_headers=bool(args.proxies),
        forwarded_allow_ips=args.proxies or None,
        log_config=str(backend.LOG_CONFIG),
        **options,
    )


if __name__ == "__main__":
    main(sys.argv[1:])

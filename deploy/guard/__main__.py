"""`python -m deploy.guard serve|routes`: serves MLflow behind the guard; or lists routes that nobody has classified."""

from __future__ import annotations

import argparse
import os
import resource
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from deploy import authentication

KEPT_ALIVE_SECONDS = 20
STATEMENT_SECONDS = 60
# A worker that does not answer for so long is ended. One with much to do may need some seconds.
HEALTHCHECK_SECONDS = 30


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.guard", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("routes", help="what routes.toml lacks and what MLflow lacks")
    server = actions.add_parser(
        "serve", help="database, accounts and secrets come from MLflow's variables"
    )
    server.add_argument("--host", default="127.0.0.1")
    server.add_argument("--port", type=int, default=5000)
    server.add_argument("--workers", type=int, default=2)
    server.add_argument("--artifacts", required=True, help="folder or s3:// address")
    server.add_argument(
        "--hosts",
        required=True,
        help="names by which users call the server, with ports, commas between",
    )
    server.add_argument(
        "--origins", required=True, help="addresses of its own pages, commas between"
    )
    server.add_argument(
        "--proxies",
        default="",
        help="addresses whose X-Forwarded-For is believed, commas between; * for all",
    )
    asked = parser.parse_args(arguments)
    return _routes() if asked.action == "routes" else _serve(asked)


def _serve(asked: argparse.Namespace) -> int:
    import uvicorn

    # Read when MLflow is imported, here and in every worker.
    os.environ["MLFLOW_SERVER_ALLOWED_HOSTS"] = asked.hosts
    os.environ["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] = asked.origins
    from deploy.guard import inside, turns
    from deploy.guard.connections import BoundedProtocol

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    inside.prepare(asked.artifacts)
    os.environ.setdefault(
        "PGOPTIONS", f"-c statement_timeout={STATEMENT_SECONDS}s"
    )  # read by libpq, in every worker
    with tempfile.NamedTemporaryFile(prefix="evenhand-turns-") as shared:
        os.environ[turns.FILE] = shared.name
        uvicorn.run(
            "deploy.guard.app:create",
            factory=True,
            host=asked.host,
            port=asked.port,
            workers=asked.workers,
            http=BoundedProtocol,
            ws="none",
            proxy_headers=bool(asked.proxies),
            forwarded_allow_ips=asked.proxies or None,
            timeout_keep_alive=KEPT_ALIVE_SECONDS,
            timeout_worker_healthcheck=HEALTHCHECK_SECONDS,
            server_header=False,
            log_config=str(inside.LOG_CONFIG),
        )
    return 0


def _routes() -> int:
    with tempfile.TemporaryDirectory() as folder:
        # MLflow wants a database and secrets before it lists its routes.
        settings, store = Path(folder, "auth.ini"), f"sqlite:///{folder}/store.db"
        authentication.write_settings(settings, store)
        os.environ |= authentication.environment(
            settings, store, secrets.token_hex(), secrets.token_hex()
        )
        from deploy.guard import inside, routes

        has = set(inside.offered(inside.application()))
    known = {line for lines in routes.classes().values() for line in lines}
    for line in sorted(has - known):
        print(f"not classified, refused: {line}")
    for line in sorted(known - has):
        print(f"no longer there: {line}")
    return 1 if has != known else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

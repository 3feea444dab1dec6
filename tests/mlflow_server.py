"""`python -m tests.mlflow_server --backend-store-uri … --port …`: `mlflow server` in the process that was asked, by itself.

MLflow's command begins another process, which imports everything once more; for tests that do not test the start.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import mlflow.cli
import mlflow.server
from mlflow.server.security import init_security_middleware


def _here(command: Sequence[str], extra_env: Mapping[str, str], **_: Any) -> NoReturn:
    """`python -m uvicorn …`; what it finds imported did not know yet that it would be a server."""
    os.environ.update(extra_env)
    init_security_middleware(mlflow.server.app)
    sys.argv = list(command[2:])
    runpy.run_module("uvicorn", run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    mlflow.server._exec_cmd = _here
    mlflow.cli.cli(["server", *sys.argv[1:]])

"""`mlflow server` in this process: `python -m tests.mlflow_server OPTIONS`.

MLflow's command starts another process, which imports everything once more.
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


def _serve(command: Sequence[str], extra_env: Mapping[str, str], **_: Any) -> NoReturn:
    """Run `python -m uvicorn …`. Imported modules did not know that this is a server."""
    os.environ.update(extra_env)
    init_security_middleware(mlflow.server.app)
    sys.argv = list(command[2:])
    runpy.run_module("uvicorn", run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    mlflow.server._exec_cmd = _serve
    mlflow.cli.cli(["server", *sys.argv[1:]])

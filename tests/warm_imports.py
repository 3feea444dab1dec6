"""What commands import (tests/forks.py imports it once, in a process of its own), and what that sets in the environment."""

from __future__ import annotations

import os
from importlib import import_module

from sqlalchemy.orm import configure_mappers

_BEFORE = {name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_")}
os.environ.clear()
os.environ.update(_BEFORE)
for _name in (
    "experiments.cli.main",
    "experiments.cli.campaign",
    "experiments.run.pipeline",
    "experiments.comparison",
    "experiments.comparison.judgement",
    "experiments.server.admin",
    "experiments.sweep.worker",
    "tracking.store",
    "mlflow.cli",
    "mlflow.store.model_registry.sqlalchemy_store",
    "mlflow.store.tracking.sqlalchemy_store",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pynvml",
    "sqlalchemy.dialects.sqlite",
    "alembic.command",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "experiments.workloads.captioning.prepare",
):
    import_module(_name)
configure_mappers()  # MLflow's tables, which its store would work out anew in every process
SET_BY_IMPORTS = {name: text for name, text in os.environ.items() if name not in _BEFORE}

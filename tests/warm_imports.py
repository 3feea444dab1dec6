"""Imports of commands, made once by the fork server of tests/warm.py."""

from __future__ import annotations

import gc
import os
from importlib import import_module

from models import frameworks

_BEFORE = dict(os.environ)
gc.disable()
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
import_module("sqlalchemy.orm").configure_mappers()  # of MLflow's tables
frameworks._variants.cache_clear()  # a command may have another path
gc.freeze()  # a fork that collected these objects would copy them
gc.enable()
SET_BY_IMPORTS = {name: text for name, text in os.environ.items() if name not in _BEFORE}

"""Imports of commands, or of a framework, made once by a fork server of tests/warm.py."""

from __future__ import annotations

import gc
import os
from importlib import import_module

from models import frameworks

_BEFORE = dict(os.environ)
_FRAMEWORK = os.environ["EVENHAND_WARM_FRAMEWORK"]
_COMMANDS = (
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
)
gc.disable()
if not _FRAMEWORK:
    for _name in _COMMANDS:
        import_module(_name)
    import_module("sqlalchemy.orm").configure_mappers()  # of MLflow's tables
elif "jax" not in frameworks.described(_FRAMEWORK).packages:  # JAX reads its precision on import
    # libraries report their start, and what is frozen when they end
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with frameworks.lean_import(_FRAMEWORK):
        for _name in frameworks.described(_FRAMEWORK).packages:
            import_module(_name)
            if _name == "torch":
                import_module("torch._dynamo")  # the first optimizer imports it
        frameworks.load(_FRAMEWORK, "adapter")
frameworks._variants.cache_clear()  # a command may have another path
gc.freeze()  # a fork that collected these objects would copy them
gc.enable()
SET_BY_IMPORTS = {name: text for name, text in os.environ.items() if name not in _BEFORE}

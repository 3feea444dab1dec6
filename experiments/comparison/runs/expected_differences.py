"""Differences that belong to a factor: environments differ if versions or machines do."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

import pandas as pd

from tracking.provenance import RELEASED_TOGETHER

ENVIRONMENT, VERSION = "tags.environment", "tags.version."
HARDWARE = ("tags.cpu", "tags.gpu")
# Prefixes of tags of what a process had, in addition to its machine.
SOFTWARE = (VERSION, "tags.inherited.", "tags.cpus.")
# Levels that cannot run side by side in one campaign, as frameworks can.
APART = frozenset({"team", "user", "campaign", "machine", "cpu", "gpu", "environment", "commit"})

# Params of MLflow's autologging: of Keras and TensorFlow, and of Lightning with PyTorch's
# optimizers. A level that another library trains lacks them.
AUTOLOGGED = (
    *("opt_*", "optimizer_*", "batch_size", "epochs", "steps_per_epoch", "initial_epoch"),
    *("shuffle", "class_weight", "sample_weight", "max_queue_size", "workers"),
    *("use_multiprocessing", "validation_split", "validation_steps", "validation_batch_size"),
    *("validation_freq", "lr", "betas", "eps", "weight_decay", "decoupled_weight_decay"),
    *("momentum", "dampening", "nesterov", "amsgrad", "maximize", "foreach", "capturable"),
    *("differentiable", "fused", "monitor", "mode", "patience", "min_delta", "stopped_epoch"),
)
# Those that name an implementation, and so differ between libraries that both log them.
OF_IMPLEMENTATION = ("opt*_name", "opt*_jit_compile", "opt*_is_legacy_optimizer")


def autologged(frame: pd.DataFrame, columns: Sequence[str]) -> frozenset[str]:
    """Return the params in which levels differ because MLflow logs each library's own.

    A param counts if only some levels have it, or if it names an implementation. Runs of campaigns
    log their own settings.

    Args:
        frame: Runs with their levels.
        columns: Params that may count.
    """
    if "settings_hash" in frame.columns and frame["settings_hash"].notna().any():
        return frozenset()
    expected = set()
    for column in set(columns) & set(frame.columns):
        name = column.removeprefix("params.")
        is_missing = frame.groupby("level")[column].count().eq(0).any()
        if (is_missing and _matches(name, AUTOLOGGED)) or _matches(name, OF_IMPLEMENTATION):
            expected.add(column)
    return frozenset(expected)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def is_apart(factor: str) -> bool:
    """Return whether the levels of a factor have separate campaigns by its nature."""
    plain = factor.removeprefix("tags.")
    return plain in APART or plain.startswith("version.")


def differs_by(factor: str, columns: Iterable[str]) -> frozenset[str]:
    """Return the columns of machine, environment and commit that differ with the factor."""
    plain = factor.removeprefix("tags.")
    package = plain.removeprefix("version.")
    packages = next((group for group in RELEASED_TOGETHER if package in group), {package})
    by_factor = {
        "machine": {"machine", ENVIRONMENT, *HARDWARE},
        "cpu": {"machine", ENVIRONMENT, "tags.cpu"},
        "gpu": {"machine", ENVIRONMENT, "tags.gpu"},
        "environment": {ENVIRONMENT, *(name for name in columns if name.startswith(VERSION))},
        "commit": {"tags.commit"},
        f"version.{package}": {ENVIRONMENT, *(f"{VERSION}{name}" for name in packages)},
    }
    return frozenset(by_factor.get(plain, ()))

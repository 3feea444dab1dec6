"""MLflow's project backend `evenhand-slurm`: `mlflow run` with the cells as jobs of Slurm."""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import click
from mlflow import projects
from mlflow.exceptions import ExecutionException
from mlflow.projects import SubmittedRun, utils
from mlflow.projects.backend.local import LocalBackend
from mlflow.utils.env_manager import LOCAL

from experiments.cli import entries
from experiments.config import settings
from tracking import plain
from tracking.errors import ErrorCode, UsageError

NAME = "evenhand-slurm"
# Entries that MLflow itself adds to a backend's configuration.
OF_MLFLOW = (
    utils.PROJECT_BUILD_IMAGE,
    utils.PROJECT_DOCKER_ARGS,
    utils.PROJECT_DOCKER_AUTH,
    utils.PROJECT_ENV_MANAGER,
    utils.PROJECT_STORAGE_DIR,
    utils.PROJECT_SYNCHRONOUS,
)
logger = logging.getLogger(projects.__name__)  # MLflow's, with its format


class SlurmBackend(LocalBackend):  # type: ignore[misc]
    """Local backend with `executor=slurm`: the campaign's process stays here and submits jobs."""

    def run(
        self,
        project_uri: str,
        entry_point: str,
        params: Mapping[str, str] | None,
        version: str | None,
        backend_config: Mapping[str, Any],
        tracking_uri: str,
        experiment_id: str,
    ) -> SubmittedRun:
        """Start a campaign, which ends in order if this process ends before it.

        `mlflow run` always starts plugins asynchronously; here it waits as with its local backend.
        So does any process that did not ask for a synchronous run, when it exits.

        Raises:
            ExecutionException: For another project, an entry point whose work runs on one machine
                only, and names in the configuration that are no settings.
        """
        folder = utils.fetch_and_validate_project(project_uri, version, entry_point, params)
        project = utils.load_project(folder)
        if project.name != "evenhand" or project.docker_env:
            raise ExecutionException(
                f"{NAME} runs evenhand's project without Docker; {plain.path(folder)} is another"
            )
        ours = {name: value for name, value in backend_config.items() if name not in OF_MLFLOW}
        try:
            chosen = parameters(entry_point, ours, params or {})
        except UsageError as error:
            raise ExecutionException(f"{NAME}: {error}") from None
        options = {name: backend_config[name] for name in OF_MLFLOW} | {
            utils.PROJECT_SYNCHRONOUS: True
        }
        # the environment that `python_env.yaml` describes lacks submitit
        options[utils.PROJECT_ENV_MANAGER] = options[utils.PROJECT_ENV_MANAGER] or LOCAL
        started = super().run(
            folder, entry_point, chosen, None, options, tracking_uri, experiment_id
        )
        if not backend_config[utils.PROJECT_SYNCHRONOUS]:
            if command := click.get_current_context(silent=True):
                command.call_on_close(partial(end_command, started))
            else:
                atexit.register(conclude, started)
        return started


def parameters(
    entry_point: str, config: Mapping[str, Any], params: Mapping[str, str]
) -> dict[str, str]:
    """Return the parameters of a call: `executor=slurm`, the configuration's, and those of `-P`.

    Raises:
        UsageError: For an entry point that submits no jobs, and for names that are no settings.
    """
    entry = entries.load(entry_point)
    fields = entry.fields
    if "partition" not in fields:
        raise UsageError(
            ErrorCode.UNSUPPORTED, f"{entry_point} runs on this machine only; leave out -b {NAME}"
        )
    for name in config:
        settings.refuse_unknown(name, fields, entry.settings)
    texts = {
        name: settings.to_text(tuple(value) if isinstance(value, list) else value)
        for name, value in config.items()
    }
    overridden = {name.replace("-", "_") for name in params}  # as the command line reads them
    defaults = {name: text for name, text in texts.items() if name not in overridden}
    return {"executor": "slurm", **defaults, **params}


def conclude(started: SubmittedRun) -> bool:
    """Wait for a campaign, and close its run if that is open. Return whether it succeeded."""
    try:
        projects._wait_for(started)
    except ExecutionException as error:
        logger.error("=== %s ===", error)
        return False
    return True


def end_command(started: SubmittedRun) -> None:
    if not conclude(started):
        sys.exit(1)

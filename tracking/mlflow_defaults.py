"""MLflow's settings as evenhand's own commands need them; a notebook that imports evenhand keeps its own."""

from __future__ import annotations

import logging
import os

VARIABLES = {
    # A dead server must cost seconds, not MLflow's four minutes a call: the journal already holds the record.
    # MLflow itself would also send a creation again whose answer was lost, and make a second run.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def apply() -> None:
    """Set them for this process and those that it starts, where the user has not; before MLflow is imported."""
    for name, text in VARIABLES.items():
        os.environ.setdefault(name, text)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.ERROR)

"""MLflow's settings for evenhand's commands; a notebook that imports evenhand keeps its own."""

from __future__ import annotations

import logging
import os

VARIABLES = {
    # A dead server must cost seconds, not MLflow's four minutes a call: the journal has the record.
    # MLflow would also repeat a creation whose answer was lost, and make a second run.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def apply() -> None:
    """Set them for this process and its children, unless the user has set them."""
    for name, text in VARIABLES.items():
        os.environ.setdefault(name, text)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    # it logs the traceback of an error of the database, and raises the error
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)

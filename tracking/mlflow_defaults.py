"""MLflow's settings for evenhand's commands; a notebook that imports evenhand keeps its own."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

VARIABLES = {
    # A dead server must cost seconds, not MLflow's four minutes a call: the journal has the record.
    # MLflow would also repeat a creation whose answer was lost, and make a second run.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


LOG = Path(".evenhand/mlflow.log")
_is_command = False


class _LogFile(logging.FileHandler):
    """File that is made with its first line; where it cannot be, lines are lost."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
            super().emit(record)
        except OSError:
            pass


def apply() -> None:
    """Set them for this process and its children, unless the user has set them."""
    global _is_command
    _is_command = True
    for name, text in VARIABLES.items():
        os.environ.setdefault(name, text)
    if "mlflow" in sys.modules:
        redirect_logs()


def redirect_logs() -> None:
    """Send a command's log lines of MLflow to a file, not between the lines of its progress.

    The import of MLflow sets handlers: this comes after it.
    """
    if _is_command:
        handler = _LogFile(LOG, encoding="utf-8", delay=True)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).handlers = [handler]

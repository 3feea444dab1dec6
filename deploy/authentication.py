"""Settings of MLflow's names and passwords, the same in each deployment."""

from __future__ import annotations

import os
from pathlib import Path

# A log-in is checked against the database again after the last of these seconds.
SETTINGS = """[mlflow]
default_permission = READ
database_uri = {url}
admin_username = admin
auth_cache_ttl_seconds = 60
"""


def write_settings(path: Path, backend_uri: str) -> None:
    """Write the file that MLflow reads; only its owner can, from the first byte on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(SETTINGS.format(url=backend_uri.replace("%", "%%")))
    os.replace(temporary, path)


def environment(
    path: Path, backend_uri: str, admin_password: str, session_key: str
) -> dict[str, str]:
    """Return the variables of a server's process: secrets in arguments are public."""
    return {
        "MLFLOW_BACKEND_STORE_URI": backend_uri,
        "MLFLOW_AUTH_CONFIG_PATH": str(path),
        "MLFLOW_AUTH_ADMIN_PASSWORD": admin_password,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": session_key,
    }

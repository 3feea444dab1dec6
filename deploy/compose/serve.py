"""Start of the tracking container: secrets from files, then `mlflow server --app-name evenhand`."""

from __future__ import annotations

import os
import pwd
import sys
import tempfile
from pathlib import Path

SECRETS = Path(os.environ.get("SECRETS", "/run/secrets"))
VARIABLES = {
    "database_password": "PGPASSWORD",
    "admin_password": "MLFLOW_AUTH_ADMIN_PASSWORD",
    "session_key": "MLFLOW_FLASK_SERVER_SECRET_KEY",
    "proxy_secret": "EVENHAND_PROXY_SECRET",
}


def read_secrets() -> dict[str, str]:
    """Return the secrets that the container gets as files, by the variable of the server."""
    files = {SECRETS / name: variable for name, variable in VARIABLES.items()}
    return {item: path.read_text().strip() for path, item in files.items() if path.exists()}


def drop_root() -> None:
    """Give up root after the secrets are read: the server needs no rights but its user's."""
    if os.getuid() == 0:
        user = pwd.getpwnam("evenhand")
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)


def main() -> None:
    """Replace this process by the server's. No password is in an address or an argument."""
    environment = {**os.environ, **read_secrets()}
    drop_root()
    os.chdir(tempfile.gettempdir())  # where the server writes the settings of accounts
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "evenhand"]
    os.execvpe(command[0], command, environment)


if __name__ == "__main__":
    main()

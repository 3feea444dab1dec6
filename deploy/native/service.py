"""The process of the tracking server: started, looked at, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from deploy.native.folder import Folder, Refused, Secrets, Settings, write_private
from deploy.native.postgres import Database

START_SECONDS, STOP_SECONDS = 120, 20
AUTH = """[mlflow]
default_permission = READ
database_uri = {url}
admin_username = admin
auth_cache_ttl_seconds = 60
"""


def backend(folder: Folder, database: Database | None) -> str:
    return database.url if database else f"sqlite:///{folder.path}/mlflow.db"


def start(folder: Folder, settings: Settings, kept: Secrets, database: Database | None) -> None:
    """Starts it in the background and waits until it answers. Raises Refused where it does not."""
    if healthy(settings):
        raise Refused(f"something else answers at {settings.uri}; choose another --port")
    write_private(folder.auth_file, AUTH.format(url=backend(folder, database).replace("%", "%%")))
    command = [sys.executable, "-m", "mlflow", "server", "--host", settings.host, "--port", str(settings.port)]
    command += ["--app-name", "basic-auth", "--workers", str(settings.workers), "--allowed-hosts", ",".join(settings.hosts)]
    command += ["--artifacts-destination", settings.artifacts or str(folder.artifacts)]
    # The UI's own requests come from the addresses that users call; of others the server takes none that change anything.
    command += [
        "--cors-allowed-origins",
        ",".join(f"{scheme}://{host}" for host in settings.hosts for scheme in ("http", "https")),
    ]
    with folder.log.open("ab") as log:
        os.chmod(folder.log, 0o600)
        process = subprocess.Popen(
            command, env=_environment(folder, kept, database), stdout=log, stderr=log, cwd=folder.path, start_new_session=True
        )
    write_private(folder.pid_file, str(process.pid))
    deadline = time.monotonic() + START_SECONDS
    while not healthy(settings):
        if process.poll() is not None or time.monotonic() > deadline:
            stop(folder)
            raise Refused(f"the server did not start; {folder.log} says why: {_last_line(folder.log)}")
        time.sleep(0.2)


def _environment(folder: Folder, kept: Secrets, database: Database | None) -> dict[str, str]:
    """Secrets go by the environment, which only the owner can read; arguments are seen by everybody."""
    return {
        **(database.environment if database else os.environ),
        "MLFLOW_BACKEND_STORE_URI": backend(folder, database),
        "MLFLOW_AUTH_CONFIG_PATH": str(folder.auth_file),
        "MLFLOW_AUTH_ADMIN_PASSWORD": kept.admin_password,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": kept.session_key,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def collect(folder: Folder, settings: Settings, kept: Secrets, database: Database | None) -> str:
    """MLflow's own garbage collection: deleted runs and experiments with their files, by way of the server. Raises Refused."""
    if not healthy(settings):
        raise Refused(f"files are deleted through the server, and it does not answer at {settings.uri}; start it first")
    command = [sys.executable, "-m", "mlflow", "gc", "--backend-store-uri", backend(folder, database)]
    command += ["--artifacts-destination", settings.artifacts or str(folder.artifacts), "--tracking-uri", settings.uri]
    # Whoever has changed the first password gives name and password in the environment, as for anything else.
    admin = {"MLFLOW_TRACKING_USERNAME": "admin", "MLFLOW_TRACKING_PASSWORD": kept.admin_password}
    done = subprocess.run(command, env=admin | _environment(folder, kept, database), capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"mlflow gc failed: {(done.stderr.strip().splitlines() or ['?'])[-1][:300]}")
    gone = sum("permanently deleted" in line for line in done.stdout.splitlines())
    return f"{gone} deleted runs and experiments are gone for good"


def stop(folder: Folder) -> bool:
    """Ends it with all of its workers. False if it was not running."""
    pid = _pid(folder)
    folder.pid_file.unlink(missing_ok=True)
    if pid is None:
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            return True
        deadline = time.monotonic() + STOP_SECONDS
        while _group_exists(pid):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
    return True


def is_running(folder: Folder) -> bool:
    return _pid(folder) is not None


def healthy(settings: Settings) -> bool:
    try:
        with urllib.request.urlopen(f"{settings.uri}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return True  # something answers there
    except OSError:
        return False


def _pid(folder: Folder) -> int | None:
    """The server's process group, if any of it is left: a killed main process leaves workers behind."""
    try:
        pid = int(folder.pid_file.read_text())
    except (OSError, ValueError):
        return None
    return pid if _group_exists(pid) else None


def _group_exists(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)  # ours, where the same process started it
    except ChildProcessError:
        pass
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1][:300]

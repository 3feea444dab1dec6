"""Process of the tracking server: started, inspected, stopped.

All processes of a server hold a lock on its log, which is their output. While the lock is held,
the number of their process group belongs to no other process.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

from deploy import authentication
from deploy.guard.routes import READY
from deploy.native import account, interpreter
from deploy.native.database import PostgreSQL
from deploy.native.folder import Folder, Secrets, Settings, last_line, locked, write_private
from tracking.errors import ErrorCode, UsageError

START_SECONDS, STOP_SECONDS = 120, 20
READY_SECONDS = 15
TAIL_BYTES = 65_536


def require_free_port(settings: Settings) -> None:
    """Raise UsageError if another program listens at the server's address."""
    with suppress(OSError), socket.create_connection((settings.host, settings.port), 5):
        reason = f"another program answers at {settings.uri}; choose another --port"
        raise UsageError(ErrorCode.IN_USE, reason)


def start(folder: Folder, settings: Settings, secrets: Secrets, database: PostgreSQL) -> None:
    """Start the server in the background, and wait until it is ready.

    Raises:
        UsageError: It does not become ready.
    """
    authentication.write_settings(folder.auth_file, database.url)
    if owner := account.of_server():
        account.prepare_folder(owner, folder)
    # The UI's own requests come from the addresses that users call; other origins change nothing.
    origins = [f"{scheme}://{host}" for host in settings.hosts for scheme in ("http", "https")]
    values = {
        "host": settings.host,
        "port": settings.port,
        "workers": settings.workers,
        "artifacts": artifacts(folder, settings),
        "hosts": ",".join(settings.hosts),
        "origins": ",".join(origins),
        "proxies": settings.proxies,
    }
    arguments = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    python, options = _process_options(folder, _environment(folder, secrets, database))
    with folder.log.open("ab") as log:
        os.chmod(folder.log, 0o600)
        fcntl.flock(log, fcntl.LOCK_EX)  # after this block the server's processes hold it
        process = subprocess.Popen(
            [python, "-m", "deploy.guard", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=0o077,
            **options,
        )
    write_private(folder.pid_file, str(process.pid))
    deadline = time.monotonic() + START_SECONDS
    try:
        while reason := problem(folder, settings):
            if process.poll() is not None or time.monotonic() > deadline:
                text = f"the server did not start ({reason}); {folder.log} says why: "
                raise UsageError(ErrorCode.CHILD_FAILED, text + last_line(_tail(folder)))
            time.sleep(0.2)
    except BaseException:
        stop(folder)
        raise


def _process_options(folder: Folder, environment: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """Return Python, and the arguments of Popen with which the server's user runs it."""
    owner = account.of_server()
    python, variables = interpreter.command(owner, folder)
    options: dict[str, Any] = {"env": environment | variables, "cwd": folder.path}
    if owner:  # libraries look for their settings at home, and root's is closed
        user = {"USER": owner.pw_name, "LOGNAME": owner.pw_name}
        options["env"] |= {"HOME": owner.pw_dir, **user}
        options |= account.process_options(owner)
    return python, options


def _environment(folder: Folder, secrets: Secrets, database: PostgreSQL) -> dict[str, str]:
    return database.environment | authentication.environment(
        folder.auth_file, database.url, secrets.admin_password, secrets.session_key
    )


def artifacts(folder: Folder, settings: Settings) -> str:
    return settings.artifacts or str(folder.artifacts)


def call(folder: Folder, environment: dict[str, str], *words: str) -> str:
    """Run a Python module of the server's as the server's user, and return its output.

    Raises:
        UsageError: It failed; the last line of its errors says why.
    """
    python, options = _process_options(folder, environment)
    done = subprocess.run([python, "-m", *words], capture_output=True, text=True, **options)
    if done.returncode:
        text = f"{' '.join(words[:2])} failed: {last_line(done.stderr)}"
        raise UsageError(ErrorCode.CHILD_FAILED, text)
    return str(done.stdout)


def collect(folder: Folder, settings: Settings, secrets: Secrets, database: PostgreSQL) -> str:
    """Delete by MLflow's own collection what is deleted, with its files, through the server.

    Raises:
        UsageError: The server is not ready, or MLflow fails.
    """
    if reason := problem(folder, settings):
        text = f"files are deleted through the server, and {reason}; start it first"
        raise UsageError(ErrorCode.UNREACHABLE, text)
    # A changed first password is passed in the environment.
    environment = {
        "MLFLOW_TRACKING_USERNAME": authentication.ADMINISTRATOR,
        "MLFLOW_TRACKING_PASSWORD": secrets.admin_password,
        **_environment(folder, secrets, database),
    }
    words = ["mlflow", "gc", "--backend-store-uri", database.url, "--tracking-uri", settings.uri]
    words += ["--artifacts-destination", artifacts(folder, settings)]
    output = call(folder, environment, *words)
    count = sum("permanently deleted" in line for line in output.splitlines())
    return f"{count} deleted runs and experiments are gone for good"


def stop(folder: Folder) -> bool:
    """End the server with all of its workers, and return whether it was running.

    Raises:
        UsageError: It cannot be ended.
    """
    was_running = is_running(folder)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if is_running(folder):
            with suppress(ProcessLookupError):
                os.killpg(_main_process(folder), number)
        deadline = time.monotonic() + STOP_SECONDS
        while is_running(folder) and time.monotonic() < deadline:
            time.sleep(0.1)
    if is_running(folder):
        text = f"the processes of group {_main_process(folder)} do not end"
        raise UsageError(ErrorCode.IN_USE, text)
    folder.pid_file.unlink(missing_ok=True)
    return was_running


def is_running(folder: Folder) -> bool:
    """Return whether any process of the server is left."""
    if not folder.log.exists():
        return False
    with locked(folder.log) as is_free:
        return not is_free


def problem(folder: Folder, settings: Settings) -> str:
    """Return what keeps the server from its work, in one line, or "".

    The server writes its reasons into its log: /ready is open to strangers.
    """
    if not is_running(folder):
        return "it is not running"
    try:
        with urllib.request.urlopen(f"{settings.uri}{READY}", timeout=READY_SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        reasons = re.findall("not ready: (.*)", _tail(folder))
        return reasons[-1] if reasons else f"it answers with {error.code}; see {folder.log}"
    except OSError as error:
        return f"it does not answer at {settings.uri}: {getattr(error, 'reason', error)}"


def _tail(folder: Folder) -> str:
    """Return the end of the server's log."""
    with folder.log.open("rb") as log:
        log.seek(max(0, folder.log.stat().st_size - TAIL_BYTES))
        return log.read().decode(errors="replace")


def _main_process(folder: Folder) -> int:
    """Return the number of the main process, which is that of the group."""
    try:
        number = int(folder.pid_file.read_text())
    except (FileNotFoundError, ValueError):
        number = 0
    if number <= 1:
        reason = f"a server writes to {folder.log}, and {folder.pid_file} does not name it"
        raise UsageError(ErrorCode.NOT_FOUND, f"{reason}; end it first")
    return number

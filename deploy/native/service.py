"""Process of the tracking server: started, watched, inspected, stopped.

All processes of a server hold a lock on its log, which is their output. While the lock is held,
the number of their process group belongs to no other process.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import psutil

from deploy import authentication, readiness
from deploy.guard.routes import READY
from deploy.native import account, interpreter
from deploy.native.database import Database
from deploy.native.folder import (
    DeployError,
    Folder,
    Secrets,
    Settings,
    last_line,
    locked,
    write_private,
)

START_SECONDS, STOP_SECONDS = 120, 20
READY_SECONDS = 15
CHECK_SECONDS, MAX_FAILED_CHECKS = 10.0, 3


def start(
    folder: Folder, settings: Settings, secrets: Secrets, database: Database
) -> subprocess.Popen[bytes]:
    """Start the server in the background, and wait until it is ready.

    Raises:
        DeployError: It does not become ready.
    """
    stop(folder)  # what a killed main process left
    if answers(settings):
        raise DeployError(f"something else answers at {settings.uri}; choose another --port")
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
    try:
        write_private(folder.pid_file, str(process.pid))
        _wait(folder, settings, process)
    except BaseException:
        process.terminate()
        raise
    return process


def _wait(folder: Folder, settings: Settings, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while reason := problem(folder, settings):
        if process.poll() is not None or time.monotonic() > deadline:
            stop(folder)
            text = last_line(folder.log.read_text(errors="replace"))
            raise DeployError(f"the server did not start ({reason}); {folder.log} says why: {text}")
        time.sleep(0.2)


def watch(folder: Folder, settings: Settings, process: subprocess.Popen[bytes]) -> str:
    """Return why a server ended: its process has, or it was not ready three times in a row."""
    failed_checks = 0
    while failed_checks < MAX_FAILED_CHECKS:
        try:
            code = process.wait(CHECK_SECONDS)
            return f"the server's main process ended with code {code}"
        except subprocess.TimeoutExpired:
            reason = problem(folder, settings)
        failed_checks = failed_checks + 1 if reason else 0
        if reason:
            print(f"evenhand server: not ready: {reason}", file=sys.stderr, flush=True)
    return f"not ready for {MAX_FAILED_CHECKS} checks"


def _process_options(folder: Folder, environment: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """Return Python, and the arguments of Popen with which the server's user runs it."""
    owner = account.of_server()
    python, variables = interpreter.command(owner, folder)
    options: dict[str, Any] = {"env": environment | variables, "cwd": folder.path}
    if owner:  # libraries look for their settings at home, and root's is closed
        options["env"] |= {"HOME": owner.home, "USER": owner.name, "LOGNAME": owner.name}
        options |= owner.process_options
    return python, options


def _environment(folder: Folder, secrets: Secrets, database: Database) -> dict[str, str]:
    return database.environment | authentication.environment(
        folder.auth_file, database.url, secrets.admin_password, secrets.session_key
    )


def artifacts(folder: Folder, settings: Settings) -> str:
    return settings.artifacts or str(folder.artifacts)


def call(folder: Folder, environment: dict[str, str], *words: str) -> str:
    """Run a Python module of the server's as the server's user, and return its output.

    Raises:
        DeployError: It failed; the last line of its errors says why.
    """
    python, options = _process_options(folder, environment)
    done = subprocess.run([python, "-m", *words], capture_output=True, text=True, **options)
    if done.returncode:
        raise DeployError(f"{' '.join(words[:2])} failed: {last_line(done.stderr)}")
    return str(done.stdout)


def collect(folder: Folder, settings: Settings, secrets: Secrets, database: Database) -> str:
    """Delete by MLflow's own collection what is deleted, with its files, through the server.

    Raises:
        DeployError: The server does not answer, or MLflow fails.
    """
    if not answers(settings):
        right = f"it does not answer at {settings.uri}; start it first"
        raise DeployError(f"files are deleted through the server, and {right}")
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
        DeployError: It cannot be ended.
    """
    was_running = is_running(folder)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if is_running(folder):
            _signal(_main_process(folder), number)
        deadline = time.monotonic() + STOP_SECONDS
        while is_running(folder) and time.monotonic() < deadline:
            time.sleep(0.1)
    if is_running(folder):
        raise DeployError(f"the processes of group {_main_process(folder)} do not end")
    folder.pid_file.unlink(missing_ok=True)
    return was_running


def _signal(main: int, number: signal.Signals) -> None:
    try:
        os.killpg(main, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        owner = psutil.Process(main).username()
        reason = f"the server's process {main} is {owner}'s"
        raise DeployError(f"{reason}: call this as that user, or as root") from None


def is_running(folder: Folder) -> bool:
    """Return whether any process of the server is left: a killed main process leaves workers."""
    if not folder.log.exists():
        return False
    with locked(folder.log) as is_free:
        return not is_free


def answers(settings: Settings) -> bool:
    """Return whether anything speaks HTTP at the server's address."""
    try:
        with urllib.request.urlopen(f"{settings.uri}/health", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def problem(folder: Folder, settings: Settings) -> str:
    """Return what keeps the server from its work, in one line, or "".

    The server names its reasons to callers that show its key.
    """
    if not is_running(folder):
        return "it is not running"
    try:
        is_dead = psutil.Process(_main_process(folder)).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        is_dead = True
    if is_dead:
        return "its main process was killed, and its workers go on without it"
    key = readiness.operator_key(folder.secrets().session_key)
    headers = {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{settings.uri}{READY}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=READY_SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        text = error.read(1_000).decode(errors="replace").strip()[:300]
        return text or f"it answers with {error.code}"
    except OSError as error:
        return f"it does not answer at {settings.uri}: {getattr(error, 'reason', error)}"


def _main_process(folder: Folder) -> int:
    """Return the number of the main process, which is that of the group."""
    try:
        number = int(folder.pid_file.read_text())
    except (FileNotFoundError, ValueError):
        number = 0
    if number <= 1:
        reason = f"a server writes to {folder.log}, and {folder.pid_file} does not name it"
        raise DeployError(f"{reason}; end it first")
    return number

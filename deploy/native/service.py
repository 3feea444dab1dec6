"""The process of the tracking server: started, inspected, stopped.

All processes of a server hold a lock on its log, which is their output. While the lock is held,
the number of their process group belongs to no other process.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
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
    Folder,
    Refused,
    Secrets,
    Settings,
    last_line,
    locked,
    write_private,
)

START_SECONDS, STOP_SECONDS = 120, 20
READY_SECONDS = 15


def start(
    folder: Folder, settings: Settings, kept: Secrets, database: Database
) -> subprocess.Popen[bytes]:
    """Start the server in the background, and wait until it is ready.

    Raises:
        Refused: It does not become ready.
    """
    stop(folder)  # what a killed main process left behind
    if answers(settings):
        raise Refused(f"something else answers at {settings.uri}; choose another --port")
    authentication.write_settings(folder.auth_file, database.url)
    if owner := account.of_server(settings.user):
        account.check_folder(owner, folder)
        account.hand_over(owner, folder.artifacts)
        account.hand_over(owner, folder.sqlite.parent)
        account.show(owner, folder.auth_file)
    python, options = _as_owner(folder, settings, _environment(folder, kept, database))
    command = [
        python,
        "-m",
        "deploy.guard",
        "serve",
        "--host",
        settings.host,
        "--port",
        str(settings.port),
    ]
    command += ["--workers", str(settings.workers), "--artifacts", artifacts(folder, settings)]
    # The UI's own requests come from the addresses that users call; other origins change nothing.
    origins = [f"{scheme}://{host}" for host in settings.hosts for scheme in ("http", "https")]
    command += ["--hosts", ",".join(settings.hosts), "--origins", ",".join(origins)]
    command += ["--proxies", settings.proxies]
    with folder.log.open("ab") as log:
        os.chmod(folder.log, 0o600)
        fcntl.flock(
            log, fcntl.LOCK_EX
        )  # from the end of this block on, the server's processes hold it
        process = subprocess.Popen(
            command,
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
        process.terminate()  # whatever ended the start: nothing is left that nobody knows of
        raise
    return process


def _wait(folder: Folder, settings: Settings, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while reason := problem(folder, settings):
        if process.poll() is not None or time.monotonic() > deadline:
            stop(folder)
            text = last_line(folder.log.read_text(errors="replace"))
            raise Refused(f"the server did not start ({reason}); {folder.log} says why: {text}")
        time.sleep(0.2)


def _as_owner(
    folder: Folder, settings: Settings, environment: dict[str, str]
) -> tuple[str, dict[str, Any]]:
    """Return Python, and the arguments of Popen with which the server's user runs it."""
    owner = account.of_server(settings.user)
    python = interpreter.reachable(owner, folder)
    options: dict[str, Any] = {"env": environment | python.environment, "cwd": folder.path}
    if owner:
        options |= {**owner.of_process, "env": options["env"] | owner.environment}
    return python.executable, options


def _environment(folder: Folder, kept: Secrets, database: Database) -> dict[str, str]:
    return database.environment | authentication.environment(
        folder.auth_file, database.url, kept.admin_password, kept.session_key
    )


def artifacts(folder: Folder, settings: Settings) -> str:
    return settings.artifacts or str(folder.artifacts)


def call(folder: Folder, settings: Settings, environment: dict[str, str], *words: str) -> str:
    """Run a Python module of the server's as the server's user, and return its output.

    Raises:
        Refused: It failed; the last line of its errors says why.
    """
    python, options = _as_owner(folder, settings, environment)
    done = subprocess.run([python, "-m", *words], capture_output=True, text=True, **options)
    if done.returncode:
        raise Refused(f"{' '.join(words[:2])} failed: {last_line(done.stderr)}")
    return str(done.stdout)


def collect(folder: Folder, settings: Settings, kept: Secrets, database: Database) -> str:
    """Delete by MLflow's own collection what is deleted, with its files, by way of the server.

    Raises:
        Refused: The server does not answer, or MLflow fails.
    """
    if not answers(settings):
        right = f"it does not answer at {settings.uri}; start it first"
        raise Refused(f"files are deleted through the server, and {right}")
    # Whoever has changed the first password states name and password in the environment.
    environment = {
        "MLFLOW_TRACKING_USERNAME": authentication.ADMINISTRATOR,
        "MLFLOW_TRACKING_PASSWORD": kept.admin_password,
        **_environment(folder, kept, database),
    }
    words = ["mlflow", "gc", "--backend-store-uri", database.url, "--tracking-uri", settings.uri]
    words += ["--artifacts-destination", artifacts(folder, settings)]
    output = call(folder, settings, environment, *words)
    count = sum("permanently deleted" in line for line in output.splitlines())
    return f"{count} deleted runs and experiments are gone for good"


def stop(folder: Folder) -> bool:
    """End the server with all of its workers, and return whether it was running.

    Raises:
        Refused: It cannot be ended.
    """
    ran = is_running(folder)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if is_running(folder):
            _signal(folder, number)
        deadline = time.monotonic() + STOP_SECONDS
        while is_running(folder) and time.monotonic() < deadline:
            time.sleep(0.1)
    if is_running(folder):
        raise Refused(f"the processes of group {_main(folder)} do not end")
    folder.pid_file.unlink(missing_ok=True)
    return ran


def _signal(folder: Folder, number: signal.Signals) -> None:
    main = _main(folder)
    try:
        os.killpg(main, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        owner = psutil.Process(main).username()
        raise Refused(
            f"the server's process {main} is {owner}'s: call this as that user, or as root"
        ) from None


def is_running(folder: Folder) -> bool:
    """Return whether anything of the server is left: a killed main process leaves workers."""
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
    """Return what keeps the server from its work, in one line; empty if nothing does.

    The server names its reasons to callers that show its key.
    """
    if not is_running(folder):
        return "it is not running"
    if _is_dead(_main(folder)):
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


def _main(folder: Folder) -> int:
    """Return the number of the main process, which is that of the group."""
    try:
        number = int(folder.pid_file.read_text())
    except (FileNotFoundError, ValueError):
        number = 0
    if number <= 1:
        raise Refused(
            f"a server writes to {folder.log}, and {folder.pid_file} does not name it; end it first"
        )
    return number


def _is_dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True

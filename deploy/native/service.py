"""The process of the tracking server: started, looked at, stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from deploy import authentication, readiness
from deploy.guard.routes import READY
from deploy.native import account, interpreter
from deploy.native.database import Database
from deploy.native.folder import Folder, Refused, Secrets, Settings, write_private

START_SECONDS, STOP_SECONDS = 120, 20
READY_SECONDS = 15
SAME_START_SECONDS = 2  # the kernel tells the machine's start in whole seconds


@dataclass(frozen=True)
class Main:
    """The server's main process as it was started: a number alone may by now be another's."""

    pid: int
    started_seconds: float  # after the machine's start: setting the clock does not move it
    command: tuple[str, ...]


def start(folder: Folder, settings: Settings, kept: Secrets, database: Database) -> subprocess.Popen[bytes]:
    """Starts it in the background and waits until it is ready. Raises Refused where it does not become so."""
    stop(folder)  # what a killed main process left behind
    if answers(settings):
        raise Refused(f"something else answers at {settings.uri}; choose another --port")
    authentication.write_settings(folder.auth_file, database.url)
    owner = _prepared(folder, settings)
    python = interpreter.reachable(owner, folder)
    command = _command(folder, settings, python.executable)
    with folder.log.open("ab") as log:
        os.chmod(folder.log, 0o600)
        process = subprocess.Popen(
            command,
            env=_environment(folder, kept, database) | python.environment | (owner.environment if owner else {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder.path,
            start_new_session=True,
            umask=0o077,
            **(owner.of_process if owner else {}),
        )
    try:
        made = Main(process.pid, _started_seconds(psutil.Process(process.pid)), tuple(command))
        write_private(folder.pid_file, json.dumps(asdict(made)))
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
            raise Refused(f"the server did not start ({reason}); {folder.log} says why: {_last_line(folder.log)}")
        time.sleep(0.2)


def _prepared(folder: Folder, settings: Settings) -> account.Account | None:
    """Where root calls: the server's user, with what is the server's in its hands, whoever had it before."""
    owner = account.of_server(settings.user)
    if owner:
        account.check_folder(owner, folder)
        account.hand_over(owner, folder.artifacts)
        account.hand_over(owner, folder.sqlite.parent)
        account.show(owner, folder.auth_file)
    return owner


def _command(folder: Folder, settings: Settings, python: str) -> list[str]:
    # The UI's own requests come from the addresses that users call; of others the server takes none that change anything.
    origins = [f"{scheme}://{host}" for host in settings.hosts for scheme in ("http", "https")]
    command = [python, "-m", "deploy.guard", "serve", "--host", settings.host, "--port", str(settings.port)]
    command += ["--workers", str(settings.workers), "--artifacts", artifacts(folder, settings)]
    return [*command, "--hosts", ",".join(settings.hosts), "--origins", ",".join(origins), "--proxies", settings.proxies]


def _environment(folder: Folder, kept: Secrets, database: Database) -> dict[str, str]:
    """Secrets go by the environment, which only the owner can read; arguments are seen by everybody."""
    return database.environment | authentication.environment(
        folder.auth_file, database.url, kept.admin_password, kept.session_key
    )


def artifacts(folder: Folder, settings: Settings) -> str:
    return settings.artifacts or str(folder.artifacts)


def call(folder: Folder, settings: Settings, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """A Python program of the server's, to its end, as the server's user."""
    owner = account.of_server(settings.user)
    python = interpreter.reachable(owner, folder)
    environment = environment | python.environment | (owner.environment if owner else {})
    process = owner.of_process if owner else {}
    command = [python.executable, *words]
    return subprocess.run(command, env=environment, cwd=folder.path, capture_output=True, text=True, **process)


def collect(folder: Folder, settings: Settings, kept: Secrets, database: Database) -> str:
    """MLflow's own garbage collection: deleted runs and experiments with their files, by way of the server. Raises Refused."""
    if not answers(settings):
        raise Refused(f"files are deleted through the server, and it does not answer at {settings.uri}; start it first")
    words = ["-m", "mlflow", "gc", "--backend-store-uri", database.url]
    words += ["--artifacts-destination", artifacts(folder, settings), "--tracking-uri", settings.uri]
    # Whoever has changed the first password gives name and password in the environment, as for anything else.
    admin = {"MLFLOW_TRACKING_USERNAME": authentication.ADMINISTRATOR, "MLFLOW_TRACKING_PASSWORD": kept.admin_password}
    done = call(folder, settings, admin | _environment(folder, kept, database), *words)
    if done.returncode:
        raise Refused(f"mlflow gc failed: {(done.stderr.strip().splitlines() or ['?'])[-1][:300]}")
    gone = sum("permanently deleted" in line for line in done.stdout.splitlines())
    return f"{gone} deleted runs and experiments are gone for good"


def stop(folder: Folder) -> bool:
    """Ends it with all of its workers. False if it was not running. Raises Refused where it cannot be ended."""
    ran = is_running(folder)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for one in _members(folder):
            try:
                one.send_signal(number)
            except psutil.NoSuchProcess:
                pass
            except psutil.AccessDenied:
                raise Refused(
                    f"the server's process {one.pid} is {one.username()}'s: call this as that user, or as root"
                ) from None
        deadline = time.monotonic() + STOP_SECONDS
        while is_running(folder) and time.monotonic() < deadline:
            time.sleep(0.1)
    if is_running(folder):
        raise Refused(f"the server's processes do not end: {', '.join(str(one.pid) for one in _members(folder))}")
    folder.pid_file.unlink(missing_ok=True)
    return ran


def is_running(folder: Folder) -> bool:
    """Whether anything of the server is left: a killed main process leaves workers behind."""
    return bool(_members(folder))


def answers(settings: Settings) -> bool:
    """Whether anything speaks HTTP at the server's address."""
    try:
        with urllib.request.urlopen(f"{settings.uri}/health", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def ready(folder: Folder, settings: Settings) -> str:
    """Return what the server says that it cannot do; it says so to who shows its key."""
    key = readiness.operator_key(folder.secrets().session_key)
    headers = {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{settings.uri}{READY}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=READY_SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        return error.read(1_000).decode(errors="replace").strip()[:300] or f"it answers with {error.code}"
    except OSError as error:
        return f"it does not answer at {settings.uri}: {getattr(error, 'reason', error)}"


def problem(folder: Folder, settings: Settings) -> str:
    """What keeps the server from its work, in one line; empty where nothing does."""
    members = _members(folder)
    if not members:
        return "it is not running"
    if (main := _main(folder)) and main.pid not in [one.pid for one in members]:
        return "its main process was killed, and its workers go on without it"
    return ready(folder, settings)


def _members(folder: Folder) -> list[psutil.Process]:
    """The living processes of the session that the server's main process opened.

    The kernel gives a session's number to nobody else as long as anyone of the session lives. So where the main process is
    there, all are ours; where another has its number, none is left; where nobody has it, those that work in the server's folder.
    """
    main = _main(folder)
    if main is None:
        return []
    leader = _process(main.pid)
    if leader and not _is(leader, main):
        return []
    return [one for one in _session(main.pid) if leader or _works_in(one, folder)]


def _main(folder: Folder) -> Main | None:
    """The server's main process as the file names it."""
    try:
        told = json.loads(folder.pid_file.read_text())
        return Main(int(told["pid"]), float(told["started_seconds"]), tuple(told["command"]))
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def _is(process: psutil.Process, main: Main) -> bool:
    try:
        same = abs(_started_seconds(process) - main.started_seconds) < SAME_START_SECONDS
        return same and tuple(process.cmdline()) == main.command
    except psutil.ZombieProcess:  # killed, and nobody has waited for it: it has no command, but still its number
        return same
    except psutil.Error:
        return False


def _session(number: int) -> list[psutil.Process]:
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == number and (one := psutil.Process(pid)).status() != psutil.STATUS_ZOMBIE:
                found.append(one)
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return found


def _works_in(process: psutil.Process, folder: Folder) -> bool:
    try:
        return Path(process.cwd()) == folder.path and process.name().startswith(("python", "mlflow", "uvicorn"))
    except psutil.Error:
        return False


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _started_seconds(process: psutil.Process) -> float:
    return process.create_time() - psutil.boot_time()


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1][:300]

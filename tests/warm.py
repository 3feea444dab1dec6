"""Commands and scripts as forks of multiprocessing's fork servers, which have made their imports.

For tests whose subject is not the start: importing MLflow takes three seconds of a CPU, a framework
up to five. A process of tests has one server of commands and one of each framework that it needs.
What a command itself starts (cells, proofs, servers) are processes as a user has them.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver, util
from pathlib import Path
from typing import Any
from unittest.mock import patch

from models import frameworks, own

ROOT = Path(__file__).resolve().parents[1]
TOY = str(ROOT / "tests" / "toy_framework" / "installed")
FRAMEWORK = "EVENHAND_WARM_FRAMEWORK"  # of a server
_STARTING = threading.Lock()
_STARTED: list[subprocess.Popen[bytes]] = []
_ENVIRONMENT = {name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_")}


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    seconds: float = 300,
    framework: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE …` or `python -c CODE …` to its end.

    Args:
        command: Command line.
        environment: All variables of the process.
        folder: Working folder.
        seconds: Time limit.
        framework: Framework that the process finds imported; if empty, it is a command.

    Raises:
        subprocess.TimeoutExpired: After so many seconds; the command is killed.
    """
    with tempfile.TemporaryDirectory() as place:
        output, errors = Path(place, "stdout"), Path(place, "stderr")
        process = Process(command, environment, folder, output, errors, framework)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, code, output.read_text(), errors.read_text())


class Process:
    """Running command with the methods of `subprocess.Popen`, leader of a process group.

    Its output goes to files.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        output: Path,
        errors: Path | None = None,
        framework: str = "",
    ) -> None:
        self._command, self._output = command, output
        context = multiprocessing.get_context("forkserver")
        has_group = context.Event()
        files = output, errors or output
        self._process = context.Process(
            target=_run, args=(command[1:], dict(environment), folder, files, has_group)
        )
        with _STARTING:  # threads would restore each other's server
            connect = _server(framework and server_of(framework)).connect_to_new_process
            with patch.object(forkserver, "connect_to_new_process", connect):
                self._process.start()
        assert has_group.wait(60)
        self.pid = self._process.pid or 0
        atexit.register(self.kill)  # before multiprocessing waits for it

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._command, timeout or 0, self.output)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        self.wait(timeout)
        return self.output, None

    @property
    def output(self) -> str:
        """Output of the command until now."""
        return self._output.read_text() if self._output.exists() else ""

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def server_of(framework: str) -> str:
    """Return the framework whose server has this one's imports: the first variant with them."""
    packages = frameworks.described(framework).packages
    names = frameworks.available()
    return next(name for name in names if frameworks.described(name).packages == packages)


def variables_of(framework: str) -> dict[str, str]:
    """Return the variables that a framework reads on import, for the CPU."""
    backend = frameworks.described(framework).packages[-1]
    keras = {"KERAS_BACKEND": backend, "KERAS_TORCH_DEVICE": "cpu"}
    return {**keras, "TF_CPP_MIN_LOG_LEVEL": "3"}


@cache
def _server(framework: str) -> forkserver.ForkServer:
    server = forkserver.ForkServer()
    server.set_forkserver_preload(["tests.warm_imports"])
    variables = {"PYTHONPATH": os.pathsep.join([str(ROOT), TOY]), FRAMEWORK: framework}
    if framework:
        variables |= variables_of(framework)

    def spawn(path: bytes, args: Sequence[bytes], passfds: Sequence[int]) -> int:
        options = {"env": {**_ENVIRONMENT, **variables}, "pass_fds": passfds}
        _STARTED.append(subprocess.Popen(args, executable=path, **options))
        return _STARTED[-1].pid

    with patch.object(util, "spawnv_passfds", spawn):
        server.ensure_running()
    return server


def _run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    files: tuple[Path, Path],
    has_group: Any,
) -> None:
    """Do in the fork what `python ARGUMENTS` does in this environment and folder."""
    from tests.warm_imports import SET_BY_IMPORTS

    os.setsid()
    has_group.set()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, name in enumerate((os.devnull, *map(str, files))):
        os.dup2(os.open(name, flags if number else os.O_RDONLY), number)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
    os.environ.clear()
    os.environ |= {**SET_BY_IMPORTS, **environment}
    os.chdir(folder)
    own.begin()  # as the import of `models` does
    path = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = path + [entry for entry in sys.path if entry not in (*path, TOY)]
    kind, code, *rest = arguments
    sys.argv = [kind, *rest]
    try:
        if kind == "-c":
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        else:
            is_package = hasattr(sys.modules.get(code), "__path__")
            sys.modules.pop(f"{code}.__main__" if is_package else code, None)
            runpy.run_module(code, run_name="__main__", alter_sys=True)
    finally:
        sys.stdout.flush()
        atexit._run_exitfuncs()

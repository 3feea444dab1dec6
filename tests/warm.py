"""Commands as forks of multiprocessing's fork server, which has imported what they import.

For tests whose subject is not the start: importing MLflow takes three seconds of a CPU. What a
command itself starts (cells, proofs, servers) are processes as a user has them.
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
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any
from unittest.mock import patch

from models import own

ROOT = Path(__file__).resolve().parents[1]
TOY = str(ROOT / "tests" / "toy_framework" / "installed")
_STARTING = threading.Lock()
_ENVIRONMENT = {name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_")}


def run(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE …` or `python -c CODE …` to its end.

    Raises:
        subprocess.TimeoutExpired: After so many seconds; the command is killed.
    """
    with tempfile.TemporaryDirectory() as place:
        output, errors = Path(place, "stdout"), Path(place, "stderr")
        process = Process(command, environment, folder, output, errors)
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
    ) -> None:
        self._command, self._output = command, output
        with _STARTING:  # threads would restore each other's environment
            context = _context()
        has_group = context.Event()
        files = output, errors or output
        self._process = context.Process(
            target=_run, args=(command[1:], dict(environment), folder, files, has_group)
        )
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


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.warm_imports"])
    path = os.pathsep.join([str(ROOT), TOY])
    with patch.dict(os.environ, {**_ENVIRONMENT, "PYTHONPATH": path}, clear=True):
        ensure_running()
    return context


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
